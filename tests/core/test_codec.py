"""Every annotation form that a HAMi release wrote, byte by byte and back (spec/scheduler 2.3 to 2.5, node 12)."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core.codec import (
    MigAllocation,
    RegisterForm,
    decode_mig_allocations,
    decode_pair_scores,
    decode_register,
    decode_shares,
    encode_mig_allocations,
    encode_pair_scores,
    encode_register,
    encode_shares,
    parse_bool,
    physical_id,
)
from hami.core.errors import DecodeError
from hami.core.model import INT32_MAX, Device, DeviceShare, MigPlacement, MigProfile

GOLDEN = Path(__file__).parent.parent / "golden" / "annotations"
A100 = "NVIDIA A100-SXM4-80GB"
SLICE = MigProfile("1g.10gb", 9728, 14, 1, (MigPlacement(0, 1),))


def golden(name: str) -> str:
    return (GOLDEN / name).read_text().removesuffix("\n")


def share(card: str, memory_mib: int = 3000, core_percent: int = 30) -> DeviceShare:
    return DeviceShare(card, "NVIDIA", memory_mib, core_percent)


def device(card: str = "GPU-a", **fields: object) -> Device:
    values: dict[str, object] = {
        "id": card, "index": 0, "slots": 10, "memory_mib": 32768, "core_percent": 100, "type": A100, "numa": 0,
        "healthy": True, "vendor": "NVIDIA", "mode": "hami-core", **fields,
    }  # fmt: skip
    return Device(**values)  # type: ignore[arg-type]


V100 = device("GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec", type="NVIDIA-Tesla V100-PCIE-32GB")
RTX_3090 = device("GPU-3090", memory_mib=73728, core_percent=300, type="NVIDIA-NVIDIA GeForce RTX 3090")
MIXED = (
    device("GPU-0055"),
    device("GPU-0056", index=1, slots=7, memory_mib=81920, numa=1, mode="mig", mig_profiles=(SLICE,)),
)
ALLOCATIONS = (
    MigAllocation(0, 0, "GPU-a", "3g.40gb", MigPlacement(0, 4)),
    MigAllocation(1, 0, "GPU-a", "1g.10gb", MigPlacement(6, 1), "MIG-1", 0, 0),
)
INIT_AND_TWO_APPS = (
    (),
    (share("GPU-0fc3aaaa-0000-0000-0000-000000000001"),),
    (share("GPU-0fc3aaaa-0000-0000-0000-000000000002", 5000, 0),),
)


@pytest.mark.parametrize(
    ("file", "devices", "form"),
    [
        ("register-2.4.1.csv7", (V100,), RegisterForm.CSV7),
        ("register-2.4.1-rtx3090.csv7", (RTX_3090,), RegisterForm.CSV7),
        ("register-2.5.csv9", (V100,), RegisterForm.CSV9),
        ("register-2.10.json", MIXED, RegisterForm.JSON),
    ],
)
def test_registers_match_their_golden_files(file: str, devices: tuple[Device, ...], form: RegisterForm) -> None:
    text = golden(file)
    assert encode_register(devices, form) == text
    assert decode_register(text, "NVIDIA", "node n1") == devices


@pytest.mark.parametrize(
    ("file", "shares"),
    [
        ("devices-init-and-two-apps", INIT_AND_TWO_APPS),
        ("devices-two-cards", ((share("GPU-a"), share("GPU-b")),)),
        ("devices-app-without-gpu", ((share("GPU-b"),), ())),
    ],
)
def test_allocation_lists_match_their_golden_files(file: str, shares: tuple[tuple[DeviceShare, ...], ...]) -> None:
    assert encode_shares(shares) == golden(file)
    assert decode_shares(golden(file), "pod default/p") == shares


def test_mig_reservations_and_scores_match_their_golden_files() -> None:
    assert encode_mig_allocations(ALLOCATIONS) == golden("mig-allocations.json")
    assert decode_mig_allocations(golden("mig-allocations.json"), "pod default/p") == ALLOCATIONS
    scores = {"GPU-a": {"GPU-b": 40}}
    assert encode_pair_scores(scores) == golden("score.json")
    assert decode_pair_scores(golden("score.json"), "node n1") == scores


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        # 2.4.1: containers without devices after one with devices.
        ("GPU-a,NVIDIA,1,0:;,,0,0:;GPU-b,NVIDIA,2,0:;", ((share("GPU-a", 1, 0),), (), (share("GPU-b", 2, 0),))),
        # 2.10's plugin re-encodes the piece after the last separator.
        (";GPU-a,NVIDIA,3000,30:;;", ((), (share("GPU-a"),), ())),
        # Fields beyond the fourth, and a list that does not end in a separator.
        ("GPU-a,NVIDIA,3000,30,x:;GPU-b,NVIDIA,3000,30:", ((share("GPU-a"),), (share("GPU-b"),))),
        ("GPU-a[0-3],NVIDIA,3000,30:;", ((share("GPU-a[0-3]"),),)),
        ("", ()),
        (";", ((),)),
    ],
)
def test_older_writers_are_read(text: str, shares: tuple[tuple[DeviceShare, ...], ...]) -> None:
    assert decode_shares(text, "pod default/p") == shares


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("??", "missing fields, do not use nodeName"),
        ("GPU-a,NVIDIA:;", "has 2 of 4 fields"),
        ("GPU-a,NVIDIA,-5,0:;", "memory '-5'"),
        ("GPU-a,NVIDIA,1,x:;", "cores 'x'"),
        ("GPU-a,NVIDIA,2147483648,0:;", "memory '2147483648'"),
        ("GPU-a,NVIDIA,99999999999999,0:;", "memory '99999999999999'"),
        ("GPU a,NVIDIA,1,0:;", "device id 'GPU a'"),
    ],
)
def test_b37_broken_allocation_lists_name_the_value(text: str, problem: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_shares(text, "pod default/p")
    assert problem in caught.value.problem
    assert caught.value.subject == "pod default/p"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "neither a JSON register nor a text register"),
        ("garbage", "'garbage' is neither"),
        ("garbage:", "has 1 fields"),
        ("GPU-a,10,abc,100,NVIDIA-X,0,true:", "memory of GPU-a 'abc'"),
        ("GPU-a,10,-1,100,NVIDIA-X,0,true:", "memory of GPU-a '-1'"),
        ("GPU-a,2147483648,1,100,NVIDIA-X,0,true:", "count of GPU-a '2147483648'"),
        ("GPU-a,10,1,100,NVIDIA-X,0,maybe:", "health of GPU-a is 'maybe'"),
        ("GPU-a,10,1,100,NVIDIA-X,x,true:", "numa of GPU-a 'x'"),
        ("GPU-a,10,1,100,NVIDIA-X,0,true,-1,mig:", "index of GPU-a '-1'"),
        (",10,1,100,NVIDIA-X,0,true:", "id ''"),
        ("[", "not a JSON register"),
        ('[{"id":1}]', "not a JSON register"),
        ("[{}]", "id ''"),
        ('[{"id":"GPU-a","devmem":-1}]', "devmem of GPU-a is -1"),
        ('[{"id":"GPU-a","devmem":2147483648}]', "devmem of GPU-a is 2147483648"),
        ('[{"id":"GPU-a","count":1.5}]', "not a JSON register"),
        ('[{"id":"GPU-a","numa":-2}]', "numa of GPU-a is -2"),
        ('[{"id":"a;b"}]', "id 'a;b'"),
        ('[{"id":"a","migProfiles":[{"name":"1g","placements":[{"start":0}]}]}]', "size of MIG profile '1g' of a"),
    ],
)
def test_b37_broken_registers_name_the_field_and_value(text: str, problem: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_register(text, "NVIDIA", "node n1")
    assert problem in caught.value.problem


def test_left_out_json_values_are_zero_and_unhealthy() -> None:
    text = '[{"id":"GPU-a","count":10,"devmem":1,"devcore":100,"type":"X"}]'
    (card,) = decode_register(text, "NVIDIA", "node n1")
    assert (card.index, card.numa, card.mode, card.healthy) == (0, 0, "", False)


def test_fields_of_other_writers_are_skipped() -> None:
    text = '[{"id":"GPU-a","health":true,"devicevendor":"x","custominfo":{"a":1},"devicepairscore":{},"later":[1]}]'
    (card,) = decode_register(text, "NVIDIA", "node n1")
    assert (card.vendor, card.healthy) == ("NVIDIA", True)


def test_of_several_cards_with_one_id_the_first_counts() -> None:
    text = encode_register(
        (device("GPU-a", memory_mib=1), device("GPU-b"), device("GPU-a", memory_mib=2)), RegisterForm.CSV9
    )
    assert [(card.id, card.memory_mib) for card in decode_register(text, "NVIDIA", "n")] == [
        ("GPU-a", 1),
        ("GPU-b", 32768),
    ]


def test_text_forms_blank_separators_out_of_the_type() -> None:
    text = encode_register((device(type="A,B:C <&>"),), RegisterForm.CSV7)
    assert text == "GPU-a,10,32768,100,A B C <&>,0,true:"
    assert "A,B:C \\u003c\\u0026\\u003e" in encode_register((device(type="A,B:C <&>"),), RegisterForm.JSON)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"placement": {"start": 0, "size": 0}}, "placement size is 0"),
        ({"placement": {"start": -1, "size": 1}}, "negative"),
        ({"migUUID": "MIG-1"}, "must be set together"),
        ({"profile": ""}, "empty"),
        ({"containerIndex": None}, "not a MIG reservation list"),
    ],
)
def test_broken_mig_reservations_raise(record: dict[str, object], problem: str) -> None:
    good = json.loads(golden("mig-allocations.json"))[0]
    with pytest.raises(DecodeError) as caught:
        decode_mig_allocations(json.dumps([{**good, **record}]), "pod default/p")
    assert problem in caught.value.problem


def test_a_repeated_mig_position_raises() -> None:
    with pytest.raises(DecodeError, match="position appears twice"):
        decode_mig_allocations(encode_mig_allocations((ALLOCATIONS[0], ALLOCATIONS[0])), "pod default/p")


def test_a_score_list_that_is_none_raises() -> None:
    with pytest.raises(DecodeError, match="not a pair score list"):
        decode_pair_scores("{}", "node n1")


def test_slice_suffixes_are_stripped_for_accounting() -> None:
    assert physical_id("GPU-a[1-0]") == "GPU-a"
    assert physical_id("GPU-a") == "GPU-a"


def test_booleans_are_read_like_upstream() -> None:
    assert [parse_bool(text) for text in ("1", "t", "T", "true", "TRUE", "True")] == [True] * 6
    assert [parse_bool(text) for text in ("0", "f", "false")] == [False] * 3
    assert [parse_bool(text) for text in ("yes", "", "tRUE")] == [None] * 3


ids = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="-_./"), min_size=1, max_size=12)
words = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="- ."), max_size=12)
int32 = st.integers(0, INT32_MAX)
shares = st.builds(DeviceShare, ids, words.filter(str.strip), int32, int32)
placements = st.builds(MigPlacement, st.integers(0, 12), st.integers(1, 12))
profiles = st.builds(MigProfile, words, int32, int32, int32, st.lists(placements, max_size=3).map(tuple))
devices = st.builds(
    Device,
    id=ids, index=int32, slots=int32, memory_mib=int32, core_percent=int32, type=words, numa=st.integers(-1, 8),
    healthy=st.booleans(), vendor=st.just("NVIDIA"), mode=st.sampled_from(["", "hami-core", "mig", "mps"]),
    mig_profiles=st.lists(profiles, max_size=2).map(tuple),
)  # fmt: skip
registers = st.lists(devices, min_size=1, max_size=5, unique_by=lambda card: card.id).map(tuple)


@settings(max_examples=60)
@given(st.lists(st.lists(shares, max_size=3).map(tuple), max_size=5).map(tuple))
def test_allocation_lists_survive_a_round_trip(pod: tuple[tuple[DeviceShare, ...], ...]) -> None:
    assert decode_shares(encode_shares(pod), "pod") == pod


@settings(max_examples=60)
@given(registers)
def test_json_registers_survive_a_round_trip(cards: tuple[Device, ...]) -> None:
    assert decode_register(encode_register(cards, RegisterForm.JSON), "NVIDIA", "node") == cards


@settings(max_examples=60)
@given(registers, st.sampled_from([RegisterForm.CSV7, RegisterForm.CSV9]))
def test_text_registers_survive_a_second_round_trip(cards: tuple[Device, ...], form: RegisterForm) -> None:
    """What the text form can carry survives: encoding what was decoded gives the same text."""
    text = encode_register(cards, form)
    decoded = decode_register(text, "NVIDIA", "node")
    assert encode_register(decoded, form) == text
    assert [(card.id, card.slots, card.memory_mib, card.core_percent, card.healthy) for card in decoded] == [
        (card.id, card.slots, card.memory_mib, card.core_percent, card.healthy) for card in cards
    ]


@settings(max_examples=60)
@given(st.text(max_size=60), st.sampled_from(["shares", "register", "mig", "scores"]))
def test_no_text_raises_anything_but_a_decode_error(text: str, reader: str) -> None:
    readers: dict[str, Callable[[], object]] = {
        "shares": lambda: decode_shares(text, "s"),
        "register": lambda: decode_register(text, "NVIDIA", "s"),
        "mig": lambda: decode_mig_allocations(text, "s"),
        "scores": lambda: decode_pair_scores(text, "s"),
    }
    with contextlib.suppress(DecodeError):
        readers[reader]()
