"""Percentiles of call times, and the median of several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

RUNS = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """Call times in microseconds: medians over the runs, and the spread of the runs' p50."""

    p50: float
    p99: float
    longest: float
    p50_least: float
    p50_most: float
    calls: int
    runs: int

    def to_json(self) -> dict[str, Any]:
        return {f"{key}_us" if key.startswith(("p", "l")) else key: value for key, value in asdict(self).items()}


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(run: Callable[[], list[float]], runs: int = RUNS) -> Figure:
    """Median over `runs` calls of `run`, which returns the microseconds of each of its calls."""
    return measure_in_turn(run, runs=runs)[0]


def measure_in_turn(*kinds: Callable[[], list[float]], runs: int = RUNS) -> list[Figure]:
    """A figure for each kind. Their runs alternate, so that a busy moment of the machine meets all of them."""
    samples: list[list[list[float]]] = [[] for _ in kinds]
    for run in kinds:
        run()
    for _ in range(runs):
        for place, run in enumerate(kinds):
            samples[place].append(run())
    return [_figure(each) for each in samples]


def _figure(samples: list[list[float]]) -> Figure:
    p50s = [percentile(sample, 0.5) for sample in samples]
    return Figure(
        p50=median(p50s),
        p99=median(percentile(sample, 0.99) for sample in samples),
        longest=max(map(max, samples)),
        p50_least=min(p50s),
        p50_most=max(p50s),
        calls=len(samples[0]),
        runs=len(samples),
    )
