"""What drivers answer that nobody expects, found by hunting: odd names, boards without PCI, drivers changed underneath.

Each case goes through the real pynvml over the stand-in driver in C, in a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nvml.driver_process import asked
from tests.shim.harness import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")

TWO = b"card uuid=GPU-a memory_mib=16384 minor=0 name=A\ncard uuid=GPU-b memory_mib=16384 minor=1 name=B\n"
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, LOST, VERSION_MISMATCH, UNKNOWN = 3, 4, 6, 13, 15, 18, 999


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        (b"\xff\xfeCard", "\ufffd\ufffdCard"),
        (b"NVIDIA_GeForce_RTX_4090_D_[48GB]_(Rev.\xa02)", "NVIDIA GeForce RTX 4090 D [48GB] (Rev.\ufffd2)"),
        ("GeForce\u2122".encode(), "GeForce\u2122"),
    ],
)
def test_a_name_of_any_bytes_hides_no_card(tmp_path: Path, name: bytes, seen: str) -> None:
    """pynvml fails on names that are no UTF-8, on the whole list and on the page of metrics."""
    cards, loads = asked(tmp_path, TWO.replace(b"name=A", b"name=" + name), "cards", "loads")
    assert [card["name"] for card in cards["cards"]] == [seen, "B"]
    assert [load["name"] for load in loads] == [seen, "B"]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND])
def test_a_board_that_is_on_no_pci_bus_is_a_card(tmp_path: Path, code: int) -> None:
    """Boards with the GPU in the chip have no PCI address to tell (HAMi#1151, go-nvlib PR 60)."""
    said = asked(tmp_path, TWO, "cards", "pairs", "lost", FAKE_GPU_FAIL=f"nvmlDeviceGetPciInfo_v3:0:{code}")
    cards, pairs, lost = said
    found = [(card["uuid"], card["pci_bus_id"], card["numa"]) for card in cards["cards"]]
    assert found == [("GPU-a", "", -1), ("GPU-b", "", -1)]
    assert cards["problems"] == []
    assert [(pair["links_forward"], pair["links_back"]) for pair in pairs] == [(0, 0)]
    assert lost == {}


@pytest.mark.parametrize("function", ["nvmlDeviceGetMinorNumber", "nvmlDeviceGetMigMode"])
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
def test_what_a_card_does_not_offer_leaves_it_a_card(tmp_path: Path, function: str, code: int) -> None:
    """WSL and boards without a minor number: NVIDIA/k8s-device-plugin#332."""
    (cards,) = asked(tmp_path, TWO, "cards", FAKE_GPU_FAIL=f"{function}:0:{code}")
    assert [card["uuid"] for card in cards["cards"]] == ["GPU-a", "GPU-b"]
    assert cards["problems"] == []


@pytest.mark.parametrize("code", [NOT_SUPPORTED, LOST, UNKNOWN])
@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3"],
)
def test_one_bad_card_hides_no_other(tmp_path: Path, function: str, code: int) -> None:
    """HAMi#2233, NVIDIA/k8s-device-plugin#231, #338: one card failed, and none was offered."""
    (cards,) = asked(tmp_path, TWO, "cards", FAKE_GPU_FAIL=f"{function}:1:{code}")
    assert "GPU-b" in [card["uuid"] for card in cards["cards"]]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, LOST, UNKNOWN])
def test_a_driver_that_keeps_its_version_to_itself_has_cards(tmp_path: Path, code: int) -> None:
    (cards,) = asked(tmp_path, TWO, "cards", FAKE_GPU_FAIL=f"nvmlSystemGetDriverVersion:0:{code}")
    assert [card["uuid"] for card in cards["cards"]] == ["GPU-a", "GPU-b"]
    assert cards["driver_version"] == ""


def test_a_driver_exchanged_underneath_is_said_in_words(tmp_path: Path) -> None:
    """The library that a process has loaded stays the old one (NVIDIA/k8s-device-plugin#221)."""
    said = asked(tmp_path, TWO, "cards", "loads", FAKE_GPU_FAIL=f"nvmlInitWithFlags:0:{VERSION_MISMATCH}")
    assert said == [
        f"{what}: the driver was exchanged, its library here is the old one" for what in ("cards", "utilisation")
    ]


@pytest.mark.parametrize(
    "where",
    [
        "usr/lib64", "lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/nvidia/current",
        "usr/lib/aarch64-linux-gnu/nvidia", "usr/lib", "usr/lib/wsl/lib", "lib",
    ],
)  # fmt: skip
def test_the_drivers_library_is_found_where_distributions_put_it(tmp_path: Path, where: str) -> None:
    """HAMi#1153, NVIDIA/k8s-device-plugin#1149, #1371: it lay elsewhere, and the node had no cards."""
    (cards,) = asked(tmp_path, TWO, "cards", where=where)
    assert [card["uuid"] for card in cards["cards"]] == ["GPU-a", "GPU-b"]


def test_a_library_of_another_word_size_is_passed_over(tmp_path: Path) -> None:
    other = tmp_path / "root/usr/lib64/libnvidia-ml.so.1"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(64))
    (cards,) = asked(tmp_path, TWO, "cards", where="usr/lib")
    assert [card["uuid"] for card in cards["cards"]] == ["GPU-a", "GPU-b"]
