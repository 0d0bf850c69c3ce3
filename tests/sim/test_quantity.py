"""Quantities: the canonical texts of the real server, and that rewriting never changes the value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.sim import quantity


@pytest.mark.parametrize(
    ("given_text", "canonical"),
    [
        (3000, "3k"),
        ("3000", "3k"),
        (1, "1"),
        ("0", "0"),
        ("0.5", "500m"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("512Ki", "512Ki"),
        ("1000Ki", "1000Ki"),
        ("1e3", "1e3"),
        ("1000000", "1M"),
        ("16384", "16384"),
        ("100n", "100n"),
    ],
)
def test_canonical_text(given_text: str | int, canonical: str) -> None:
    assert quantity.canonical(given_text) == canonical


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1GiB", "--1", "1K", "."])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="regular expression"):
        quantity.canonical(text)


@given(st.integers(0, 10**15), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_canonical_keeps_the_value_and_is_stable(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    once = quantity.canonical(text)
    assert quantity.parse(once) == quantity.parse(text)
    assert quantity.canonical(once) == once
