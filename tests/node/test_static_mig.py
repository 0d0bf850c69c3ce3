"""MIG devices that an administrator made, on the real kubelet: each strategy's resources, and who gets which device.

Two cards with instances and one without; nobody but kubelet decides, and no annotation says anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from hami.nvml.simulated_mig import mig_uuid
from tests.cluster.api import Object
from tests.cluster.components import COUNT_RESOURCE, PROFILES
from tests.cluster.pods import ALLOCATED, Workspace, allocation, annotation
from tests.cluster.processes import wait_until
from tests.node import kubelet
from tests.node.gpu import CONTROL_NODES, GpuNode, may_open, share_pod
from tests.node.podresources import held_devices, offered_devices

ONE, THREE = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
A, B, PLAIN = (f"GPU-11111111-0000-4000-8000-{number:012d}" for number in range(3))
"""Cards that no test switches to another mode: that outlives the plugin, as on a real card."""
MINORS = {A: 0, B: 1, PLAIN: 2}
UNLIKE, ALIKE = [[3, 0], [1, 4], [1, 5]], [[3, 0], [3, 4]]
T4 = {"model": "Tesla T4", "memory_mib": 15360, "uuids": [PLAIN]}
BIG = {card: mig_uuid(card, 1, 0) for card in (A, B)}
"""Each card's 3g.20gb instance at the first place, which both layouts have."""
WEBHOOK_IGNORES = {"hami.io/webhook": "ignore"}

pytestmark = pytest.mark.usefixtures("usual_plugin_again")


def profile(folder: Path, layout: Sequence[Sequence[int]], *others: Mapping[str, object]) -> Path:
    """File with the two A100s, cut as `layout` says, and other cards."""
    text = yaml.safe_load((PROFILES / "a100-mig.yaml").read_text())
    text["cards"] = [text["cards"][0] | {"mig": True, "mig_layout": layout, "uuids": [A, B]}, *others]
    file = folder / "static-mig.yaml"
    file.write_text(yaml.safe_dump(text))
    return file


def wait_offer(gpus: GpuNode, offer: Mapping[str, int]) -> None:
    """Return when the node has these resources of ours, by kubelet and by the Node object, and no other."""

    def offered() -> bool:
        gpus.plugin.require_alive()
        for resource in (COUNT_RESOURCE, ONE, THREE):
            assert len(offered_devices(kubelet.POD_RESOURCES, resource)) == offer.get(resource, 0), resource
        assert gpus.allocatable() == offer
        return True

    wait_until(offered, 60, f"the node offers {offer}")


def card_of(device: str) -> str:
    """Which card a MIG device of these layouts is on: ids of instances are 1, 2 (big) and 11, 12 (small)."""
    (card,) = [card for card in (A, B) if device in {mig_uuid(card, number, 0) for number in (1, 2, 11, 12)}]
    return card


def devices_of(
    gpus: GpuNode, space: Workspace, pod: Object, resource: str, container: str = "c0", visible: str = ""
) -> list[str]:
    """What kubelet gave a container, the same by pod-resources, checkpoint and the container's own environment.

    `visible`: what NVIDIA_VISIBLE_DEVICES is where it does not name the devices.
    """
    name = pod["metadata"]["name"]
    held = sorted(held_devices(kubelet.POD_RESOURCES, resource)[space.name, name, container])
    assert sorted(kubelet.checkpointed_devices(resource)[pod["metadata"]["uid"], container]) == held
    env = gpus.environment(space, name, container)
    assert sorted(env["NVIDIA_VISIBLE_DEVICES"].split(",")) == ([visible] if visible else held)
    assert [key for key in env if key.startswith("CUDA_")] == [], "the card itself keeps the limits"
    return held


def nodes_in(gpus: GpuNode, space: Workspace, pod: str) -> set[str]:
    """Device nodes of NVIDIA's in the pod's first container."""
    return {name for name in gpus.in_pod(space, pod, "ls", "/dev").split() if name.startswith("nvidia")}


