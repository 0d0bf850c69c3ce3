"""Texts that are no YAML, or more than a machine has room for: one ConfigError that names the source."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hami.core import yaml_text
from hami.core.errors import ConfigError


def _bomb(levels: int, width: int = 10) -> str:
    rows = ["- &a0 [" + ",".join("x" * width) + "]"]
    rows += [f"- &a{level} [{','.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels)]
    return "\n".join(rows)


WRONG = {
    "a date that is none": "a: 2026-13-45",
    "a number of too many digits": "a: " + "9" * 6000,
    "no number": "a: !!int x",
    "no switch": "a: !!bool x",
    "an empty float": "a: !!float ''",
    "no base64": "a: !!binary x",
    "a tag of Python": "a: !!python/object/apply:os.system [id]",
    "half a surrogate": r'a: "\ud800"',
    "NUL": "a: \0",
    "a tab": "a:\n\tb: 1",
    "unhashable key": "[1, 2]: 3",
    "deep flow": "[" * 100_000,
    "deep mapping": "{a: " * 100_000,
    "deep blocks": "\n".join(" " * level + "a:" for level in range(3000)),
    "contains itself": "&a [*a]",
    "many aliases": _bomb(30),
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_wrong_texts_are_configuration_errors(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^file f"):
        yaml_text.documents(text, "file f")


def test_aliases_below_the_limit_are_taken() -> None:
    """10 + 100 + 1,000 + 10,000 + 100,000 values and their lists: people do share anchors."""
    assert len(yaml_text.document(_bomb(5), "file f")) == 5
    with pytest.raises(ConfigError, match="at most 1,000,000 values"):
        yaml_text.document(_bomb(6), "file f")


def test_one_document_is_asked_for() -> None:
    assert yaml_text.document("", "file f") is None
    assert yaml_text.document("\N{ZERO WIDTH NO-BREAK SPACE}a: 1\r\n", "file f") == {"a": 1}
    with pytest.raises(ConfigError, match="one YAML document, found 2"):
        yaml_text.document("a: 1\n---\na: 2\n", "file f")


@given(st.text(alphabet=st.sampled_from("a1:- []{}&*!|>'\"\n\t#%@,?.~\\x0"), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        found = yaml_text.documents(text, "file f")
        assert "nan" in repr(found) or found == list(yaml.load_all(text, Loader=yaml.CSafeLoader))
