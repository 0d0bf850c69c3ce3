"""A pod that asks for a share, on the real kubelet: what it is started with, and what kubelet says about it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable

from tests.cluster.components import COUNT_RESOURCE, REGISTER
from tests.cluster.pods import Workspace, allocation, annotation
from tests.cluster.processes import wait_until
from tests.node import images, kubelet
from tests.node.gpu import CONTROL_NODES, GpuNode, environment_of, share_pod
from tests.node.podresources import held_devices


def test_container_starts_with_what_was_promised(gpus: GpuNode, space: Workspace) -> None:
    space.add(share_pod("p", {"gpu": 1, "gpumem": 3000, "gpucores": 30}))
    pod = space.wait_phase("p")
    ((device,),) = allocation(pod)
    kubectl = gpus.node.plane.kubectl
    env = environment_of(kubectl("logs", "p", "-n", space.name).splitlines())
    assert env["NVIDIA_VISIBLE_DEVICES"] == device.uuid
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert env["CUDA_DEVICE_SM_LIMIT"] == "30"
    region = env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    assert re.fullmatch(r"/usr/local/vgpu/[0-9a-f-]{36}\.cache", region)
    exec_in = ("exec", "p", "-n", space.name, "--")
    assert kubectl(*exec_in, "cat", "/etc/ld.so.preload") == "/usr/local/vgpu/libvgpu.so\n"
    mounts = {line.split()[1] for line in kubectl(*exec_in, "cat", "/proc/self/mounts").splitlines()}
    wanted = {"/usr/local/vgpu", "/usr/local/vgpu/libvgpu.so", "/tmp/vgpulock", "/etc/ld.so.preload", region}
    assert wanted <= mounts
    minor = [card for kind in gpus.host.profile.cards for card in kind.uuids].index(device.uuid)
    nodes = kubectl(*exec_in, "ls", "/dev").split()
    assert {name for name in nodes if name.startswith("nvidia")} == {*CONTROL_NODES, f"nvidia{minor}"}


def test_every_container_gets_its_own_share(gpus: GpuNode, space: Workspace) -> None:
    first = [{"gpu": 1, "gpumem": 500}]
    space.add(share_pod("p", {"gpu": 1, "gpumem": 1000}, {}, {"gpu": 2, "gpumem": 2000, "gpucores": 20}, init=first))
    pod = space.wait_phase("p")
    shares = dict(zip(("i0", "c0", "c1", "c2"), allocation(pod), strict=True))
    assert [len(devices) for devices in shares.values()] == [1, 1, 0, 2]
    for container, devices in shares.items():
        lines = gpus.node.plane.kubectl("logs", "p", "-c", container, "-n", space.name).splitlines()
        env = environment_of(lines)
        limits = [env[key] for key in sorted(env) if key.startswith("CUDA_DEVICE_MEMORY_LIMIT_")]
        assert limits == [f"{device.memory_mib}m" for device in devices]
        visible = env.get("NVIDIA_VISIBLE_DEVICES", "none")
        assert visible == (",".join(device.uuid for device in devices) or "none")


def test_kubelet_agrees_with_the_annotations(gpus: GpuNode, space: Workspace) -> None:
    space.add(share_pod("a", {"gpu": 2, "gpumem": 1000}))
    space.add(share_pod("b", {"gpu": 1, "gpumem": 1000}, {"gpu": 1, "gpumem": 1000}))
    promised = {}
    for name in ("a", "b"):
        for index, devices in enumerate(allocation(space.wait_phase(name))):
            promised[space.name, name, f"c{index}"] = sorted(device.uuid for device in devices)
    held = held_devices(kubelet.POD_RESOURCES, COUNT_RESOURCE)
    assert {key: cards_of(ids) for key, ids in held.items() if key[0] == space.name} == promised
    uids = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in space.pods()}
    entries = json.loads(kubelet.CHECKPOINT.read_text())["Data"]["PodDeviceEntries"]
    written = {
        (space.name, uids[one["PodUID"]], one["ContainerName"]): cards_of(itertools.chain(*one["DeviceIDs"].values()))
        for one in entries
        if one["PodUID"] in uids and one["ResourceName"] == COUNT_RESOURCE
    }
    assert written == promised


def test_describe_shows_what_the_node_offers(gpus: GpuNode, space: Workspace) -> None:
    space.add(share_pod("p", {"gpu": 3, "gpumem": 1000}))
    space.wait_phase("p")
    node = gpus.node.plane.api.get(gpus.node.kubelet.path)
    cards = json.loads(annotation(node, REGISTER))
    shares = sum(card["count"] for card in cards)
    assert len(cards) == gpus.card_count
    assert gpus.shares() == shares == 10 * gpus.card_count
    assert node["status"]["capacity"][COUNT_RESOURCE] == str(shares)
    described = gpus.node.plane.kubectl("describe", "node", gpus.node.name)
    assert re.search(rf"Capacity:(\n  .*)*\n  {COUNT_RESOURCE}: +{shares}\n", described)
    assert re.search(rf"Allocated resources:(\n.*)*\n  {COUNT_RESOURCE} +3 +3\n", described)
    events = gpus.node.plane.kubectl("describe", "pod", "p", "-n", space.name)
    assert f"Successfully binding node [{gpus.node.name}] to {space.name}/p" in events
    assert "Started container c0" in events or "Container started" in events


def test_without_the_plugin_no_share_starts(gpus: GpuNode, space: Workspace) -> None:
    gpus.plugin.stop()
    try:
        wait_until(lambda: gpus.shares() == 0, 30, "kubelet offers no shares any more")
        space.add(share_pod("p", {"gpu": 1, "gpumem": 1000}))
        space.add(share_pod("plain", {}))
        space.wait_phase("plain")
        space.wait_event("p", "FilteringFailed", "no available node")
        assert space.pod("p")["status"]["phase"] == "Pending"
    finally:
        gpus.start_plugin()
    space.wait_phase("p", timeout_s=60)


def test_a_pod_that_bypasses_the_webhook_gets_no_limits(gpus: GpuNode, space: Workspace) -> None:
    pod = share_pod("p", {}, image=images.BUSYBOX)
    pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    space.add(pod)
    space.wait_phase("p")
    env = environment_of(gpus.node.plane.kubectl("logs", "p", "-n", space.name).splitlines())
    assert [key for key in env if key.startswith(("CUDA_", "NVIDIA_"))] == []


def cards_of(ids: Iterable[str]) -> list[str]:
    """Cards behind the shares that kubelet names: `<card>-<number>`."""
    return sorted(one.rpartition("-")[0] for one in ids)
