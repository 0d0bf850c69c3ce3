"""The real probe, through the real pynvml, over a stand-in libnvidia-ml.so.1 in C (tests/shim/fake)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nvml.driver_process import asked
from tests.shim.harness import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
UNKNOWN = 999

ASKED = ("cards", "pairs", "lost", "processes", "events", "loads")


def probed(folder: Path, cards: str, **environment: str) -> dict[str, Any]:
    """What the probe says to each of `ASKED`."""
    return dict(zip(ASKED, asked(folder, cards.encode(), *ASKED, limit_s=0.5, **environment), strict=True))


def test_cards_are_read_through_pynvml(tmp_path: Path) -> None:
    found = probed(
        tmp_path,
        "driver 570.1\n"
        "card uuid=GPU-a memory_mib=16384 name=NVIDIA_A100-PCIE-40GB pci=00000000:3B:00.0 minor=4\n"
        "card uuid=GPU-b memory_mib=15360 name=Tesla_T4 pci=00000000:5E:00.0 minor=5\n",
    )
    cards = found["cards"]["cards"]
    assert found["cards"]["driver_version"] == "570.1"
    assert [(card["uuid"], card["index"], card["minor"], card["memory_bytes"]) for card in cards] == [
        ("GPU-a", 0, 4, 16384 << 20),
        ("GPU-b", 1, 5, 15360 << 20),
    ]
    assert [card["name"].replace("_", " ") for card in cards] == ["NVIDIA A100-PCIE-40GB", "Tesla T4"]
    assert cards[0]["pci_bus_id"] == "00000000:3B:00.0"
    assert (cards[0]["mig_enabled"], cards[0]["mig_profiles"]) == (False, [])
    assert [(pair["first"], pair["second"], pair["links_forward"]) for pair in found["pairs"]] == [
        ("GPU-a", "GPU-b", 0)
    ]
    assert found["lost"] == {}
    assert found["processes"] == []


def test_loads_are_read_through_pynvml(tmp_path: Path) -> None:
    """A driver whose cards hold nothing, one without a memory query (unified memory)."""
    unified = "card uuid=GPU-b memory_mib=8 memory_query=unsupported utilization=5 minor=1\n"
    found = probed(tmp_path, f"card uuid=GPU-a memory_mib=16384 utilization=37 minor=0\n{unified}")
    loads = [(load["uuid"], load["memory_used_bytes"], load["gpu_percent"]) for load in found["loads"]]
    assert loads == [("GPU-a", 0, 37), ("GPU-b", None, 5)]


@pytest.mark.parametrize(
    ("function", "call", "failed", "left"),
    [
        ("nvmlDeviceGetUtilizationRates", 1, "utilisation of card GPU-a: ", (0, None)),
        ("nvmlDeviceGetMemoryInfo", 5, "memory of card GPU-a: ", (None, 37)),
    ],
)
def test_b118_a_question_that_fails_costs_its_answer_only(
    tmp_path: Path, function: str, call: int, failed: str, left: tuple[int | None, int | None]
) -> None:
    cards = "".join(f"card uuid=GPU-{each} memory_mib=16384 utilization=37 minor=0\n" for each in "ab")
    found = probed(tmp_path, cards, FAKE_GPU_FAIL=f"{function}:{call}:{UNKNOWN}")
    first, second = found["loads"]
    assert (first["memory_used_bytes"], first["gpu_percent"]) == left
    assert [problem.startswith(failed) for problem in first["problems"]] == [True]
    assert (second["memory_used_bytes"], second["gpu_percent"], second["problems"]) == (0, 37, [])


def test_quiet_cards_have_no_events_and_a_driver_without_them_says_so(tmp_path: Path) -> None:
    found = probed(tmp_path, "card uuid=GPU-a memory_mib=16384 minor=0\n")
    assert found["events"] == [] or "event registration" in found["events"]
    assert found["cards"]["cards"][0]["uuid"] == "GPU-a"


FOUR = "".join(f"card uuid=GPU-{index} memory_mib=16384 minor={index}\n" for index in range(4))


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUUID", "nvmlDeviceGetName"],
)
def test_one_bad_card_does_not_hide_the_others(tmp_path: Path, function: str) -> None:
    """The third call of each function fails: that of card 2 (report B85)."""
    found = probed(tmp_path, FOUR, FAKE_GPU_FAIL=f"{function}:3:{UNKNOWN}")
    assert [card["uuid"] for card in found["cards"]["cards"]] == ["GPU-0", "GPU-1", "GPU-3"]
    assert found["cards"]["problems"][0].startswith("card 2: ")


def test_a_lost_card_is_named(tmp_path: Path) -> None:
    """Code 15 is NVML_ERROR_GPU_IS_LOST; the memory query of every card fails the second time it is asked."""
    found = probed(tmp_path, FOUR, FAKE_GPU_FAIL="nvmlDeviceGetMemoryInfo:6:15")
    assert len(found["cards"]["cards"]) == 4
    assert found["lost"] == {"GPU-1": "GPU is lost"}


def test_a_card_that_fails_leaves_the_links_of_the_others(tmp_path: Path) -> None:
    """The seventh handle is that of card 2 in `pairs`; without links of the others all would be out of service."""
    found = probed(tmp_path, FOUR, FAKE_GPU_FAIL="nvmlDeviceGetHandleByIndex_v2:7:15")
    assert len(found["cards"]["cards"]) == 4
    assert [(pair["first"], pair["second"]) for pair in found["pairs"]] == [
        ("GPU-0", "GPU-1"),
        ("GPU-0", "GPU-3"),
        ("GPU-1", "GPU-3"),
    ]


def test_a_card_without_a_memory_query_has_no_memory(tmp_path: Path) -> None:
    found = probed(tmp_path, "card uuid=GPU-a memory_mib=16384 memory_query=unsupported minor=0\n")
    assert found["cards"]["cards"][0]["memory_bytes"] is None
    assert found["lost"] == {}


def test_mig_mode_is_read(tmp_path: Path) -> None:
    cards = "card uuid=GPU-a memory_mib=16384 mig=on minor=0\ncard uuid=GPU-b memory_mib=16384 mig=off minor=1\n"
    assert [card["mig_enabled"] for card in probed(tmp_path, cards)["cards"]["cards"]] == [True, False]


def test_a_driver_that_hangs_costs_the_time_limit(tmp_path: Path) -> None:
    found = probed(tmp_path, FOUR, FAKE_GPU_DELAY_US="nvmlDeviceGetMemoryInfo:30000000:0")
    assert found["cards"] == "cards: no answer of the driver within 0.5 s"
    assert found["lost"] == "liveness: no answer of the driver within 0.5 s"


def test_a_driver_that_does_not_load_is_said(tmp_path: Path) -> None:
    """Code 9 is NVML_ERROR_DRIVER_NOT_LOADED."""
    found = probed(tmp_path, FOUR, FAKE_GPU_FAIL="nvmlInitWithFlags:0:9,nvmlInit_v2:0:9")
    assert found["cards"] == "cards: Driver Not Loaded"
