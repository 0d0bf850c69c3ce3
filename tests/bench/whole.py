"""The whole `hami scheduler` over an API server stand-in: list to synced, memory, and filters while other work goes on.

All ratios are to figures of the same run: the official client's lists of the same pages, and the same scheduler's
filters while it is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import trustme
from kubernetes import client as official

from tests.bench.calls import WireCaller
from tests.bench.children import Child, child
from tests.bench.figures import RUNS, Figure, measure
from tests.bench.report import Report, Row
from tests.bench.scenes import Scale, Scene, filter_body, node_name, scenes
from tests.bench.scraper import Scraper

EVENTS_PER_S, BINDS_PER_S = 200, 20
OFFICIAL_PAGES = 4
"""Pages that the official client lists of each kind; it needs several hundred microseconds for each object."""
PAGE = 200


@dataclass(frozen=True, slots=True)
class Whole:
    """What the parts of this file need to know."""

    scale: Scale
    seed: int
    calls: int
    starts: int
    """How often the scheduler is started to take the time until it is synced."""
    own_core: int
    core: int
    folder: Path

    @property
    def scene(self) -> Scene:
        return scenes(self.scale)[0]

    @property
    def size(self) -> str:
        return f"{self.scale.nodes}x{self.scale.cards}x{self.scale.pods}"


def whole(report: Report, scale: Scale, seed: int, calls: int, starts: int, cores: tuple[int, int]) -> None:
    """Measures everything of this file and adds it to the report."""
    with tempfile.TemporaryDirectory() as folder:
        part = Whole(scale, seed, calls, starts, *cores, Path(folder))
        _certificates(part.folder)
        arguments = (part.scene.name, part.size, str(seed), str(part.own_core))
        with child("apiserver", *arguments) as api:
            url = f"http://127.0.0.1:{api.facts['port']}"
            _ingest(report, part, url)
            _slices(report, part, url)
            with _scheduler(part, url) as scheduler:
                _scrapes(report, scheduler)
                _filters(report, part, url, scheduler)


def _certificates(folder: Path) -> None:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    leaf = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / "tls.pem"))


@contextlib.contextmanager
def _scheduler(part: Whole, api_url: str, loop: str = "uvloop") -> Iterator[Child]:
    """A scheduler process, synced."""
    config, devices = part.folder / "kubeconfig", part.folder / "device-config.yaml"
    cluster = {"name": "bench", "cluster": {"server": api_url}}
    context = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
    users = [{"name": "bench", "user": {}}]
    whole_config = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "bench"}
    config.write_text(json.dumps(whole_config))
    devices.write_text("nvidia: {deviceSplitCount: 10}")
    flags = [f"--kubeconfig={config}", f"--device-config-file={devices}", "--http_bind=https://127.0.0.1:0"]
    flags += [f"--cert_file={part.folder / 'tls.pem'}", f"--key_file={part.folder / 'tls.pem'}"]
    with child("scheduled", str(part.core), loop, *flags, "--metrics-bind-address=127.0.0.1:0") as scheduler:
        yield scheduler


def _ingest(report: Report, part: Whole, api_url: str) -> None:
    """List to synced against the official client's lists, both over the same HTTP."""
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(part.starts):
        with _scheduler(part, api_url) as scheduler:
            wall.append(scheduler.facts["synced_s"])
            cpu.append(scheduler.facts["synced_cpu_s"])
            report.facts["MiB of the scheduler process, synced (floor 220)"] = scheduler.facts["rss_mib"]
    theirs_wall, theirs_cpu = _official(part, api_url)
    report.facts |= {
        "seconds from list to synced": median(wall),
        "CPU seconds from list to synced": median(cpu),
        "official client's list and decode / ours to synced (floor 10)": theirs_wall / median(wall),
        "the same in CPU time": theirs_cpu / median(cpu),
    }


def _official(part: Whole, api_url: str) -> tuple[float, float]:
    """Seconds and CPU seconds that the official client needs for all objects, from the first pages of each kind."""
    configuration = official.Configuration()
    configuration.host = api_url
    api = official.CoreV1Api(official.ApiClient(configuration))
    wall = cpu = 0.0
    for fetch, count in ((api.list_node, part.scale.nodes), (api.list_pod_for_all_namespaces, part.scale.pods)):
        start, start_cpu, seen, mark = time.perf_counter(), time.process_time(), 0, None
        for _ in range(OFFICIAL_PAGES):
            page = fetch(limit=PAGE, _continue=mark) if mark else fetch(limit=PAGE)
            seen, mark = seen + len(page.items), page.metadata._continue if page.metadata else None
            if not mark:
                break
        wall += (time.perf_counter() - start) / seen * count
        cpu += (time.process_time() - start_cpu) / seen * count
    return wall, cpu


