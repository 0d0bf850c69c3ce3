"""YAML that comes from outside. Whatever is wrong with a text is one ConfigError, whatever the loader calls it."""

from __future__ import annotations

import math
from typing import Any, Final

import yaml

from hami.core.errors import ConfigError

MOST_VALUES: Final = 1_000_000
"""Aliases let a short text stand for more values than a machine has room for; kubectl refuses such texts, too."""

LOADER_ERRORS: Final = (
    yaml.YAMLError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    TypeError,
    RecursionError,
)
"""Besides its own kind the loader lets through what a scalar's tag raised: `2026-13-45`, `!!int x`, `!!bool x`."""


def documents(text: str, source: str) -> list[Any]:
    """Every document of the text. Raises ConfigError that names `source` and what is wrong."""
    try:
        found = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
        count = _values(found, {})
    except LOADER_ERRORS as error:
        raise ConfigError(f"{source} cannot be read as YAML: {str(error) or type(error).__name__}") from error
    if count > MOST_VALUES:
        raise ConfigError(f"{source}: expected at most {MOST_VALUES:,} values, its aliases stand for more")
    return found


def document(text: str, source: str) -> Any:
    """The only document of the text, None where it is empty. Raises ConfigError."""
    found = documents(text, source)
    if len(found) > 1:
        raise ConfigError(f"{source}: expected one YAML document, found {len(found)}")
    return found[0] if found else None


def _values(value: Any, known: dict[int, float]) -> float:
    """How many values this one stands for; what contains itself is endless. `known` counts shared ones once."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(value)]
