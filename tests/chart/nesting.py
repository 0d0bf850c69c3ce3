"""Values at a dotted path."""

from __future__ import annotations

from typing import Any


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)
