"""The pure parts of MIG on the node: whose cards, which holds, what may be taken away."""

from __future__ import annotations

from hami.core.model import MigPlacement, MigProfileOffer
from hami.deviceplugin.mig_cards import allowed_on, may_be_mig_card, name_of, profile_of
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.static_mig import sort_cards
from hami.nvml.probe import CardFacts, MigInstanceFacts
from hami.vendors.nvidia.config import MigAllowlistEntry, NvidiaConfig
from hami.vendors.nvidia.names import MODE_MIG

GIB = 1 << 30
MIG_NODE = PluginSettings("n", mode=MODE_MIG)
LISTED = PluginSettings(
    "n", mode=MODE_MIG, nvidia=NvidiaConfig(mig_profile_allowlist=(MigAllowlistEntry(("A100",), ("1g.5gb",)),))
)
SILENT = CardFacts("GPU-a", 0, "NVIDIA A100-SXM4-40GB", 40 * GIB, mig_capable=True)
"""A card that names its profiles only while MIG mode is on."""


def test_a_card_that_names_no_profiles_yet_is_waited_for() -> None:
    assert may_be_mig_card(SILENT, MIG_NODE)
    assert may_be_mig_card(SILENT, LISTED)
    assert sort_cards([SILENT], LISTED).left_out == {"GPU-a": "MIG mode is not on yet"}


def test_a_card_that_can_do_no_mig_or_is_not_allowed_is_left_out() -> None:
    t4 = CardFacts("GPU-b", 1, "Tesla T4", 16 * GIB)
    a30 = CardFacts("GPU-c", 2, "NVIDIA A30", 24 * GIB, mig_capable=True)
    on = CardFacts("GPU-d", 3, "NVIDIA A100-SXM4-40GB", 40 * GIB, mig_capable=True, mig_enabled=True)
    left_out = sort_cards([t4, a30, on], LISTED).left_out
    assert left_out == {card.uuid: f"no allowed MIG profile for {card.name}" for card in (t4, a30, on)}


def test_names_where_the_driver_tells_no_memory() -> None:
    """The largest profile stands for the card."""
    profiles = (
        MigProfileOffer(1, 4864, 1, 14, (MigPlacement(0, 1),), 0),
        MigProfileOffer(7, 40448, 7, 98, (MigPlacement(0, 8),), 4),
    )
    card = CardFacts("GPU-a", 0, "A100", None, mig_capable=True, mig_profiles=profiles)
    assert [each.name for each in allowed_on(card, MIG_NODE).profiles] == ["1g.5gb", "7g.40gb"]
    assert name_of(card, MigInstanceFacts(1, 0, 1, 4864, MigPlacement(0, 1))) == "1g.5gb"
    assert profile_of(card, "7g.39gb") == profiles[1]
    assert profile_of(card, "2g.10gb") is None
