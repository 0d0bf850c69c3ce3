"""Lives of pods chosen and shrunk by Hypothesis, the oracle asked at every decision (15,000 steps in CI)."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.reference.lives import WEIGHTS, Life
from tests.reference.soak import WORLDS

seeds = st.integers(0, 2**32)
kinds_of_steps = st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)])


class Lives(RuleBasedStateMachine):
    """A world, and our placement beside the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.life: Life | None = None

    def teardown(self) -> None:
        self.loop.close()

    @initialize(seed=seeds, size=st.sampled_from(WORLDS))
    def build(self, seed: int, size: object) -> None:
        self.life = Life(seed, size)  # type: ignore[arg-type]
        self.loop.run_until_complete(self.life.start())

    @rule(name=kinds_of_steps, seed=seeds)
    def step(self, name: str, seed: int) -> None:
        assert self.life is not None
        self.loop.run_until_complete(self.life.step(name, seed))

    @invariant()
    def nothing_differs(self) -> None:
        assert self.life is None or self.life.differences == []


Lives.TestCase.settings = settings(
    max_examples=150, stateful_step_count=100, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLives = Lives.TestCase
