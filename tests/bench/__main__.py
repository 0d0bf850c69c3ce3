"""Runs the benchmark. `--quick` takes half a minute; the full run a few minutes."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import gc
import itertools
import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench import application
from tests.bench.calls import AppCaller, WireCaller
from tests.bench.figures import RUNS, Figure, measure, measure_in_turn
from tests.bench.growth import growth
from tests.bench.oracle import compare
from tests.bench.report import ANCHOR_LOADS_US, GO_P50_MS, Report, Row, local_loads_us
from tests.bench.reviews import review_body
from tests.bench.scenes import FULL, QUICK, Scale, Scene, filter_body, scenes
from tests.bench.servers import Server, cores, server
from tests.bench.whole import whole
from tests.reference.subject import Subject
from tests.reference.worlds import World

COMPARED_NODES = 200
"""Of the cluster on which the answers to all bodies are compared with the reference's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    scale: Scale
    seed: int
    bodies: int
    calls: int
    compared: int
    """Bodies whose answers are compared with the reference's at full size, where it needs a second for each."""
    compared_small: int
    """The same on a smaller cluster of the same kind."""
    only: tuple[str, ...]
    peer_url: str
    starts: int
    """How often the whole scheduler is started over an API server."""
    large: int
    """Nodes of the largest cluster of the growth part; 0 leaves that part out."""

    def wants(self, name: str) -> bool:
        return not self.only or any(part in name for part in self.only)


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    wrong = _unknown(arguments.only) or _unreachable(arguments.peer_url)
    if wrong:
        parser.error(wrong)
    plan = Plan(
        scale=QUICK if arguments.quick else FULL,
        seed=arguments.seed,
        bodies=40,
        calls=200 if arguments.quick else 1000,
        compared=1 if arguments.quick else 4,
        compared_small=4 if arguments.quick else 40,
        only=tuple(arguments.only),
        peer_url=arguments.peer_url,
        starts=1 if arguments.quick else 5,
        large=0 if arguments.quick else 15_000,
    )
    if arguments.dump:
        _dump(plan, arguments.dump)
        return 0
    start = time.monotonic()
    application.quiet_logs()
    own_core, server_core = cores()
    if own_core >= 0:
        os.sched_setaffinity(0, {own_core})
    report = Report(plan.seed, plan.scale.label, full=plan.scale == FULL)
    try:
        with asyncio.Runner() as runner, server("noop", "-", plan.scale, plan.seed, server_core) as fixed:
            Bench(plan, report, runner.get_loop(), fixed, own_core, server_core).run()
    finally:
        report.facts["seconds taken"] = time.monotonic() - start
        files = report.write(arguments.out)
        print(files[1].read_text())
        print("written:", *files)
    return 1 if report.differences else 0


