"""nvidia-ml-py and vgpu-info: what monitoring inside a container sees of its share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.shim.conftest import ContainerFactory
from tests.shim.container import Container, card, json_lines
from tests.shim.harness import MIB
from tests.shim.nvml_query import QUERY


def query(box: Container, *, shim: bool = True) -> dict[str, Any]:
    """What nvidia-ml-py sees in the container."""
    done = box.run([sys.executable, "-c", QUERY], shim=shim)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def box(container: ContainerFactory) -> Container:
    facts = "name=NVIDIA_A100 pci=00000000:3B:00.0 minor=0 utilization=7 cc=8.0"
    return container(limit_mib=1000, cards=[card(0, memory_mib=40960, reserved_mib=500, more=facts)])


@pytest.fixture
def held(box: Container) -> Iterator[int]:
    """A process of the container that holds 300 MiB."""
    with box.holding(300) as holder:
        yield holder.pid


def test_the_share_is_the_card(box: Container, held: int) -> None:
    (seen,) = query(box)["cards"]
    assert seen["v1"] == [1000 * MIB, 300 * MIB, 700 * MIB]
    total, reserved, used, free = seen["v2"]
    assert (total, used, free) == (1000 * MIB, 300 * MIB, 700 * MIB)
    assert reserved + used + free == total


def test_without_the_shim_the_whole_card_is_seen(box: Container, held: int) -> None:
    (seen,) = query(box, shim=False)["cards"]
    assert seen["v1"] == [40960 * MIB, 800 * MIB, 40160 * MIB]
    assert seen["v2"] == [40960 * MIB, 500 * MIB, 300 * MIB, 40160 * MIB]


def test_everything_else_is_the_drivers(box: Container) -> None:
    under, plain = query(box), query(box, shim=False)
    for facts in (under, plain):
        for seen in facts["cards"]:
            del seen["v1"], seen["v2"], seen["processes"]
    assert under == plain
    (seen,) = under["cards"]
    assert seen["name"] == "NVIDIA A100"
    assert seen["pci"] == "00000000:3B:00.0"
    assert "Not Supported" in seen["mig"]


def test_processes_of_the_container_are_listed(box: Container, held: int) -> None:
    (seen,) = query(box)["cards"]
    assert seen["processes"] == [[held, 300 * MIB]]


def test_use_above_a_lowered_limit_shows_no_negative_numbers(box: Container, held: int) -> None:
    with box.region.open("r+b") as file:
        file.seek(1600)
        file.write((100 * MIB).to_bytes(8, "little"))
    (seen,) = query(box)["cards"]
    total, used, free = seen["v1"]
    assert (total, used, free) == (100 * MIB, 100 * MIB, 0)


def test_cards_without_a_memory_query(container: ContainerFactory) -> None:
    """Unified-memory boards answer "not supported"; allocation still works within the share."""
    box = container(limit_mib=100, cards=[card(0, more="memory_query=unsupported")])
    assert box.run("test_alloc", 64).returncode == 0
    assert box.run("test_alloc", 128).returncode == 2
    query(box)


def test_nvml_alone_makes_no_region(box: Container) -> None:
    query(box)
    assert not box.region.exists()


def test_the_share_is_shown_before_anybody_used_it(box: Container) -> None:
    (seen,) = query(box)["cards"]
    assert seen["v1"] == [1000 * MIB, 0, 1000 * MIB]


def test_vgpu_info(box: Container, held: int) -> None:
    done = box.run([str(box.shim / "vgpu-info")])
    assert done.returncode == 0, done.stderr
    assert box.machine.cards[0].uuid in done.stdout
    assert str(held) in done.stdout
    assert str(300 * MIB) in done.stdout
    assert str(1000 * MIB) in done.stdout


def test_vgpu_info_without_a_region(box: Container) -> None:
    done = box.run([str(box.shim / "vgpu-info")], extra={"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/no/such/region"})
    assert done.returncode == 0, done.stderr
    assert "no process has used a card yet" in done.stdout
    assert box.machine.cards[0].uuid in done.stdout
    assert f"{1000 * MIB} (1000 MiB)" in done.stdout  # what is configured is shown all the same


def test_every_version_of_the_calls(box: Container, held: int) -> None:
    (seen,) = json_lines(box.run("nvml_view"))
    assert seen.pop("v1") == [1000 * MIB, 300 * MIB, 700 * MIB]
    assert seen.pop("v2") == [1000 * MIB, 300 * MIB, 700 * MIB]
    ours = {name for name in seen if "Compute" in name and "MPS" not in name} | {"list"}
    assert len(ours) == 4
    for name, answer in seen.items():
        assert answer == ([1, held, 300 * MIB] if name in ours else [0, 0, 0]), name
