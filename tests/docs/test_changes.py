"""Fragments of the changelog are as CONTRIBUTING asks: a known kind, one sentence, under 20 words, said once."""

from __future__ import annotations

import collections
import tomllib
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

MOST_WORDS = 19
FRAGMENTS = sorted((ROOT / "changes").glob("*.md"))


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_one_short_sentence_of_a_known_kind(fragment: Path) -> None:
    kinds = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    assert fragment.suffixes[-2].removeprefix(".") in {kind["directory"] for kind in kinds}
    text = fragment.read_text().strip()
    assert "\n" not in text
    assert len(text.split()) <= MOST_WORDS, text


def test_no_two_fragments_say_the_same() -> None:
    told = collections.Counter(fragment.read_text().strip() for fragment in FRAGMENTS)
    assert told
    assert [text for text, times in told.items() if times > 1] == []
