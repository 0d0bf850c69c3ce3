"""Results as JSON and as a Markdown table, ratios first."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import floors
from tests.bench.figures import Figure

ANCHOR_LOADS_US = 180.0
"""`json.loads` of the 105 KB body on the machine where the Go figures were taken (spec/performance 4)."""
GO_COMMIT = "4707fb0"
GO_P50_MS = {(100, False): 22.5, (1000, True): 206.0, (5000, True): 1175.0, (5000, False): 680.0, (100, True): 22.5}
"""Go HAMi at that commit, in process with a fake API client: (nodes x 8 cards, all names sent) -> p50."""


@dataclass(slots=True)
class Row:
    """One measured case against its baselines. Absent figures were not measured."""

    name: str
    what: str
    wire: Figure | None = None
    noop: Figure | None = None
    inside: Figure | None = None
    reference_us: float | None = None
    go_us: float | None = None
    easy: Figure | None = None
    """The plain case of the same run: filter-names while nothing else happens."""
    busy: bool = False
    """Other work goes on meanwhile: the tail is compared with that of `easy`."""
    differences: list[str] = field(default_factory=list)
    compared: int = 0

    def ratios(self) -> dict[str, float]:
        found = {}
        if self.wire and self.noop:
            found[floors.NOOP] = self.wire.p50 / self.noop.p50
        if self.wire:
            found[floors.TAIL] = self.wire.p99 / self.wire.p50
        if self.wire and floors.P99_MS in floors.MOST.get(self.name, {}):
            found[floors.P99_MS] = self.wire.p99 / 1000
        if self.inside and self.reference_us:
            found[floors.REFERENCE] = self.reference_us / self.inside.p50
        if self.wire and self.go_us:
            found[floors.GO] = self.go_us / self.wire.p50
        if self.wire and self.easy:
            found[floors.EASY] = self.wire.p50 / self.easy.p50
        if self.wire and self.easy and self.busy:
            found[floors.QUIET] = self.wire.p99 / self.easy.p99
        return found

    def to_json(self) -> dict[str, Any]:
        figures = {"wire": self.wire, "noop": self.noop, "in_process": self.inside}
        return {
            "name": self.name,
            "what": self.what,
            "ratios": self.ratios(),
            **{key: figure.to_json() for key, figure in figures.items() if figure},
            "reference_p50_us": self.reference_us,
            "scaled_go_p50_us": self.go_us,
            "bodies_compared": self.compared,
            "differences": self.differences,
        }


@dataclass(slots=True)
class Report:
    """All rows of one run."""

    seed: int
    scale: str
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    full: bool = False

    @property
    def misses(self) -> list[str]:
        """Floors that were not kept; at full size only, where they are set."""
        if not self.full:
            return []
        rows = [text for row in self.rows for text in floors.misses(row.name, row.ratios())]
        return rows + floors.fact_misses(self.facts)

    @property
    def differences(self) -> list[str]:
        return [f"{row.name}: {text}" for row in self.rows for text in row.differences]

    def write(self, folder: Path) -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        stem = time.strftime("bench-%Y%m%d-%H%M%S", time.gmtime())
        machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}"
        data = {
            "seed": self.seed,
            "scale": self.scale,
            "machine": machine,
            "go_commit": GO_COMMIT,
            "facts": self.facts,
            "floors_missed": self.misses,
            "rows": [row.to_json() for row in self.rows],
        }
        as_json, as_text = folder / f"{stem}.json", folder / f"{stem}.md"
        as_json.write_text(json.dumps(data, indent=1) + "\n")
        as_text.write_text(self.markdown(machine))
        return as_json, as_text

    def markdown(self, machine: str) -> str:
        lines = [
            f"# Benchmark: {self.scale}",
            "",
            f"{machine}; seed {self.seed}; medians of five runs; server and load generator on different cores.",
            "Wire: one serial client, HTTP over TLS 1.3 keep-alive. No-op: the same mount and body, fixed answer.",
            f"Scaled Go: recorded in-process figures of HAMi {GO_COMMIT}, times this machine's json speed.",
            "",
            "| case | ratios | wire p50 / p99 µs | no-op p50 µs | in process µs | reference µs | same answers |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in self.rows]
        lines += ["", *(f"- {key}: {value:.1f}" for key, value in self.facts.items())]
        if self.misses:
            lines += ["", "Floors not kept:", *(f"- {text}" for text in self.misses)]
        if self.differences:
            lines += ["", f"Different answers (seed {self.seed}):", *(f"- {text}" for text in self.differences[:20])]
        return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    ratios = "; ".join(
        f"{value:.2f} {key}" if value < 10 else f"{value:.0f} {key}" for key, value in row.ratios().items()
    )
    wire = f"{row.wire.p50:.0f} / {row.wire.p99:.0f}" if row.wire else "–"
    inside = f"{row.inside.p50:.0f} / {row.inside.p99:.0f}" if row.inside else "–"
    noop = f"{row.noop.p50:.0f}" if row.noop else "–"
    reference = f"{row.reference_us:.0f}" if row.reference_us else "–"
    different = {text.split(":", 1)[0] for text in row.differences}
    same = f"{row.compared - len(different)} of {row.compared}" if row.compared else "–"
    return f"| {row.name} ({row.what}) | {ratios} | {wire} | {noop} | {inside} | {reference} | {same} |"


def local_loads_us() -> float:
    """Microseconds of stdlib `json.loads` on a 105 KB ExtenderArgs body (median of 50)."""
    names = [f"gpu-worker-{i:07d}" for i in range(5000)]
    text = json.dumps({"Pod": {"metadata": {"name": "p"}}, "Nodes": None, "NodeNames": names}, separators=(",", ":"))
    taken = []
    for _ in range(50):
        start = time.perf_counter_ns()
        json.loads(text)
        taken.append((time.perf_counter_ns() - start) / 1000)
    return sorted(taken)[25]
