"""Reads the scenario files. A key that is written twice or is unknown is an error with its place."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tests.scenarios.model import Scenario

FOLDER = Path(__file__).parent


class ScenarioError(Exception):
    """A scenario file says something impossible; the text names the place."""


class _Loader(yaml.CSafeLoader):
    """YAML without repeated keys: of two pods with one name, the first would vanish silently."""


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise ScenarioError(f"{key_node.start_mark}: '{key}' is there twice")
        seen.add(key)
    return yaml.CSafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse(text: str, where: str) -> list[Scenario]:
    """The scenarios of one file. Raises ScenarioError."""
    try:
        return msgspec.convert(yaml.load(text, _Loader), list[Scenario])
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        raise ScenarioError(f"{where}: {error}") from error


def load(folder: Path = FOLDER) -> list[Scenario]:
    """Every scenario of the folder, file by file. Raises ScenarioError."""
    return [scenario for path in sorted(folder.glob("*.yaml")) for scenario in parse(path.read_text(), path.name)]


def chosen(scenarios: Iterable[Scenario], words: str) -> list[Scenario]:
    """Those whose name contains `words`."""
    return [scenario for scenario in scenarios if words in scenario.name]
