"""Hardware profiles: the world's reader and our node side's reader see the same machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.core.errors import ConfigError
from hami.nvml.profile_file import find_profile
from hami.nvml.simulated import SimulatedProbe
from hami.sim import profiles


@pytest.mark.parametrize("name", profiles.names())
async def test_both_readers_agree(name: str) -> None:
    profile = profiles.load(name)
    probe = SimulatedProbe(find_profile(name), "n1")
    cards = await probe.cards()
    assert profile.name == name
    assert len(cards.cards) == profile.card_count
    assert sum(card.memory_bytes or 0 for card in cards.cards) == profile.memory_mib * 1024 * 1024
    assert cards.driver_version == profile.driver_version
    assert len({card.uuid for card in cards.cards}) == profile.card_count
    await probe.close()


@pytest.mark.parametrize("name", profiles.names())
def test_profiles_are_possible_machines(name: str) -> None:
    for kind in profiles.load(name).cards:
        assert isinstance(kind.numa, int) or len(kind.numa) == kind.count
        for profile in kind.mig_profiles:
            assert profile.memory_mib <= (kind.memory_mib or 0)
            assert all(start + size <= 8 for start, size in profile.placements)
            assert profile.placements


def test_the_named_profiles_are_there() -> None:
    wanted = {"t4", "rtx3090", "a10", "l40s", "a100", "a100-80gb", "h100", "h200", "b200", "mixed"}
    assert wanted <= set(profiles.names())
    assert profiles.load("rtx3090").cards[0].memory_mib == 24576


@pytest.mark.parametrize("text", ["name: x\ncards: 3\n", "name: [\n", "cards: []\n"])
def test_bad_profiles_are_refused_with_their_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        profiles.load(str(path))
    with pytest.raises(ConfigError, match="known names are"):
        profiles.load("nothing")
