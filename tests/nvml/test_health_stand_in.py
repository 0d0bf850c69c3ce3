"""Error events, lost and damaged cards through the real pynvml over the stand-in driver in C (tests/shim/fake)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shim.harness import build_fakes, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")

SCRIPT = """
import asyncio, sys
from pathlib import Path
import msgspec
from hami.core.errors import NvmlError
from hami.nvml.real import RealProbe

async def main():
    probe = RealProbe(5, driver_root=Path(sys.argv[1]))
    events = Path(sys.argv[2])
    said = []
    for step in sys.argv[3:]:
        what, _, rest = step.partition(":")
        try:
            if what == "happens":
                with events.open("a") as file:
                    file.write(rest + "\\n")
            elif what == "events":
                said.append(await probe.events(0.05))
            else:
                said.append(await getattr(probe, what)())
        except NvmlError as error:
            said.append(str(error))
    await probe.close()
    print(msgspec.json.encode(said).decode())

asyncio.run(main())
"""
TWO = "card uuid=GPU-a memory_mib=16384 minor=0\ncard uuid=GPU-b memory_mib=16384 minor=1\n"


def asked(folder: Path, *steps: str, **environment: str) -> list[Any]:
    """What the probe says to each step that asks, in a process of its own."""
    library = folder / "root/usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.symlink_to(build_fakes() / "driver/12.4/libnvidia-ml.so.1")
    config = folder / "cards.conf"
    config.write_text(TWO)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "root"), f"{config}.state.events", *steps],
        env={"FAKE_GPU_CONFIG": str(config), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: list[Any] = json.loads(done.stdout)
    return said


def event(uuid: str, kind: str, code: int = 0) -> list[dict[str, Any]]:
    return [{"uuid": uuid, "kind": kind, "code": code}]


def test_each_error_is_told_once_with_its_card(tmp_path: Path) -> None:
    said = asked(
        tmp_path, "events", "happens:xid 1 79", "happens:ecc2 0", "happens:ecc1 0", *["events"] * 4, "happens:xid 0 48",
        "events",
    )  # fmt: skip
    assert said == [
        [],
        event("GPU-b", "xid", 79),
        event("GPU-a", "ecc-double-bit"),
        event("GPU-a", "ecc-single-bit"),
        [],
        event("GPU-a", "xid", 48),
    ]


def test_an_error_of_a_card_that_nobody_knows_has_no_name(tmp_path: Path) -> None:
    assert asked(tmp_path, "happens:xid -1 79", "events") == [event("", "xid", 79)]


def test_the_error_of_a_card_that_cannot_be_asked_any_more_keeps_its_name(tmp_path: Path) -> None:
    """Code 15 is NVML_ERROR_GPU_IS_LOST: a card that fell off the bus answers nothing, not even its name."""
    # A fault does not count calls that another one failed: four of them fail the third call and three more.
    lost = {"FAKE_GPU_FAIL": ",".join(["nvmlDeviceGetUUID:3:15"] * 4)}
    said = asked(tmp_path, "happens:xid 1 79", "events", "lost", "cards", **lost)
    assert said[0] == event("GPU-b", "xid", 79)
    assert said[2]["cards"] == [], "neither card has a name any more"


def test_a_card_without_events_is_named_once_and_the_other_heard(tmp_path: Path) -> None:
    """Code 3 is NVML_ERROR_NOT_SUPPORTED, for the second card that is asked."""
    none = {"FAKE_GPU_FAIL": "nvmlDeviceGetSupportedEventTypes:2:3"}
    said = asked(tmp_path, "events", "happens:xid 1 79", "happens:xid 0 79", "events", "events", **none)
    assert said == [event("GPU-b", "no-events"), event("GPU-a", "xid", 79), []]


def test_a_driver_without_events_is_an_nvml_error_each_time(tmp_path: Path) -> None:
    said = asked(tmp_path, "events", "events", "lost", FAKE_GPU_FAIL="nvmlEventSetCreate:0:3")
    assert said == ["event registration: Not Supported"] * 2 + [{}]


def test_a_wait_that_fails_begins_anew(tmp_path: Path) -> None:
    said = asked(tmp_path, "happens:xid 0 79", "events", "events", FAKE_GPU_FAIL="nvmlEventSetWait_v2:1:999")
    assert said == ["event wait: Unknown Error", event("GPU-a", "xid", 79)]


def test_a_row_that_could_not_be_remapped_is_damage(tmp_path: Path) -> None:
    said = asked(tmp_path, "damaged", "happens:remap 1", "damaged", "lost")
    assert said == [{}, {"GPU-b": "a memory row could not be remapped"}, {}]


def test_cards_without_row_remapping_are_not_damaged(tmp_path: Path) -> None:
    assert asked(tmp_path, "happens:remap 1", "damaged", FAKE_GPU_FAIL="nvmlDeviceGetRemappedRows:0:3") == [{}]


def test_a_driver_that_is_unloaded_and_comes_back(tmp_path: Path) -> None:
    """Code 9 is NVML_ERROR_DRIVER_NOT_LOADED: the second list fails, the third opens a session of its own."""
    said = asked(
        tmp_path, "cards", "cards", "cards", "happens:xid 0 79", "events", FAKE_GPU_FAIL="nvmlDeviceGetCount_v2:2:9"
    )
    assert [len(said[0]["cards"]), said[1], len(said[2]["cards"])] == [2, "cards: Driver Not Loaded", 2]
    assert said[3] == event("GPU-a", "xid", 79)
