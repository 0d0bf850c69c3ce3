"""The reference pages name every key, event and setting that the code has, and no other."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from hami.config import device_config, node_config
from hami.core import keys, policy_words
from hami.deviceplugin import event_reasons
from hami.vendors.nvidia import names
from tests.docs.blocks import ROOT

FOLDER = ROOT / "docs" / "reference"
NO_EVENT = {event_reasons.COMPONENT}


def _texts(*modules: ModuleType) -> dict[str, str]:
    found = {(module.__name__, name): getattr(module, name) for module in modules for name in dir(module)}
    return {name: value for (_, name), value in found.items() if name.isupper() and isinstance(value, str)}


def _first_cells(page: str) -> set[str]:
    """What stands in backticks in the first column of the page's tables."""
    rows = re.findall(r"^\| ([^|]*) \|", (FOLDER / page).read_text(), re.M)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_every_annotation_and_label_is_there() -> None:
    known = {
        text for text in _texts(keys, names).values() if re.fullmatch(r"(hami\.io|nvidia\.com)/[a-z.-]*[a-z]", text)
    }
    page = (FOLDER / "annotations.md").read_text()
    named = set(re.findall(r"`((?:hami\.io|nvidia\.com)/[a-z.-]+)", page))
    assert named == known


@pytest.mark.parametrize("words", [policy_words.NODE_POLICIES, policy_words.DEVICE_POLICIES, names.MODES])
def test_every_word_is_there(words: tuple[str, ...]) -> None:
    page = (FOLDER / "annotations.md").read_text()
    assert [word for word in words if f"`{word}`" not in page] == []


def test_every_event_is_there() -> None:
    ours = {text for name, text in _texts(keys).items() if name.startswith("EVENT_")}
    assert _first_cells("events.md") == ours | set(_texts(event_reasons).values()) - NO_EVENT


def test_every_setting_is_there_with_its_default() -> None:
    cells = _first_cells("configuration.md")
    fields = device_config._Nvidia.model_fields
    section = {field.alias or device_config._camel(name) for name, field in fields.items()}
    assert cells == section | set(node_config._Entry.model_fields)
    page = (FOLDER / "configuration.md").read_text()
    for name, field in fields.items():
        if field.default not in ("", []):
            shown = str(field.default).lower() if isinstance(field.default, bool) else field.default
            assert f"| `{field.alias or device_config._camel(name)}` | `{shown}` |" in page