def test_mixed(gpus: GpuNode, space: Workspace, tmp_path: Path) -> None:
    gpus.replace_plugin(profile(tmp_path, UNLIKE, T4), {"migstrategy": "mixed"}, wait=False)
    wait_offer(gpus, {COUNT_RESOURCE: 10, ONE: 4, THREE: 2})
    assert [card["id"] for card in gpus.registered()] == [PLAIN]
    space.add(share_pod("p", {"mig-3g.20gb": 1}, {"mig-1g.5gb": 2}))
    pod = space.wait_phase("p")
    assert annotation(pod, ALLOCATED) == ""
    (big,) = devices_of(gpus, space, pod, THREE)
    assert big in BIG.values()
    assert nodes_in(gpus, space, "p") == {*CONTROL_NODES, f"nvidia{MINORS[card_of(big)]}"}
    assert may_open(gpus, space, "p")
    assert "ld.so.preload" not in gpus.in_pod(space, "p", "ls", "/etc")
    small = devices_of(gpus, space, pod, ONE, "c1")
    assert Counter(map(card_of, small)) == {A: 1, B: 1}, "spread over the cards"
    space.add(share_pod("share", {"gpu": 1, "gpumem": 1000}))
    ((share,),) = allocation(space.wait_phase("share"))
    assert share.uuid == gpus.environment(space, "share")["NVIDIA_VISIBLE_DEVICES"] == PLAIN
    space.add(share_pod("too-many", {"mig-3g.20gb": 2}))
    space.wait_event("too-many", "FailedScheduling", f"Insufficient {THREE}")
    space.remove("p")
    space.wait_phase("too-many")
    assert devices_of(gpus, space, space.pod("too-many"), THREE) == sorted(BIG.values())


def test_single(gpus: GpuNode, space: Workspace, tmp_path: Path) -> None:
    """As cards, by CDI names: the devices that the specification has are those of the instance's card."""
    flags = ["--device-list-strategy=cdi-cri", f"--nvidia-driver-root={tmp_path}", "--nvidia-cdi-hook-path="]
    gpus.replace_plugin(profile(tmp_path, ALIKE), {"migstrategy": "single"}, flags, wait=False)
    wait_offer(gpus, {COUNT_RESOURCE: 4})
    wait_until(lambda: gpus.registered() == [], 60, "no card is registered for shares")
    seen = []
    for name in ("a", "b", "c", "d"):
        pod = share_pod(name, {"gpu": 1})
        pod["metadata"]["labels"] = WEBHOOK_IGNORES
        space.add(pod)
        (device,) = devices_of(gpus, space, space.wait_phase(name), COUNT_RESOURCE, visible="void")
        assert nodes_in(gpus, space, name) == {*CONTROL_NODES, f"nvidia{MINORS[card_of(device)]}"}
        assert may_open(gpus, space, name)
        seen.append(device)
    assert set(seen) == {mig_uuid(card, number, 0) for card in (A, B) for number in (1, 2)}
    assert list(map(card_of, seen)) in ([A, B, A, B], [A, B, B, A], [B, A, A, B], [B, A, B, A]), "spread over the cards"


def test_none(gpus: GpuNode, space: Workspace, tmp_path: Path) -> None:
    """Cards in MIG mode are left alone; the other one is shared."""
    gpus.replace_plugin(profile(tmp_path, UNLIKE, T4), {"migstrategy": "none"}, wait=False)
    wait_offer(gpus, {COUNT_RESOURCE: 10})
    wait_until(lambda: [card["id"] for card in gpus.registered()] == [PLAIN], 60, "the card without MIG is registered")
    space.add(share_pod("p", {"gpu": 1, "gpumem": 1000}))
    ((share,),) = allocation(space.wait_phase("p"))
    assert share.uuid == gpus.environment(space, "p")["NVIDIA_VISIBLE_DEVICES"] == PLAIN
    assert nodes_in(gpus, space, "p") == {*CONTROL_NODES, f"nvidia{MINORS[PLAIN]}"}


def test_a_layout_that_single_does_not_serve(gpus: GpuNode, tmp_path: Path) -> None:
    """Nothing is offered, and the node says why."""
    gpus.replace_plugin(profile(tmp_path, UNLIKE), {"migstrategy": "single"}, wait=False)
    wait_offer(gpus, {})
    events = "/api/v1/namespaces/default/events"

    def told() -> bool:
        found = gpus.node.plane.api.items(events, fieldSelector=f"involvedObject.name={gpus.node.name}")
        said = [event["message"] for event in found if event["reason"] == "MigStrategyNotServed"]
        assert any("more than one MIG device type" in message for message in said), said
        return True

    wait_until(told, 60, "an event on the node")
