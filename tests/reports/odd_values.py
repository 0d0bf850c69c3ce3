"""Values that nobody expects, put at each place of an object."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

ODD = [None, "", 0, -1, 1.5, True, [], {}, [None], {"a": None}, "\x00", "é中\U0001f600", "x" * 70_000, 2**31, 2**64,
       -(2**63), "1e999", "9" * 400, [1, "a", None]]  # fmt: skip


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], odd: object) -> Any:
    if not path:
        return odd
    value = copy.copy(value)
    value[path[0]] = replaced(value[path[0]], path[1:], odd)
    return value
