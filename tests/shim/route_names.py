"""Routes to a driver function, and ways to take memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.shim import harness

WAYS = ("link", "dlsym", "default", "next", "dlvsym", "nested", "proc1", "proc2")


def _routes() -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    text = (harness.HERE / "programs" / "routes.c").read_text()
    for name, charged, needs in re.findall(r'\{\s*"([^"]+)",\s*(true|false),\s*\{([^}]*)\}', text):
        yield name, charged == "true", tuple(re.findall(r'"(\w+)"', needs))


ROUTES = tuple(_routes())
