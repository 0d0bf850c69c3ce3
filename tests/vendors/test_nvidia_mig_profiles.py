"""MIG profiles that a card registers (spec/node 5.2)."""

import pytest

from hami.core.model import MigPlacement, MigProfileOffer
from hami.vendors.nvidia.config import MigAllowlistEntry
from hami.vendors.nvidia.mig_profiles import (
    AllowedProfiles,
    allowed_profiles,
    find_offer,
    model_allowed,
    model_matches,
    profile_name,
    profile_slices,
    without_places,
)

A100 = (
    MigProfileOffer(1, 9728, 1, 14, tuple(MigPlacement(start, 1) for start in range(7))),
    MigProfileOffer(2, 19968, 2, 28, tuple(MigPlacement(start, 2) for start in (0, 2, 4))),
    MigProfileOffer(3, 40192, 3, 42, (MigPlacement(0, 4), MigPlacement(4, 4))),
    MigProfileOffer(7, 80896, 7, 98, (MigPlacement(0, 8),)),
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
    offers = (MigProfileOffer(7, 40000, 7, 98, tuple(MigPlacement(start, 4) for start in (0, 2, 4))),)
    assert allowed_profiles("A100", offers, ALLOWLIST).instances == 2


def test_other_models_and_cards_without_mig_have_none() -> None:
    assert allowed_profiles("Tesla T4", A100, ALLOWLIST) == AllowedProfiles()
    assert allowed_profiles("A100", (), ALLOWLIST) == AllowedProfiles(missing=("7g.40gb",))


@pytest.mark.parametrize(("name", "slices"), [("1g.10gb", 1), ("7g.79gb", 7), ("1g", None), ("g.1", None), ("", None)])
def test_profile_names(name: str, slices: int | None) -> None:
    assert profile_slices(name) == slices


@pytest.mark.parametrize(
    ("slices", "memory_mib", "card_memory_mib", "name"),
    [
        (1, 4864, 40960, "1g.5gb"),
        (2, 9984, 40960, "2g.10gb"),
        (3, 20096, 40960, "3g.20gb"),
        (7, 40448, 40960, "7g.40gb"),
        (1, 9728, 81920, "1g.10gb"),
        (7, 80896, 81920, "7g.80gb"),
        (1, 16384, 143771, "1g.18gb"),
        (3, 71424, 143771, "3g.71gb"),
        (1, 5952, 24576, "1g.6gb"),
    ],
)
def test_names_of_profiles(slices: int, memory_mib: int, card_memory_mib: int, name: str) -> None:
    assert profile_name(slices, memory_mib, card_memory_mib) == name


def test_names_of_variants() -> None:
    assert profile_name(1, 4864, 40960, media=True) == "1g.5gb+me"
    assert profile_name(2, 9984, 40960, compute=1) == "1c.2g.10gb"
    assert profile_name(2, 9984, 40960, compute=2) == "2g.10gb"


A100_40 = (
    MigProfileOffer(1, 4864, 1, 14, (MigPlacement(0, 1),), number=0),
    MigProfileOffer(3, 20096, 3, 42, (MigPlacement(0, 4), MigPlacement(4, 4)), number=2),
    MigProfileOffer(1, 9984, 1, 14, (MigPlacement(0, 2),), number=9),
    MigProfileOffer(1, 4864, 1, 14, (MigPlacement(6, 1),), number=7, media=True),
)


@pytest.mark.parametrize(
    ("name", "number"),
    [("1g.5gb", 0), ("1g.10gb", 9), ("1g.5gb+me", 7), ("1g.6gb", 0), ("3g.19gb", 2), ("2g.10gb", None), ("x", None)],
)
def test_a_name_means_the_profile_called_so_else_the_plain_one_of_its_size(name: str, number: int | None) -> None:
    offer = find_offer(name, A100_40, 40960)
    assert (offer.number if offer else None) == number


def test_without_an_allowlist_all_plain_profiles_are_allowed() -> None:
    allowed = allowed_profiles("NVIDIA A100-SXM4-40GB", A100_40, (), 40960)
    assert [each.name for each in allowed.profiles] == ["1g.5gb", "3g.20gb", "1g.10gb"]


@pytest.mark.parametrize(
    ("part", "model", "matches"),
    [
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", True),
        ("A100-40GB-PCIe", "NVIDIA A100-PCIE-40GB", True),
        ("A100-SXM", "NVIDIA A100-SXM4-40GB", True),
        ("A100 80GB", "NVIDIA A100-SXM4-80GB", True),
        ("A30", "NVIDIA A30", True),
        ("H20", "NVIDIA H200", False),
        ("H200", "NVIDIA H20", False),
        ("A10", "NVIDIA A100-SXM4-40GB", False),
        ("A10", "NVIDIA A10G", False),
        ("100", "NVIDIA A100", False),
        ("", "NVIDIA A100", False),
    ],
)
def test_t31_models_match_by_words(part: str, model: str, matches: bool) -> None:
    assert model_matches(part, model) is matches


H100_80 = (
    MigProfileOffer(1, 9984, 1, 16, (MigPlacement(0, 1),)),
    MigProfileOffer(2, 20096, 2, 32, (MigPlacement(0, 2),)),
    MigProfileOffer(3, 40448, 3, 60, (MigPlacement(0, 4),)),
    MigProfileOffer(7, 81152, 7, 132, (MigPlacement(0, 8),)),
)
H100_LIST = (
    MigAllowlistEntry(("H100-94GB",), ("1g.12gb", "2g.24gb", "3g.47gb", "7g.94gb")),
    MigAllowlistEntry(("H100-PCIE-80GB", "H100-SXM5-80GB"), ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")),
)


def test_t31_a_product_whose_name_the_list_writes_otherwise_is_known_by_its_profiles() -> None:
    allowed = allowed_profiles("NVIDIA H100 80GB HBM3", H100_80, H100_LIST, 81559)
    assert [each.name for each in allowed.profiles] == ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"]
    assert allowed_profiles("NVIDIA A100 80GB", H100_80, H100_LIST, 81559) == AllowedProfiles()


def test_places_that_others_hold_are_not_offered() -> None:
    allowed = allowed_profiles("NVIDIA A100-SXM4-80GB", A100, ALLOWLIST)
    left = without_places(allowed, (MigPlacement(5, 1),))
    assert [(each.name, [place.start for place in each.placements]) for each in left.profiles] == [
        ("1g.10gb", [0, 1, 2, 3, 4, 6]),
        ("3g.40gb", [0]),
    ]
    assert left.instances == 6
    assert without_places(allowed, ()) == allowed


@pytest.mark.parametrize(
    ("model", "allowed"),
    [("NVIDIA H100 80GB HBM3", True), ("NVIDIA H100 PCIe", True), ("NVIDIA H200", False), ("Tesla T4", False)],
)
def test_a_card_of_which_only_the_name_is_known(model: str, allowed: bool) -> None:
    assert model_allowed(model, H100_LIST) is allowed
    assert model_allowed(model, ())
