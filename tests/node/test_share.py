"""A pod that asks for a share, on the real kubelet: what it is started with, and what kubelet says about it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.cluster.components import COUNT_RESOURCE
from tests.cluster.pods import ALLOCATED, Workspace, allocation, annotation
from tests.cluster.processes import wait_until
from tests.node import images, kubelet
from tests.node.gpu import CONTROL_NODES, GpuNode, may_open, share_pod
from tests.node.podresources import held_devices, offered_devices


def test_container_starts_with_what_was_promised(gpus: GpuNode, space: Workspace) -> None:
    space.add(share_pod("p", {"gpu": 1, "gpumem": 3000, "gpucores": 30}))
    pod = space.wait_phase("p")
    ((device,),) = allocation(pod)
    env = gpus.environment(space, "p")
    assert env["NVIDIA_VISIBLE_DEVICES"] == device.uuid
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert env["CUDA_DEVICE_SM_LIMIT"] == "30"
    region = env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    assert re.fullmatch(r"/usr/local/vgpu/[0-9a-f-]{36}\.cache", region)
    assert gpus.in_pod(space, "p", "cat", "/etc/ld.so.preload") == "/usr/local/vgpu/libvgpu.so\n"
    mounts = {line.split()[1] for line in gpus.in_pod(space, "p", "cat", "/proc/self/mounts").splitlines()}
    wanted = {"/usr/local/vgpu", "/usr/local/vgpu/libvgpu.so", "/tmp/vgpulock", "/etc/ld.so.preload", region}
    assert wanted <= mounts
    minor = [card for kind in gpus.host.profile.cards for card in kind.uuids].index(device.uuid)
    nodes = gpus.in_pod(space, "p", "ls", "/dev").split()
    assert {name for name in nodes if name.startswith("nvidia")} == {*CONTROL_NODES, f"nvidia{minor}"}
    assert may_open(gpus, space, "p")


def test_a_device_that_nobody_gave_cannot_be_opened(gpus: GpuNode, space: Workspace) -> None:
    """The control of `may_open`: root in a container may make a node of that number, and open it in vain."""
    space.add(share_pod("p", {}))
    space.wait_phase("p")
    major, minor = CONTROL_NODES["nvidia-modeset"]
    assert gpus.in_pod(space, "p", "busybox", "mknod", "/dev/nvidia-modeset", "c", str(major), str(minor)) == ""
    assert not may_open(gpus, space, "p")


def test_every_container_gets_its_own_share(gpus: GpuNode, space: Workspace) -> None:
    first = [{"gpu": 1, "gpumem": 500}]
    space.add(share_pod("p", {"gpu": 1, "gpumem": 1000}, {}, {"gpu": 2, "gpumem": 2000, "gpucores": 20}, init=first))
    pod = space.wait_phase("p")
    shares = dict(zip(("i0", "c0", "c1", "c2"), allocation(pod), strict=True))
    assert [len(devices) for devices in shares.values()] == [1, 1, 0, 2]
    for container, devices in shares.items():
        env = gpus.environment(space, "p", container)
        limits = [env[key] for key in sorted(env) if key.startswith("CUDA_DEVICE_MEMORY_LIMIT_")]
        assert limits == [f"{device.memory_mib}m" for device in devices]
        visible = env.get("NVIDIA_VISIBLE_DEVICES", "none")
        assert visible == (",".join(device.uuid for device in devices) or "none")


def test_kubelet_agrees_with_the_annotations(gpus: GpuNode, space: Workspace) -> None:
    """Of what pods hold: the annotations, pod-resources, the checkpoint, and what describe says is allocated."""
    space.add(share_pod("a", {"gpu": 2, "gpumem": 1000}))
    space.add(share_pod("b", {"gpu": 1, "gpumem": 1000}, {"gpu": 1, "gpumem": 1000}))
    promised = {}
    for name in ("a", "b"):
        for index, devices in enumerate(allocation(space.wait_phase(name))):
            promised[space.name, name, f"c{index}"] = sorted(device.uuid for device in devices)
    held = held_devices(kubelet.POD_RESOURCES, COUNT_RESOURCE)
    assert {key: cards_of(ids) for key, ids in held.items() if key[0] == space.name} == promised
    names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in space.pods()}
    written = {
        (space.name, names[uid], container): sorted(ids)
        for (uid, container), ids in kubelet.checkpointed_devices(COUNT_RESOURCE).items()
        if uid in names
    }
    assert written == {key: sorted(ids) for key, ids in held.items() if key[0] == space.name}
    number = sum(len(cards) for cards in promised.values())

    def allocated() -> bool:
        described = gpus.node.plane.kubectl("describe", "node", gpus.node.name)
        assert re.search(rf"Allocated resources:(\n.*)*\n  {COUNT_RESOURCE} +{number} +{number}\n", described), (
            described
        )
        return True

    wait_until(allocated, 30, "describe says what the node's pods hold")


def test_kubelet_offers_what_the_annotation_registers(gpus: GpuNode) -> None:
    """Of what there is: the annotation, pod-resources, the checkpoint, allocatable, capacity, and describe."""
    cards = gpus.registered()
    assert len(cards) == gpus.card_count
    shares = sum(card["count"] for card in cards)
    of_cards = sorted(card["id"] for card in cards for _ in range(card["count"]))

    def on_the_node() -> bool:
        assert cards_of(offered_devices(kubelet.POD_RESOURCES, COUNT_RESOURCE)) == of_cards
        assert cards_of(kubelet.checkpointed_offer(COUNT_RESOURCE)) == of_cards
        status = gpus.node.plane.api.get(gpus.node.kubelet.path)["status"]
        described = gpus.node.plane.kubectl("describe", "node", gpus.node.name)
        assert {status[kind].get(COUNT_RESOURCE) for kind in ("allocatable", "capacity")} == {str(shares)}
        for kind in ("Capacity", "Allocatable"):
            assert re.search(rf"{kind}:(\n  .*)*\n  {COUNT_RESOURCE}: +{shares}\n", described), described
        return True

    wait_until(on_the_node, 30, "kubelet, its checkpoint and the Node object have as many")


def test_describe_tells_what_became_of_a_pod(gpus: GpuNode, space: Workspace) -> None:
    space.add(share_pod("p", {"gpu": 1, "gpumem": 1000}))
    pod = space.wait_phase("p")

    def told() -> bool:
        described = gpus.node.plane.kubectl("describe", "pod", "p", "-n", space.name)
        assert f"Successfully binding node [{gpus.node.name}] to {space.name}/p" in described, described
        assert "Started container c0" in described or "Container started" in described, described
        assert f"{ALLOCATED}: {annotation(pod, ALLOCATED)}" in described, described
        return True

    wait_until(told, 30, "describe tells binding, start and allocation")


def test_without_the_plugin_no_share_starts(gpus: GpuNode, space: Workspace) -> None:
    gpus.plugin.stop()
    try:
        wait_until(lambda: gpus.shares() == 0, 30, "kubelet offers no shares any more")
        space.add_refused(share_pod("p", {"gpu": 1, "gpumem": 1000}), "FilteringFailed", "no available node")
        space.add(share_pod("plain", {}))
        space.wait_phase("plain")
        assert space.pod("p")["status"]["phase"] == "Pending"
    finally:
        gpus.start_plugin()
    space.wait_phase("p", timeout_s=60)


def test_a_pod_that_bypasses_the_webhook_gets_no_limits(gpus: GpuNode, space: Workspace) -> None:
    pod = share_pod("p", {}, image=images.BUSYBOX)
    pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    space.add(pod)
    space.wait_phase("p")
    env = gpus.environment(space, "p")
    assert [key for key in env if key.startswith(("CUDA_", "NVIDIA_"))] == []


def cards_of(ids: Iterable[str]) -> list[str]:
    """Cards behind the shares that kubelet names: `<card>-<number>`."""
    return sorted(one.rpartition("-")[0] for one in ids)
