"""What a ratio must keep at full size (5,000 nodes x 8 cards, 50,000 pods): issue 5, table "Speed"."""

from __future__ import annotations

from typing import Final

NOOP: Final = "wire p50 / no-op p50"
TAIL: Final = "wire p99 / p50"
GO: Final = "scaled Go / wire p50"
EASY: Final = "wire p50 / easy case"
QUIET: Final = "wire p99 / quiet p99"
REFERENCE: Final = "reference / in-process p50"

MOST: Final = {
    "filter-names": {NOOP: 4.0, TAIL: 5.0},
    "filter-all": {NOOP: 6.0, TAIL: 5.0},
    "new-shape": {EASY: 8.0},
    "full-cluster": {EASY: 8.0},
    "nothing-fits-names": {EASY: 8.0},
    "nothing-fits-all": {EASY: 8.0},
    "mig": {EASY: 8.0},
    "numa": {EASY: 8.0},
    "topology": {EASY: 8.0},
    "webhook": {NOOP: 2.0, TAIL: 5.0},
    "churn": {QUIET: 3.0},
}
LEAST: Final = {
    "filter-names": {GO: 300.0, REFERENCE: 30.0},
    "filter-all": {GO: 500.0, REFERENCE: 30.0},
}


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
