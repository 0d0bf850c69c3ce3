"""Kubernetes quantities as exact whole numbers (reports B13, B14)."""

import pytest

from hami.core.units import parse_whole, read_whole


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("3000", 3000),
        ("5k", 5000),
        ("3e3", 3000),
        ("3E3", 3000),
        ("1M", 1_000_000),
        ("3000m", 3),
        ("1.5k", 1500),
        ("2.", 2),
        (".5k", 500),
        ("+7", 7),
        ("-1", -1),
        ("16Gi", 16 * 1024**3),
        ("1Ei", 1024**6),
        ("1E", 10**18),
        ("18014398509481985", 2**54 + 1),
        ("99999999999999999999999", 99999999999999999999999),
        (16, 16),
        (2.0, 2),
        (1e3, 1000),
        ("5e-0", 5),
        ("50e-1", 5),
    ],
)
def test_whole_numbers_are_read_exactly(text: str | int | float, number: int) -> None:
    assert parse_whole(text) == number


@pytest.mark.parametrize(
    "text",
    ["", " ", "2.5", "500m", "12.5", "1Kib", "abc", "1e", "1eX", "1e999", "--1", "1 Gi", "٣", "1" * 65, 2.5, "."],
)
def test_other_texts_are_refused_with_a_sentence(text: str | float) -> None:
    with pytest.raises(ValueError, match=r"not a quantity|not a whole number|out of range"):
        parse_whole(text)


def test_the_suffix_is_kept_for_messages() -> None:
    assert read_whole("16Gi").binary_suffix
    assert read_whole("5k").suffix == "k"
    assert read_whole("3e3").suffix == ""