@dataclass(slots=True)
class Bench:
    """One run: cluster by cluster, scene by scene."""

    plan: Plan
    report: Report
    loop: asyncio.AbstractEventLoop
    fixed: Server
    own_core: int
    core: int
    easy: Figure | None = None

    def run(self) -> None:
        wanted = [scene for scene in scenes(self.plan.scale) if self.plan.wants(scene.name)]
        for _, group in itertools.groupby(sorted(wanted, key=lambda s: s.cluster_key), key=lambda s: s.cluster_key):
            self._cluster(list(group))
        if self.plan.wants("webhook"):
            self._webhook()
        if self.plan.wants("whole"):
            plan = self.plan
            whole(self.report, plan.scale, plan.seed, plan.calls, plan.starts, (self.own_core, self.core))
        if self.plan.wants("growth") and self.plan.large:
            self.report.facts |= growth(self.loop, self.plan.seed, self.plan.calls, 1000, self.plan.large)

    def _cluster(self, group: list[Scene]) -> None:
        """Scenes over one cluster: the check first, then the times."""
        first = group[0]
        world = first.cluster(self.plan.seed)
        subject = self.loop.run_until_complete(Subject.of(world))
        caller = AppCaller(application.ours(subject), self.loop)
        gc.collect()
        gc.freeze()
        rows = [self._compared(scene, subject, world) for scene in group]
        with server("ours", first.name, first.scale, self.plan.seed, self.core) as served:
            if first.name == "filter-names":
                self.report.facts["seconds to make, decode and load all objects"] = served.loaded_s
            for scene, row in zip(group, rows, strict=True):
                names = scene.names(world, self.plan.seed)
                bodies = [filter_body(pod, names) for pod in scene.asking(self.plan.seed, self.plan.bodies)]
                row.inside = measure(functools.partial(caller.time_all, "/filter", self._cycle(bodies)))
                row.wire, row.noop = self._wire(served, "/filter", bodies)
                self._finish(row, scene)
        gc.unfreeze()

    def _compared(self, scene: Scene, subject: Subject, world: World) -> Row:
        """Before any time is taken: the same node and cards for the first bodies."""
        names = scene.names(world, self.plan.seed)
        row = Row(scene.name, f"{len(names)} names, {scene.scale.label}", compared=self.plan.compared)
        pods = scene.asking(self.plan.seed, self.plan.compared)
        row.differences, row.reference_us = compare(subject, world, pods, names)
        self._compared_small(scene, row)
        row.go_us = self._go(scene)
        return row

    def _compared_small(self, scene: Scene, row: Row) -> None:
        """The same for every body, on a cluster where the reference is fast enough for that."""
        small = dataclasses.replace(scene, scale=Scale(COMPARED_NODES, scene.scale.cards, 10 * COMPARED_NODES))
        world = small.cluster(self.plan.seed)
        subject = self.loop.run_until_complete(Subject.of(world))
        pods = small.asking(self.plan.seed, self.plan.compared_small)
        found, _ = compare(subject, world, pods, small.names(world, self.plan.seed))
        row.differences += [f"{text} ({COMPARED_NODES} nodes)" for text in found]
        row.compared += len(pods)

    def _finish(self, row: Row, scene: Scene) -> None:
        assert row.wire is not None
        if scene.name == "filter-names":
            self.easy = row.wire
        elif self.easy and scene.name != "filter-all":
            row.easy = self.easy
        self.report.rows.append(row)
        print(f"{row.name}: {row.what}", file=sys.stderr)
        if self.plan.peer_url:
            self._peer(scene)

    def _peer(self, scene: Scene) -> None:
        """The same bodies against another extender, which must have been given the same cluster (`--dump`)."""
        world = scene.cluster(self.plan.seed)
        names = scene.names(world, self.plan.seed)
        bodies = [filter_body(pod, names) for pod in scene.asking(self.plan.seed, self.plan.bodies)]
        row = Row(f"peer {scene.name}", "")
        with WireCaller(self.plan.peer_url) as peer:
            row.wire = measure(lambda: peer.time_all("/filter", bodies))
            answers = [json.loads(peer.post("/filter", body)) for body in bodies]
        placed = sum(bool(answer.get("NodeNames")) and not answer.get("Error") for answer in answers)
        row.what = f"{len(names)} names, {self.plan.peer_url}, {placed} of {len(bodies)} placed"
        self.report.rows.append(row)

    def _wire(self, to: Server, path: str, bodies: list[bytes]) -> list[Figure]:
        """Ours and the no-op, in turn."""
        with WireCaller(to.url, to.cafile) as ours, WireCaller(self.fixed.url, self.fixed.cafile) as noop:
            calls = [functools.partial(caller.time_all, path, self._cycle(bodies)) for caller in (ours, noop)]
            return measure_in_turn(*calls)

    def _cycle(self, bodies: list[bytes]) -> list[bytes]:
        return list(itertools.islice(itertools.cycle(bodies), self.plan.calls))

    def _go(self, scene: Scene) -> float | None:
        recorded = GO_P50_MS.get((scene.scale.nodes, scene.all_names))
        if recorded is None or scene.scale.pods != 10 * scene.scale.nodes:
            return None
        return recorded * 1000 * local_loads_us() / ANCHOR_LOADS_US

    def _webhook(self) -> None:
        small = Scale(10, 8, 0)
        bodies = [review_body(20 * 1024)]
        with server("ours", "filter-names", small, self.plan.seed, self.core) as served:
            row = Row("webhook", "AdmissionReview of a 20 KB pod")
            row.wire, row.noop = self._wire(served, "/webhook", bodies)
        self.report.rows.append(row)


def _dump(plan: Plan, folder: Path) -> None:
    """Writes the clusters as v1 List objects, to load them into a peer's API server."""
    folder.mkdir(parents=True, exist_ok=True)
    for scene in filter(lambda scene: plan.wants(scene.name), scenes(plan.scale)):
        world = scene.cluster(plan.seed)
        for kind, items in (("nodes", world.nodes), ("pods", world.pods)):
            text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
            (folder / f"{scene.name}-{kind}.json").write_text(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="500 nodes instead of 5,000")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help=f"part of: {', '.join(_names())} (scrapes, memory and list to synced: whole)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peer-url", default="", help="replay the bodies against this extender too")
    parser.add_argument("--dump", type=Path, help="only write the clusters' objects to this folder")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    return parser


def _names() -> list[str]:
    return [*(scene.name for scene in scenes(QUICK)), "webhook", "whole", "growth"]


def _unknown(only: list[str]) -> str:
    """What is wrong with the parts asked for; empty if nothing is."""
    nothing = [part for part in only if not any(part in name for name in _names())]
    return f"--only {nothing[0]}: there is no such part; there are {', '.join(_names())}" if nothing else ""


def _unreachable(peer_url: str) -> str:
    """Why a peer cannot be asked, before anything else takes time; empty if it can."""
    if not peer_url:
        return ""
    parts = urlsplit(peer_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"--peer-url {peer_url}: an address such as https://HOST:PORT is wanted"
    try:
        socket.create_connection((parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)), 10).close()
    except (OSError, ValueError) as error:
        return f"--peer-url {peer_url}: {error}"
    return ""


if __name__ == "__main__":
    assert RUNS == 5
    sys.exit(main())
