"""Random worlds for Hypothesis (apart from `worlds`, so that the benchmark's processes stay small)."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from tests.reference.world_nodes import Size
from tests.reference.worlds import World, build


def worlds(size: Size | None = None) -> st.SearchStrategy[World]:
    """Worlds by seed: drawing each number by Hypothesis costs seconds a world."""
    return st.integers(0, 2**32 - 1).map(lambda seed: build(Random(seed), size))
