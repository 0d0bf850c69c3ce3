"""The limit inside a real container: a program takes memory of a stand-in driver until it is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.sim.containers import rootfs
from tests.cluster.pods import Workspace
from tests.cluster.processes import wait_until
from tests.node.gpu import GUEST, GpuNode, share_pod, with_driver

CARD_MIB = 81920
SHARE_MIB = 3000
OUT_OF_MEMORY = 2
FILL = f"exec {rootfs.GUEST} 64 -1"


@pytest.fixture(autouse=True)
def no_guest_left() -> Iterator[None]:
    """The next test finds cards of which nobody holds memory: a deleted pod's process may outlive the pod's object."""
    yield
    wait_until(lambda: not running_guests(), 60, "processes that hold GPU memory ended")


def running_guests() -> list[str]:
    """Command lines of the programs that hold memory; this process sees all of the node's."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            lines.append(file.read_text())
    return [line for line in lines if line.startswith(rootfs.GUEST)]


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
        report = filled(gpus, space, "p")
        assert (report["limit_mib"], report["taken_mib"]) == (CARD_MIB, CARD_MIB)
    finally:
        preload.write_text(text)
