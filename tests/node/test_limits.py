"""The limit inside a real container: a program takes memory of a stand-in driver until it is refused."""

from __future__ import annotations

import json

import pytest

from hami.sim.containers import rootfs
from tests.cluster.pods import Workspace
from tests.cluster.processes import wait_until
from tests.node.gpu import GUEST, GpuNode, share_pod, with_driver

CARD_MIB = 81920
SHARE_MIB = 3000
OUT_OF_MEMORY = 2
FILL = f"exec {rootfs.GUEST} 64 -1"


def filled(gpus: GpuNode, space: Workspace, name: str) -> dict[str, int]:
    """What the program in the container says about its first card, once it took all it could."""

    def report() -> list[str]:
        lines = gpus.node.plane.kubectl("logs", name, "-n", space.name).splitlines()
        assert any("holding" in line for line in lines), lines
        return lines

    lines = wait_until(report, 30, f"{name} took what it could")
    first: dict[str, int] = json.loads(next(line for line in lines if '"card"' in line))
    return first


def test_a_program_sees_its_limit_and_is_refused_beyond(gpus: GpuNode, space: Workspace) -> None:
    for name in ("first", "second"):
        space.add(with_driver(share_pod(name, {"gpu": 1, "gpumem": SHARE_MIB}, script=FILL, image=GUEST), gpus.host))
    for name in ("first", "second"):
        space.wait_phase(name)
        report = filled(gpus, space, name)
        assert (report["limit_mib"], report["taken_mib"], report["refusal"]) == (SHARE_MIB, SHARE_MIB, OUT_OF_MEMORY)


def test_without_the_limiter_the_same_program_takes_the_card(gpus: GpuNode, space: Workspace) -> None:
    """The negative control: all as above, but the preload file on the node names nothing."""
    preload = gpus.host.hook_path / "vgpu/ld.so.preload"
    text = preload.read_text()
    preload.write_text("")
    try:
        space.add(with_driver(share_pod("p", {"gpu": 1, "gpumem": SHARE_MIB}, script=FILL, image=GUEST), gpus.host))
        space.wait_phase("p")
        assert filled(gpus, space, "p")["taken_mib"] == pytest.approx(CARD_MIB, abs=64)
    finally:
        preload.write_text(text)
