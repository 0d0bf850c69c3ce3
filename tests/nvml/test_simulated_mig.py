"""Simulated MIG: what the driver would refuse, what outlives a process, and random lives against an oracle."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from hami.core.errors import NvmlError
from hami.core.model import MigPlacement
from hami.nvml.probe import CardFacts, DeviceProbe, open_probe
from hami.nvml.simulated import made_uuid
from hami.nvml.simulated_mig import mig_uuid
from tests.nvml.mig_cards import MIG_CARDS

A, B, T4 = (made_uuid("n1", index) for index in range(3))
ONE, TWO, THREE, SEVEN = 0, 1, 2, 4


def opened(folder: Path, more: str = "") -> DeviceProbe:
    path = folder / "profile.yaml"
    path.write_text(MIG_CARDS + more)
    return open_probe(f"sim:{path}", node_name="n1", state_dir=folder / "state")


async def card(probe: DeviceProbe, uuid: str = A) -> CardFacts:
    return next(each for each in (await probe.cards()).cards if each.uuid == uuid)


async def test_an_instance_is_made_seen_and_taken_away(tmp_path: Path) -> None:
    probe = opened(tmp_path)
    with pytest.raises(NvmlError, match="Not Supported"):
        await probe.create_mig(A, ONE, MigPlacement(0, 1))
    await probe.set_mig_mode(A, enabled=True)
    made = await probe.create_mig(A, THREE, MigPlacement(4, 4))
    seen = await card(probe)
    assert seen.mig_enabled
    assert seen.mig_instances == (made,)
    assert (made.slices, made.memory_mib, made.placement) == (3, 20096, MigPlacement(4, 4))
    assert [(each.uuid, each.slices, each.index) for each in made.compute] == [(mig_uuid(A, made.id, 0), 3, 0)]
    assert not (await card(probe, B)).mig_enabled
    await probe.destroy_mig(A, made.id)
    assert (await card(probe)).mig_instances == ()
    again = await probe.create_mig(A, THREE, MigPlacement(4, 4))
    assert again.compute[0].uuid == made.compute[0].uuid


async def test_instances_outlive_the_process(tmp_path: Path) -> None:
    probe = opened(tmp_path)
    await probe.set_mig_mode(A, enabled=True)
    made = await probe.create_mig(A, TWO, MigPlacement(2, 2))
    assert (await card(opened(tmp_path))).mig_instances == (made,)


@pytest.mark.parametrize(
    ("profile", "placement", "said"),
    [
        (TWO, MigPlacement(1, 2), "Invalid Argument"),
        (TWO, MigPlacement(0, 1), "Invalid Argument"),
        (ONE, MigPlacement(4, 1), "Insufficient Resources"),
        (SEVEN, MigPlacement(0, 8), "Insufficient Resources"),
        (6, MigPlacement(0, 8), "Not Supported"),
    ],
)
async def test_what_does_not_fit_is_refused(tmp_path: Path, profile: int, placement: MigPlacement, said: str) -> None:
    probe = opened(tmp_path)
    await probe.set_mig_mode(A, enabled=True)
    made = await probe.create_mig(A, THREE, MigPlacement(4, 4))
    with pytest.raises(NvmlError, match=said):
        await probe.create_mig(A, profile, placement)
    assert (await card(probe)).mig_instances == (made,)


async def test_what_is_in_use_stays(tmp_path: Path) -> None:
    probe = opened(tmp_path)
    await probe.set_mig_mode(A, enabled=True)
    made = await probe.create_mig(A, ONE, MigPlacement(0, 1))
    busy = opened(tmp_path, f"faults: {{in_use: [{made.compute[0].uuid}, {B}]}}\n")
    assert [each.uuid for each in await busy.processes()] == [made.compute[0].uuid, B]
    with pytest.raises(NvmlError, match="In use"):
        await busy.destroy_mig(A, made.id)
    with pytest.raises(NvmlError, match="stays off: In use"):
        await busy.set_mig_mode(B, enabled=True)
    with pytest.raises(NvmlError, match="has instances"):
        await busy.set_mig_mode(A, enabled=False)
    with pytest.raises(NvmlError, match="Not Supported"):
        await busy.set_mig_mode(T4, enabled=True)
    with pytest.raises(NvmlError, match="Not Found"):
        await busy.destroy_mig(A, 9)
    assert (await card(busy)).mig_instances == (made,)


async def test_variants_of_a_size_have_numbers_of_their_own(tmp_path: Path) -> None:
    profiles = (await card(opened(tmp_path))).mig_profiles
    assert [(each.number, each.slices, each.memory_mib, each.media) for each in profiles] == [
        (0, 1, 4864, False),
        (1, 2, 9984, False),
        (2, 3, 20096, False),
        (4, 7, 40448, False),
        (11, 1, 9984, False),
        (12, 1, 4864, True),
    ]


async def test_a_call_that_is_cut_off_leaves_a_half_made_instance(tmp_path: Path) -> None:
    await opened(tmp_path).set_mig_mode(A, enabled=True)
    slow = opened(tmp_path, "faults: {mig_step_s: 0.3}\n")
    call = asyncio.create_task(slow.create_mig(A, ONE, MigPlacement(0, 1)))
    async with asyncio.timeout(60):
        while not (await card(slow)).mig_instances:  # noqa: ASYNC110 - the file is not ours to signal
            await asyncio.sleep(0.001)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    (half,) = (await card(slow)).mig_instances
    assert half.compute == ()
    await slow.destroy_mig(A, half.id)
    assert (await card(slow)).mig_instances == ()


async def test_a_layout_is_there_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        MIG_CARDS.replace("    count: 2\n", "    count: 2\n    mig: true\n    mig_layout: [[3, 0], [1, 4], [5, 0]]\n")
    )
    probe = open_probe(f"sim:{path}", node_name="n1")
    found = (await card(probe)).mig_instances
    assert [(each.slices, each.placement.start, each.compute[0].index) for each in found] == [(3, 0, 0), (1, 4, 1)]
    await probe.destroy_mig(A, found[0].id)
    assert [each.id for each in (await card(probe)).mig_instances] == [found[1].id]
    assert len((await card(probe, B)).mig_instances) == 2


async def test_a_driver_that_refuses_says_why(tmp_path: Path) -> None:
    probe = opened(tmp_path, "faults: {mig_refused: Unknown Error}\n")
    with pytest.raises(NvmlError, match="Unknown Error"):
        await probe.set_mig_mode(A, enabled=True)


PLACES = (
    [(ONE, start, 1) for start in range(7)] + [(TWO, start, 2) for start in (0, 2, 4)] + [(THREE, 0, 4), (SEVEN, 0, 8)]
)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(PLACES)), max_size=30))
@settings(max_examples=60, deadline=None)
async def test_random_lives_never_overlap(steps: list[tuple[bool, tuple[int, int, int]]]) -> None:
    """The oracle is a list of memory slices: a step works exactly where those it needs are free."""
    with tempfile.TemporaryDirectory() as folder:
        probe = opened(Path(folder))
        await probe.set_mig_mode(A, enabled=True)
        held: dict[int, set[int]] = {}
        for create, (profile, start, size) in steps:
            wanted = set(range(start, start + size))
            if create:
                free = not any(wanted & slices for slices in held.values())
                try:
                    made = await probe.create_mig(A, profile, MigPlacement(start, size))
                except NvmlError:
                    assert not free
                else:
                    assert free
                    held[made.id] = wanted
            elif held:
                oldest = next(iter(held))
                await probe.destroy_mig(A, oldest)
                del held[oldest]
            seen = {
                each.id: set(range(each.placement.start, each.placement.start + each.placement.size))
                for each in (await card(probe)).mig_instances
            }
            assert seen == held
