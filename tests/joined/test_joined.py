"""Allocate, the container, the limiter and the driver together (issue 9, "Joined")."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

from hami.sim.containers.runner import CardReport
from hami.sim.containers.toolkit import Toolkit
from tests.joined.node import HOOK, Node

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024 * 1024
CARD_MIB = 40960
OUT_OF_MEMORY = 2


def full(card: int, mib: int) -> CardReport:
    """A guest that got its whole share, was told nothing of more, and was refused beyond."""
    return CardReport(card, limit_mib=mib, free_mib=mib, taken_mib=mib, left_mib=0, refusal=OUT_OF_MEMORY)


async def test_a_share_is_refused_beyond_and_its_neighbour_is_not_disturbed(node: Node) -> None:
    first = await node.start("first", (0, 3000))
    assert (await node.filled(first)).cards == (full(0, 3000),)
    second = await node.start("second", (0, 5000), (1, 700))
    assert (await node.filled(second)).cards == (full(0, 5000), full(1, 700))
    assert node.region(first).used_bytes(0) == 3000 * MIB
    seen = node.region(second)
    assert [card.uuid for card in seen.cards] == node.cards[:2]
    assert [card.memory_limit_bytes // MIB for card in seen.cards] == [5000, 700]
    assert [seen.used_bytes(0) // MIB, seen.used_bytes(1) // MIB] == [5000, 700]

    assert await node.monitored() == {("first", 0): 3000 * MIB, ("second", 0): 5000 * MIB, ("second", 1): 700 * MIB}

    os.kill(node.runner.report(second, "main").pid, signal.SIGKILL)
    await node.cluster.until("/api/v1/namespaces/default/pods/second", lambda pod: pod["status"]["phase"] == "Failed")
    assert node.region(second).processes == ()
    assert node.region(first).used_bytes(0) == 3000 * MIB
    third = await node.start("third", (0, CARD_MIB - 3000))
    assert (await node.filled(third)).cards == (full(0, CARD_MIB - 3000),)


async def test_without_the_limiter_the_same_program_exceeds_the_share(node: Node) -> None:
    """The negative control: everything as Allocate says, but the preload file on the node names nothing."""
    preload = node.host.hook_path / "vgpu" / "ld.so.preload"
    text = preload.read_text()
    preload.write_text("")
    try:
        alone = await node.start("alone", (0, 3000))
        assert (await node.filled(alone)).cards == (full(0, CARD_MIB),)
        next_to_it = await node.start("next-to-it", (0, 3000))
        assert (await node.filled(next_to_it)).cards == (
            CardReport(0, CARD_MIB, free_mib=0, taken_mib=0, left_mib=0, refusal=OUT_OF_MEMORY),
        )
    finally:
        preload.write_text(text)


class Try(NamedTuple):
    """What a pod does to have more than its share."""

    env: Mapping[str, str] = MappingProxyType({})
    command: str = "exec {guest} 64"


TRIES = {
    "limit-0": Try({"CUDA_DEVICE_MEMORY_LIMIT_0": "0"}),
    "limit-larger": Try({"CUDA_DEVICE_MEMORY_LIMIT_0": "40000m", "CUDA_DEVICE_MEMORY_LIMIT": "40000m"}),
    "preload-empty": Try({"LD_PRELOAD": ""}),
    "preload-driver": Try({"LD_PRELOAD": "/usr/lib/libcuda.so.1"}),
    "disable-control": Try({"CUDA_DISABLE_CONTROL": "true"}),
    "own-region": Try({"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/mine.cache"}),
    "no-region": Try({"VGPU_FAILURE_POLICY": "open", "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/nowhere/x.cache"}),
    "own-file": Try(
        {"VGPU_CONFIG_FILE": "/tmp/mine.conf"}, "echo CUDA_DEVICE_MEMORY_LIMIT_0=0 > /tmp/mine.conf; exec {guest} 64"
    ),
    "no-environment": Try(command="exec env -i {guest} 64"),
    "remove-files": Try(command=f"rm -f {HOOK}/vgpu/vgpu.conf /etc/ld.so.preload; exec {{guest}} 64"),
    "move-file": Try(command=f"mv {HOOK}/vgpu/vgpu.conf /tmp; echo > {HOOK}/vgpu/vgpu.conf; exec {{guest}} 64"),
    "unmount": Try(command=f"umount /etc/ld.so.preload; umount {HOOK}/vgpu/vgpu.conf; exec {{guest}} 64"),
    "unmount-elsewhere": Try(
        command="unshare -Urm sh -c 'umount /etc/ld.so.preload && exec {guest} 64'; exec {guest} 64"
    ),
    "loader": Try(command="/lib64/ld-linux-x86-64.so.2 --preload '' {guest} 64; exec {guest} 64"),
    "all-cards": Try({"NVIDIA_VISIBLE_DEVICES": "all"}),
}


async def test_a_pod_cannot_lift_its_limit(node: Node) -> None:
    """Each try on a card of its own as far as there are cards. Cards that are no share of the pod are bounded too."""
    lifted = {}
    for number, (name, tried) in enumerate(TRIES.items()):
        card = number % len(node.cards)
        uid = await node.start(name, (card, 3000), env=tried.env, command=tried.command)
        report = await node.filled(uid)
        if not report.cards or any(one != full(one.card, 3000) for one in report.cards):
            lifted[name] = report.raw
        await node.empty()
    assert lifted == {}


@pytest.mark.parametrize("attack", ["rm -f {region}", "mv {region} /tmp/region", "ln -sf /tmp/other {region}"])
async def test_a_region_that_its_container_wants_to_be_rid_of_still_counts(node: Node, attack: str) -> None:
    """Two processes of one container, the region attacked between their starts: together they have one share."""
    region = "$CUDA_DEVICE_MEMORY_SHARED_CACHE"
    command = (
        "{guest} 64 > /tmp/first & until grep -q holding /tmp/first; do sleep 0.05; done; "
        f"{attack.format(region=region)}; grep taken_mib /tmp/first; exec {{guest}} 64"
    )
    report = await node.filled(await node.start("two", (0, 3000), command=command))
    assert [card.taken_mib for card in report.cards] == [3000, 0], report.raw


async def test_a_pod_may_lower_its_limit(node: Node) -> None:
    uid = await node.start("modest", (0, 3000), env={"CUDA_DEVICE_MEMORY_LIMIT_0": "1000m"})
    assert (await node.filled(uid)).cards == (full(0, 1000),)


async def test_the_environment_is_exactly_what_was_answered(node: Node) -> None:
    uid = await node.start("look", (0, 3000), env={"MINE": "1"}, command="cat /proc/self/environ | tr '\\0' '\\n'")
    await node.cluster.until("/api/v1/namespaces/default/pods/look", lambda pod: pod["status"]["phase"] == "Succeeded")
    seen = {line for line in node.runner.report(uid, "main").raw.splitlines() if not line.startswith(("PWD=", "_="))}
    [allocation] = [one for one in node.kubelet.allocations if one.pod_uid == uid]
    assert seen == {f"{name}={value}" for name, value in {**allocation.env, "MINE": "1"}.items()}


async def test_mounts_are_what_was_answered_and_processes_are_apart(node: Node, kit: Toolkit) -> None:
    command = f"touch {HOOK}/vgpu/mine /tmp/vgpulock/mine; touch /etc/ld.so.preload || echo read-only; echo pid $$"
    uid = await node.start("look", (0, 3000), command=command)
    await node.cluster.until("/api/v1/namespaces/default/pods/look", lambda pod: pod["status"]["phase"] == "Succeeded")
    assert (node.host.hook_path / "vgpu" / "containers" / f"{uid}_main" / "mine").exists()
    said = node.runner.report(uid, "main").raw.splitlines()
    assert "read-only" in said
    assert ("pid 1" in said) is ("pid" in kit.isolation)
