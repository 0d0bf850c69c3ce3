"""MIG profiles that a card registers (spec/node 5.2)."""

import pytest

from hami.core.model import MigPlacement
from hami.vendors.nvidia.config import MigAllowlistEntry
from hami.vendors.nvidia.mig_profiles import AllowedProfiles, ProfileOffer, allowed_profiles, profile_slices

A100 = (
    ProfileOffer(1, 9728, 1, 14, tuple(MigPlacement(start, 1) for start in range(7))),
    ProfileOffer(2, 19968, 2, 28, tuple(MigPlacement(start, 2) for start in (0, 2, 4))),
    ProfileOffer(3, 40192, 3, 42, (MigPlacement(0, 4), MigPlacement(4, 4))),
    ProfileOffer(7, 80896, 7, 98, (MigPlacement(0, 8),)),
)
ALLOWLIST = (
    MigAllowlistEntry(("A100-SXM4-80GB", "A100 80GB"), ("1g.10gb", "3g.40gb", "4g.40gb", "x", "7g.79gb")),
    MigAllowlistEntry(("A100",), ("7g.40gb",)),
)


def test_the_first_entry_that_names_the_model_decides() -> None:
    allowed = allowed_profiles("NVIDIA A100-SXM4-80GB", A100, ALLOWLIST)
    assert [(each.name, each.memory_mib, each.core_percent, each.slice_count) for each in allowed.profiles] == [
        ("1g.10gb", 9728, 15, 1),
        ("3g.40gb", 40192, 43, 3),
        ("7g.79gb", 80896, 100, 7),
    ]
    assert allowed.profiles[1].placements == (MigPlacement(0, 4), MigPlacement(4, 4))
    assert (allowed.instances, allowed.missing) == (7, ("4g.40gb", "x"))
    assert allowed_profiles("NVIDIA A100-PCIE-40GB", A100, ALLOWLIST).instances == 1


def test_overlapping_placements_are_not_counted_twice() -> None:
    offers = (ProfileOffer(7, 40000, 7, 98, tuple(MigPlacement(start, 4) for start in (0, 2, 4))),)
    assert allowed_profiles("A100", offers, ALLOWLIST).instances == 2


def test_other_models_and_cards_without_mig_have_none() -> None:
    assert allowed_profiles("Tesla T4", A100, ALLOWLIST) == AllowedProfiles()
    assert allowed_profiles("A100", (), ALLOWLIST) == AllowedProfiles(missing=("7g.40gb",))


@pytest.mark.parametrize(("name", "slices"), [("1g.10gb", 1), ("7g.79gb", 7), ("1g", None), ("g.1", None), ("", None)])
def test_profile_names(name: str, slices: int | None) -> None:
    assert profile_slices(name) == slices
