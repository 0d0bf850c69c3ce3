"""What the shim costs: `python -m tests.shim.speed`. Each figure is the best of several runs with the shim and without,
taken in turn on the stand-in driver; the difference is the shim's (issue 9, "Speed"). With 8 processes and 8 threads it
is CPU time, against the same program with nothing but a robust lock around the least that a limiter has to do."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.shim import harness
from tests.shim.conftest import make_container
from tests.shim.container import Container, json_lines

ROUNDS = 5
STARTS = 40
CONTENDED_PAIRS = 100_000
FLOORS = {
    "launch (ns)": "floor +3",
    "alloc+free (ns)": "floor +150",
    "alloc+free, 10,000 live (ns)": "floor +150",
    "start (ms)": "floor +1",
    "64 starts (ms)": "floor 1.5 x",
    "alloc+free, CPU, 8 processes (ns)": "floor 1.5 x of a bare robust lock",
    "alloc+free, CPU, 8 threads (ns)": "floor 1.5 x of a bare robust lock",
}


def _calls(box: Container, shim: bool) -> dict[str, float]:
    (figures,) = json_lines(box.run("speed", shim=shim))
    return figures


def _start_ms(box: Container, shim: bool) -> float:
    began = time.perf_counter()
    box.run("test_alloc", 1, shim=shim)
    return (time.perf_counter() - began) * 1e3


def _together_ms(box: Container, shim: bool) -> float:
    began = time.perf_counter()
    running = [box.start("test_alloc", 1, shim=shim) for _ in range(64)]
    for process in running:
        process.communicate()
    return (time.perf_counter() - began) * 1e3


def _contended_ns(box: Container, processes: int, threads: int, shim: bool) -> float:
    how = () if shim else ("bare",)
    (figures,) = json_lines(box.run("contend", processes, threads, CONTENDED_PAIRS, *how, shim=shim))
    return float(figures["cpu_ns"])


def contention(box: Container) -> dict[str, tuple[float, float]]:
    """CPU nanoseconds of an allocation and its free with others beside: (with the shim, under a bare robust lock)."""
    found = {}
    for name, processes, threads in (("8 processes", 8, 1), ("8 threads", 1, 8)):
        rounds = [[_contended_ns(box, processes, threads, shim) for shim in (True, False)] for _ in range(ROUNDS)]
        found[f"alloc+free, CPU, {name} (ns)"] = (min(row[0] for row in rounds), min(row[1] for row in rounds))
    return found


def measure(folder: Path) -> dict[str, tuple[float, float]]:
    """Name → (with the shim, without it), nanoseconds a call or milliseconds a start."""
    fakes, shim = harness.build_fakes(), harness.build_shim()
    box = make_container(folder, fakes, shim, limit_mib=8192)
    best: dict[str, dict[bool, float]] = {}
    for _ in range(ROUNDS):
        for with_shim in (True, False):
            for name, value in _calls(box, with_shim).items():
                row = best.setdefault(f"{name} (ns)", {})
                row[with_shim] = min(value, row.get(with_shim, value))
    for name, sample, rounds in (("start (ms)", _start_ms, STARTS), ("64 starts (ms)", _together_ms, ROUNDS)):
        for with_shim in (True, False):
            best.setdefault(name, {})[with_shim] = min(sample(box, with_shim) for _ in range(rounds))
    return {name: (row[True], row[False]) for name, row in best.items()} | contention(box)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'':36} {'without':>10} {'limiter':>10}")
        for name, (with_shim, without) in measure(Path(folder)).items():
            added, ratio = f"{with_shim - without:+10.1f}", f"{with_shim / without:6.2f} x"
            print(f"{name:36} {without:10.1f} {with_shim:10.1f}   {added} {ratio}   {FLOORS.get(name, '')}")


if __name__ == "__main__":
    main()
