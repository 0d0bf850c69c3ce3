"""What a ratio must keep at full size (5,000 nodes x 8 cards, 50,000 pods): issue 5, table "Speed"."""

from __future__ import annotations

from typing import Final

NOOP: Final = "wire p50 / no-op p50"
TAIL: Final = "wire p99 / p50"
GO: Final = "scaled Go / wire p50"
EASY: Final = "wire p50 / easy case"
QUIET: Final = "wire p99 / quiet p99"
P99_MS: Final = "wire p99 in ms"
REFERENCE: Final = "reference / in-process p50"

MOST: Final = {
    "filter-names": {NOOP: 4.0, TAIL: 5.0},
    "filter-all": {NOOP: 6.0, TAIL: 5.0},
    "new-shape": {EASY: 8.0},
    "full-cluster": {EASY: 8.0},
    "nothing-fits-names": {EASY: 8.0},
    "nothing-fits-all": {P99_MS: 20.0},
    "mig": {EASY: 8.0},
    "numa": {EASY: 8.0},
    "topology": {EASY: 8.0},
    "webhook": {NOOP: 2.0, TAIL: 5.0},
    "churn": {QUIET: 3.0},
    "scrape": {QUIET: 3.0},
}
LEAST: Final = {
    "filter-names": {GO: 300.0, REFERENCE: 30.0},
    "filter-all": {GO: 500.0, REFERENCE: 30.0},
}


FACTS_MOST: Final = {
    "MiB of the scheduler process, synced (floor 220)": 220.0,
    "MiB of the scheduler process after all that (floor 220)": 220.0,
    "longest slice from list to synced, ms of CPU (floor 5)": 5.0,
    "longest slice of a scrape, ms of CPU (floor 5)": 5.0,
    "binds that failed (floor 0)": 0.0,
    "growth of filter p50: pods x 5 (floor 1.1)": 1.1,
    "growth of filter p50: nodes x 15, all names (floor 15)": 15.0,
}
FACTS_LEAST: Final = {
    "official client's list and decode / ours to synced (floor 10)": 10.0,
    "first scrape / scrape of the same state, CPU (floor 5)": 5.0,
}


def fact_misses(facts: dict[str, float]) -> list[str]:
    """The same for what is not a ratio of call times."""
    most = [f"{key}: {facts[key]:.1f}" for key, limit in FACTS_MOST.items() if facts.get(key, 0.0) > limit]
    return most + [f"{key}: {facts[key]:.1f}" for key, limit in FACTS_LEAST.items() if facts.get(key, limit) < limit]


def misses(name: str, ratios: dict[str, float]) -> list[str]:
    """Floors that these ratios do not keep, in words."""
    most = [
        f"{name}: {key} is {ratios[key]:.2f}, at most {limit:g} is wanted"
        for key, limit in MOST.get(name, {}).items()
        if ratios.get(key, 0.0) > limit
    ]
    least = [
        f"{name}: {key} is {ratios[key]:.0f}, at least {limit:g} is wanted"
        for key, limit in LEAST.get(name, {}).items()
        if key in ratios and ratios[key] < limit
    ]
    return most + least