def _slices(report: Report, part: Whole, api_url: str) -> None:
    """The longest slice of CPU while lists come in and while `/metrics` is read."""
    with _scheduler(part, api_url, "slices") as scheduler:
        report.facts["longest slice from list to synced, ms of CPU (floor 5)"] = scheduler.facts["longest_slice_ms"]
        with child("scraper", scheduler.facts["urls"][1], str(part.own_core)):
            report.facts["longest slice of a scrape, ms of CPU (floor 5)"] = scheduler.ask()["longest_slice_ms"]


def _scrapes(report: Report, scheduler: Child) -> None:
    """What a scrape costs the scheduler: the first, which renders everything, and later ones of the same state."""
    _, first_s = _scraped(scheduler, "gzip")
    later = {encoding: [_scraped(scheduler, encoding) for _ in range(RUNS)] for encoding in ("gzip", "identity")}
    cost_s = {encoding: median(cpu_s for _, cpu_s in taken) for encoding, taken in later.items()}
    report.facts |= {
        "CPU ms of the first scrape": first_s * 1000,
        "CPU ms of a scrape of the same state, gzip": cost_s["gzip"] * 1000,
        "CPU ms of a scrape of the same state, text": cost_s["identity"] * 1000,
        "first scrape / scrape of the same state, CPU (floor 5)": first_s / cost_s["gzip"],
        "MiB of a scrape as text": later["identity"][0][0],
    }


def _scraped(scheduler: Child, encoding: str) -> tuple[float, float]:
    """MiB and the scheduler's CPU seconds of one scrape."""
    scraper, before_s = Scraper(scheduler.facts["urls"][1], encoding), scheduler.ask()["cpu_s"]
    scraper.scrape()
    return scraper.mib, scheduler.ask()["cpu_s"] - before_s


def _filters(report: Report, part: Whole, api_url: str, scheduler: Child) -> None:
    """The same filters left alone, under pod events and binds, and under scrapes."""
    url, metrics_url = scheduler.facts["urls"]
    cafile = str(part.folder / "ca.pem")
    names = [node_name(at) for at in range(0, part.scale.nodes, max(1, part.scale.nodes // part.scale.names))]
    bodies = [filter_body(pod, names) for pod in part.scene.asking(part.seed, 40)]
    with WireCaller(url, cafile) as caller, WireCaller(api_url) as api:
        run = functools.partial(caller.time_all, "/filter", list(itertools.islice(itertools.cycle(bodies), part.calls)))
        quiet = measure(run)
        report.rows.append(Row("whole-quiet", "filters of the whole scheduler process", wire=quiet))
        api.post(f"/bench/churn?rate={EVENTS_PER_S}", b"")
        arguments = (api_url, url, cafile, part.scene.name, part.size, str(part.seed), str(BINDS_PER_S))
        with child("binder", *arguments, str(part.own_core)) as binder:
            report.rows.append(
                _busy("churn", f"under {EVENTS_PER_S} pod events and {BINDS_PER_S} binds a second", run, quiet)
            )
            told = binder.ask()
        api.post("/bench/churn?rate=0", b"")
        report.facts |= {"pods bound meanwhile": told["bound"], "binds that failed (floor 0)": told["problems"]}
        with child("scraper", metrics_url, str(part.own_core)) as scraper:
            report.rows.append(_busy("scrape", "while /metrics is read without a pause", run, quiet))
            scraped = scraper.ask()
        report.facts |= {"seconds of a scrape": scraped["seconds"], "MiB of a scrape, gzip": scraped["mib"]}
    report.facts["MiB of the scheduler process after all that (floor 220)"] = scheduler.ask()["rss_mib"]


def _busy(name: str, what: str, run: functools.partial[list[float]], quiet: Figure) -> Row:
    return Row(name, f"filters {what}", wire=measure(run), easy=quiet, busy=True)
