"""The programs under upstream's names: what they show of the share, and that they are refused over it."""

from __future__ import annotations

import pytest

from tests.shim.conftest import ContainerFactory
from tests.shim.container import card, used_values
from tests.shim.harness import MIB

DEVICE = (
    "test_alloc",
    "test_alloc_managed",
    "test_alloc_pitch",
    "test_create_array",
    "test_create_3d_array",
)
HOST = ("test_alloc_host", "test_host_alloc", "test_host_register")


@pytest.mark.parametrize("program", DEVICE)
def test_device_memory_is_shown_and_given_back(container: ContainerFactory, program: str) -> None:
    done = container(limit_mib=100).run(program, 64)
    assert done.returncode == 0, done.stdout
    assert used_values(done) == {"before": 0, "held": 64 * MIB, "after": 0}
    assert f"total={100 * MIB}" in done.stdout


@pytest.mark.parametrize("program", [*DEVICE, "test_mem_create"])
def test_over_the_share_is_refused_with_out_of_memory(container: ContainerFactory, program: str) -> None:
    box = container(limit_mib=100)
    refused = box.run(program, 128)
    assert refused.returncode == 2, refused.stdout
    assert "-> 2" in refused.stdout
    assert box.run(program, 128, shim=False).returncode == 0  # negative control


@pytest.mark.parametrize("program", HOST)
def test_host_memory_is_not_device_memory(container: ContainerFactory, program: str) -> None:
    done = container(limit_mib=16).run(program, 64)
    assert done.returncode == 0, done.stdout
    assert used_values(done) == {"before": 0, "held": 0, "after": 0}


def test_mem_create_on_four_threads_fits(container: ContainerFactory) -> None:
    assert container(limit_mib=256).run("test_mem_create", 64).returncode == 0


def test_processes_of_a_container_share_its_limit(container: ContainerFactory) -> None:
    box = container(limit_mib=100)
    with box.holding(64):
        assert box.run("test_alloc", 48).returncode == 2
        fits = box.run("test_alloc", 36)
        assert fits.returncode == 0
        assert used_values(fits)["before"] == 64 * MIB
        assert box.run("test_alloc", 48, shim=False).returncode == 0  # negative control
    assert box.run("test_alloc", 100).returncode == 0


def test_another_container_on_the_card_is_not_disturbed(container: ContainerFactory) -> None:
    first = container(limit_mib=100)
    second = container(limit_mib=200, machine=first.machine)
    with first.holding(100):
        done = second.run("test_alloc", 200)
        assert done.returncode == 0
        assert used_values(done) == {"before": 0, "held": 200 * MIB, "after": 0}


def test_no_limit_shows_the_whole_card_and_what_others_hold(container: ContainerFactory) -> None:
    limited = container(limit_mib=100)
    free = container(limit_mib=None, machine=limited.machine)
    with limited.holding(100):
        done = free.run("test_alloc", 200)
        assert used_values(done)["before"] == 100 * MIB
        assert f"total={16384 * MIB}" in done.stdout


def test_limit_above_the_card_shows_the_card(container: ContainerFactory) -> None:
    done = container(limit_mib=32768).run("test_alloc", 64)
    assert f"total={16384 * MIB}" in done.stdout


def test_zero_means_no_limit(container: ContainerFactory) -> None:
    assert container(limit_mib=0).run("test_alloc", 4096).returncode == 0


def test_the_card_can_be_full_before_the_share_is(container: ContainerFactory) -> None:
    first = container(limit_mib=12000)
    second = container(limit_mib=12000, machine=first.machine)
    with first.holding(12000):
        assert second.run("test_alloc", 6000).returncode == 2
        done = second.run("test_alloc", 4000)
        assert used_values(done)["after"] == 12000 * MIB - 4384 * MIB  # free is the smaller of share and card


def test_oversubscription_spills_into_host_memory(container: ContainerFactory) -> None:
    """A share larger than the card works only where the plugin said so (HAMi#705, #1128, HAMi-core#69)."""
    small = [card(0, memory_mib=1000)]
    over = container(limit_mib=2000, cards=small, CUDA_OVERSUBSCRIBE="true")
    done = over.run("test_alloc", 1500)
    assert done.returncode == 0
    assert used_values(done)["held"] == 1500 * MIB
    assert f"total={2000 * MIB}" in done.stdout
    assert over.run("test_alloc", 2100).returncode == 2
    assert container(limit_mib=2000, cards=small).run("test_alloc", 1500).returncode == 2
