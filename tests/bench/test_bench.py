"""The benchmark's own parts: figures, ratios, the check of answers, a server over TLS."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from tests.bench import floors
from tests.bench.__main__ import main
from tests.bench.calls import WireCaller
from tests.bench.figures import Figure, measure, percentile
from tests.bench.oracle import compare, differences
from tests.bench.report import Report, Row
from tests.bench.scenes import Scale, Scene, filter_body, scenes
from tests.bench.servers import server
from tests.bench.whole import whole
from tests.reference.subject import Subject

TINY = Scale(100, 2, 300)


def figure(p50: float, p99: float) -> Figure:
    return Figure(p50, p99, p99, p50, p50, calls=1, runs=1)


def test_percentiles() -> None:
    values = [float(i) for i in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([3.0], 0.99)) == (51.0, 100.0, 3.0)


def test_measure_takes_the_median_of_the_runs() -> None:
    runs = iter([[9.0], [1.0], [5.0], [3.0], [2.0], [4.0]])
    got = measure(lambda: next(runs))
    assert (got.p50, got.p50_least, got.p50_most, got.longest, got.runs) == (3.0, 1.0, 5.0, 5.0, 5)


def test_ratios_come_from_the_same_run() -> None:
    row = Row("x", "y", wire=figure(300, 600), noop=figure(100, 110), inside=figure(50, 60), reference_us=5000)
    assert row.ratios() == {
        "wire p50 / no-op p50": 3.0,
        "wire p99 / p50": 2.0,
        "reference / in-process p50": 100.0,
    }


def test_floors_hold_in_both_directions() -> None:
    kept = {"wire p50 / no-op p50": 3.9, "wire p99 / p50": 4.9, "scaled Go / wire p50": 301.0}
    assert floors.misses("filter-names", kept) == []
    missed = {"wire p50 / no-op p50": 4.1, "wire p99 / p50": 4.9, "scaled Go / wire p50": 299.0}
    assert len(floors.misses("filter-names", missed)) == 2
    assert floors.misses("spread", missed) == []


def test_report_files(tmp_path: Path) -> None:
    report = Report(7, "tiny", [Row("x", "y", wire=figure(3, 6), differences=["p: node"], compared=2)])
    as_json, as_text = report.write(tmp_path)
    assert json.loads(as_json.read_text())["rows"][0]["ratios"] == {"wire p99 / p50": 2.0}
    assert "1 of 2" in as_text.read_text()
    assert "Different answers (seed 7):" in as_text.read_text()


@pytest.mark.parametrize("scene", scenes(TINY), ids=lambda scene: scene.name)
async def test_ours_and_the_reference_agree_on_every_scene(scene: Scene) -> None:
    world = scene.cluster(3)
    subject = await Subject.of(world)
    found, reference_us = compare(subject, world, scene.asking(3, 6), scene.names(world, 3))
    assert found == []
    assert reference_us > 0


@pytest.mark.parametrize("scene", scenes(TINY), ids=lambda scene: scene.name)
def test_scenes_are_what_they_claim(scene: Scene) -> None:
    world = scene.cluster(3)
    answers = [world.decide(pod, scene.names(world, 3)) for pod in scene.asking(3, 4)]
    assert [answer.node is not None for answer in answers] == [scene.fits] * 4
    assert world == scene.cluster(3)


async def test_control_another_card_is_a_difference() -> None:
    scene = scenes(TINY)[0]
    world = scene.cluster(3)
    pod, names = scene.asking(3, 1)[0], scene.names(world, 3)
    ours, reference = (await Subject.of(world)).decide(pod, names), world.decide(pod, names)
    assert differences(ours, reference) == []
    key = "hami.io/vgpu-devices-allocated"
    other = dataclasses.replace(ours, annotations={**ours.annotations, key: "GPU-other,NVIDIA,1,1:;"})
    assert differences(other, reference)
    assert differences(dataclasses.replace(ours, node=None), reference)


@pytest.mark.parametrize("target", ["ours", "noop"])
def test_server_answers_over_tls(target: str) -> None:
    scene = scenes(TINY)[0]
    world = scene.cluster(1)
    pod, names = scene.asking(1, 1)[0], scene.names(world, 1)
    with server(target, scene.name, TINY, 1, -1) as served, WireCaller(served.url, served.cafile) as caller:
        answer = json.loads(caller.post("/filter", filter_body(pod, names)))
        again = caller.time_all("/filter", [filter_body(pod, names)] * 3)
    expected = [world.decide(pod, names).node] if target == "ours" else ["gpu-worker-00000.pool.example"]
    assert answer == {
        "Nodes": None,
        "NodeNames": expected,
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": "",
    }
    assert len(again) == 3


async def test_bodies_in_chunks_are_read_whole_and_the_connection_goes_on() -> None:
    """Go's servers send longer answers so: the bodies are replayed against HAMi's own extender, too."""
    answers = [b"a" * 5000, b"", b'{"NodeNames": ["n1"]}']

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"body")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(answer), 999):
                part = answer[at : at + 999]
                writer.write(f"{len(part):x};x=y\r\n".encode() + part[:5])
                await writer.drain()
                writer.write(part[5:] + b"\r\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()

    def ask(port: int) -> list[bytes]:
        with WireCaller(f"http://127.0.0.1:{port}") as caller:
            return [caller.post("/filter", b"body") for _ in answers]

    peer = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with peer:
        assert await asyncio.to_thread(ask, peer.sockets[0].getsockname()[1]) == answers


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--only", "nosuch"], "--only nosuch: there is no such part; there are filter-names"),
        (["--peer-url", "127.0.0.1:1"], "an address such as https://HOST:PORT is wanted"),
        (["--peer-url", "http://127.0.0.1:1"], "refused"),
    ],
)
def test_wrong_arguments_are_told_before_anything_runs(
    flags: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--out", str(tmp_path / "out"), *flags])
    with pytest.raises(SystemExit):
        main()
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_floors_of_facts() -> None:
    kept = {"MiB of the scheduler process, synced (floor 220)": 219.0}
    assert floors.fact_misses(kept) == []
    missed = {"official client's list and decode / ours to synced (floor 10)": 9.9, "binds that failed (floor 0)": 1.0}
    assert len(floors.fact_misses(kept | missed)) == 2


def test_the_whole_scheduler_over_the_api_server_of_the_benchmark() -> None:
    report = Report(1, "tiny")
    whole(report, TINY, seed=1, calls=5, starts=1, cores=(-1, -1))
    assert [row.name for row in report.rows] == ["whole-quiet", "churn", "scrape"]
    facts = report.facts
    assert facts["binds that failed (floor 0)"] == 0
    assert set(floors.FACTS_LEAST) <= set(facts)
    assert set(floors.FACTS_MOST) - set(facts) == {
        "growth of filter p50: pods x 5 (floor 1.1)",
        "growth of filter p50: nodes x 15, all names (floor 15)",
    }
    assert 0 < facts["longest slice from list to synced, ms of CPU (floor 5)"] < 1000
    assert facts["MiB of a scrape as text"] > 2 * facts["MiB of a scrape, gzip"] > 0.01
