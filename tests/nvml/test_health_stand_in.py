"""Error events, lost and damaged cards through the real pynvml over the stand-in driver in C (tests/shim/fake)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nvml.driver_process import asked
from tests.shim.harness import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")

TWO = b"card uuid=GPU-a memory_mib=16384 minor=0\ncard uuid=GPU-b memory_mib=16384 minor=1\n"


def event(uuid: str, kind: str, code: int = 0) -> list[dict[str, Any]]:
    return [{"uuid": uuid, "kind": kind, "code": code}]


def test_each_error_is_told_once_with_its_card(tmp_path: Path) -> None:
    said = asked(
        tmp_path, TWO, "events", "happens:xid 1 79", "happens:ecc2 0", "happens:ecc1 0", *["events"] * 4,
        "happens:xid 0 48", "events",
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
    assert asked(tmp_path, TWO, "happens:xid -1 79", "events") == [event("", "xid", 79)]


def test_the_error_of_a_card_that_cannot_be_asked_any_more_keeps_its_name(tmp_path: Path) -> None:
    """Code 15 is NVML_ERROR_GPU_IS_LOST: a card that fell off the bus answers nothing, not even its name."""
    # A fault does not count calls that another one failed: four of them fail the third call and three more.
    lost = ",".join(["nvmlDeviceGetUUID:3:15"] * 4)
    said = asked(tmp_path, TWO, "happens:xid 1 79", "events", "lost", "cards", FAKE_GPU_FAIL=lost)
    assert said[0] == event("GPU-b", "xid", 79)
    assert said[2]["cards"] == [], "neither card has a name any more"


def test_a_card_without_events_is_named_once_and_the_other_heard(tmp_path: Path) -> None:
    """Code 3 is NVML_ERROR_NOT_SUPPORTED, for the second card that is asked."""
    none = "nvmlDeviceGetSupportedEventTypes:2:3"
    said = asked(
        tmp_path, TWO, "events", "happens:xid 1 79", "happens:xid 0 79", "events", "events", FAKE_GPU_FAIL=none
    )
    assert said == [event("GPU-b", "no-events"), event("GPU-a", "xid", 79), []]


def test_a_driver_without_events_is_an_nvml_error_each_time(tmp_path: Path) -> None:
    said = asked(tmp_path, TWO, "events", "events", "lost", FAKE_GPU_FAIL="nvmlEventSetCreate:0:3")
    assert said == ["event registration: Not Supported"] * 2 + [{}]


def test_a_wait_that_fails_begins_anew(tmp_path: Path) -> None:
    said = asked(tmp_path, TWO, "happens:xid 0 79", "events", "events", FAKE_GPU_FAIL="nvmlEventSetWait_v2:1:999")
    assert said == ["event wait: Unknown Error", event("GPU-a", "xid", 79)]


def test_a_row_that_could_not_be_remapped_is_damage(tmp_path: Path) -> None:
    said = asked(tmp_path, TWO, "damaged", "happens:remap 1", "damaged", "lost")
    assert said == [{}, {"GPU-b": "a memory row could not be remapped"}, {}]


def test_cards_without_row_remapping_are_not_damaged(tmp_path: Path) -> None:
    assert asked(tmp_path, TWO, "happens:remap 1", "damaged", FAKE_GPU_FAIL="nvmlDeviceGetRemappedRows:0:3") == [{}]


def test_a_driver_that_is_unloaded_and_comes_back(tmp_path: Path) -> None:
    """Code 9 is NVML_ERROR_DRIVER_NOT_LOADED: the second list fails, the third opens a session of its own."""
    said = asked(
        tmp_path,
        TWO,
        "cards",
        "cards",
        "cards",
        "happens:xid 0 79",
        "events",
        FAKE_GPU_FAIL="nvmlDeviceGetCount_v2:2:9",
    )
    assert [len(said[0]["cards"]), said[1], len(said[2]["cards"])] == [2, "cards: Driver Not Loaded", 2]
    assert said[3] == event("GPU-a", "xid", 79)
