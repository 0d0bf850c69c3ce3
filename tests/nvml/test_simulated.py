"""The profile-driven stand-in: facts, ids, faults, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hami.core.errors import ConfigError, NvmlError
from hami.core.model import MigProfileOffer
from hami.nvml.probe import CRITICAL_ERROR, DeviceProbe, HealthEvent, open_probe
from hami.nvml.profile_file import find_profile, profiles_dir, read_profile
from hami.nvml.simulated import made_uuid

TWO_KINDS = """
name: mixed
cards:
  - {model: NVIDIA A100-SXM4-40GB, count: 2, memory_mib: 40960, numa: [0, 1], nvlink: 4,
     mig_profiles: [{slices: 1, memory_mib: 4864, slice_count: 1, multiprocessors: 14, placements: [[0, 1], [1, 1]]}]}
  - {model: Tesla T4, memory_mib: 15360, numa: 1}
"""


def profile(folder: Path, text: str) -> Path:
    path = folder / "profile.yaml"
    path.write_text(text)
    return path


def opened(folder: Path, text: str = TWO_KINDS, node: str = "n1") -> DeviceProbe:
    return open_probe(f"sim:{profile(folder, text)}", node_name=node)


async def test_cards_are_numbered_over_all_kinds(tmp_path: Path) -> None:
    cards = (await opened(tmp_path).cards()).cards
    assert [(card.index, card.name, card.memory_bytes, card.numa, card.minor) for card in cards] == [
        (0, "NVIDIA A100-SXM4-40GB", 40960 * 1024 * 1024, 0, 0),
        (1, "NVIDIA A100-SXM4-40GB", 40960 * 1024 * 1024, 1, 1),
        (2, "Tesla T4", 15360 * 1024 * 1024, 1, 2),
    ]
    assert isinstance(cards[0].mig_profiles[0], MigProfileOffer)
    assert len(cards[0].mig_profiles[0].placements) == 2


async def test_ids_are_equal_at_every_start_and_different_on_every_node(tmp_path: Path) -> None:
    first = [card.uuid for card in (await opened(tmp_path).cards()).cards]
    again = [card.uuid for card in (await opened(tmp_path).cards()).cards]
    other = [card.uuid for card in (await opened(tmp_path, node="n2").cards()).cards]
    assert first == again
    assert len({*first, *other}) == 6
    assert all(each.startswith("GPU-") and len(each) == 40 for each in first)


async def test_pairs_know_links_and_numa(tmp_path: Path) -> None:
    pairs = await opened(tmp_path).pairs()
    assert [(pair.level, pair.links_forward, pair.links_back) for pair in pairs] == [
        ("system", 4, 4),
        ("system", 0, 0),
        ("node", 0, 0),
    ]


async def test_faults_come_and_go_with_the_file(tmp_path: Path) -> None:
    probe = opened(tmp_path)
    assert await probe.lost() == {}
    profile(tmp_path, TWO_KINDS + "faults: {lost: [1], unreadable: [2]}\n")
    assert list(await probe.lost()) == [made_uuid("n1", 1)]
    cards = await probe.cards()
    assert [card.index for card in cards.cards] == [0, 1]
    assert cards.problems == ("card 2: Unknown Error",)
    profile(tmp_path, TWO_KINDS + "faults: {driver: gone}\n")
    with pytest.raises(NvmlError):
        await probe.cards()
    profile(tmp_path, TWO_KINDS)
    assert len((await probe.cards()).cards) == 3


async def test_each_error_event_happens_once(tmp_path: Path) -> None:
    probe = opened(tmp_path)
    waiting = asyncio.create_task(probe.events(10))
    await asyncio.sleep(0)
    profile(tmp_path, TWO_KINDS + "faults: {xids: [{index: 0, xid: 79, id: a}]}\n")
    assert await waiting == (HealthEvent(made_uuid("n1", 0), CRITICAL_ERROR, 79),)
    assert await probe.events(0) == ()


@pytest.mark.parametrize("source", ["", "sim", "sim:", "real:x", "fake"])
def test_other_sources_are_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="real and sim:PROFILE"):
        open_probe(source)


def test_an_unknown_profile_names_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "a100.yaml").write_text(TWO_KINDS)
    (tmp_path / "t4.yaml").write_text(TWO_KINDS)
    with pytest.raises(ConfigError, match="known are a100, t4"):
        find_profile("v100", tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        open_probe(f"sim:{tmp_path}/absent.yaml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cards: []", "cards"),
        ("cards: [{model: x}]", "memory_mib"),
        ("cards: [{model: x, memory_mib: -1}]", "memory_mib"),
        ("cards: [", "cannot be read"),
    ],
)
def test_a_bad_profile_is_named_with_its_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        opened(tmp_path, text)


def test_profiles_that_come_with_hami_can_be_read() -> None:
    for path in profiles_dir().glob("*.yaml"):
        assert read_profile(path).cards, path


BUSY = """
cards:
  - {model: Tesla T4, count: 2, memory_mib: 15360, used_mib: 300, gpu_percent: 40}
  - {model: GB10, memory_mib: null}
faults: {lost: [1]}
"""


async def test_loads_of_cards_that_answer(tmp_path: Path) -> None:
    loads = await opened(tmp_path, BUSY).loads()
    assert [(load.index, load.name, load.memory_used_bytes, load.gpu_percent) for load in loads] == [
        (0, "Tesla T4", 300 * 1024 * 1024, 40),
        (2, "GB10", None, 0),
    ]
