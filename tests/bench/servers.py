"""Server processes of the benchmark, pinned away from the load generator where there are two cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.children import child
from tests.bench.scenes import Scale


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: where it is, and what loading its cluster cost."""

    url: str
    cafile: str
    loaded_s: float = 0.0


def cores() -> tuple[int, int]:
    """Core of the load generator and of the servers; -1 where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (-1, -1)


@contextlib.contextmanager
def server(target: str, scene: str, scale: Scale, seed: int, core: int) -> Iterator[Server]:
    """A server process for the length of the block.

    Raises:
        RuntimeError: it ended before it served.
    """
    with child("serve", target, scene, f"{scale.nodes}x{scale.cards}x{scale.pods}", str(seed), str(core)) as running:
        yield Server(**running.facts)
