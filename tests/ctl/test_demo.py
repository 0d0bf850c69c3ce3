"""`hami demo` with simulated containers: its answer, the strangers' pods it takes, and what a signal leaves behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from hami.apps import cli
from hami.core.errors import ConfigError, HamiError
from hami.ctl.demo import guests, stage
from hami.ctl.demo.processes import HamiProcess
from hami.ctl.demo.tour import PROFILES, TOUR
from hami.kube.access import Access
from hami.kube.client import ApiClient
from tests.kube.canned import serving

DEMO = [sys.executable, "-m", "hami.apps", "demo", "--containers", "simulated"]
LIMIT_S = 240
POD = "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main, image: x}]}\n"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For sockets, whose paths are limited to about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="hd-") as made:
        yield Path(made)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_the_tour_ends_as_told_and_leaves_nothing(short_folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    done = subprocess.run([*DEMO, "--json"], capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"]
    assert [pod["name"] for pod in said["pods"]] == [stop.name for stop in TOUR]
    assert [pod["ending"] for pod in said["pods"]] == [stop.ending.value for stop in TOUR]
    reasons = {pod["name"]: {event["reason"] for event in pod["events"]} for pod in said["pods"]}
    for pod in said["pods"]:
        if pod["cards"]:
            assert reasons[pod["name"]] >= {"FilteringSucceed", "BindingSucceed"}, pod["name"]
    assert reasons["too-big"] >= {"FilteringFailed", "FailedScheduling"}
    assert {node["name"] for node in said["nodes"]} == {f"node-{profile}" for profile in PROFILES}
    assert not said["containers"]["real"]
    assert len(said["processes"]) == 4
    assert not [process for process in said["processes"] if alive(process["pid"])]
    assert not list(short_folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(number: signal.Signals, short_folder: Path) -> None:
    """While the processes start, which is when most of them are in the middle of something."""
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    # A shell that starts things in the background has them ignore Ctrl-C, and so would the demo.
    command = ["env", f"--default-signal={number.name[3:]}", *DEMO, "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stderr is not None
    assert "starting" in process.stderr.readline()
    children: list[int] = []
    while not children:
        assert process.poll() is None
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        children = [int(pid) for pid in listed.split()]
    process.send_signal(number)
    process.send_signal(number)  # the impatient press it twice
    said, complained = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert (said, complained) == ("", "")
    assert not [pid for pid in children if alive(pid)]
    assert not list(short_folder.iterdir())


def test_processes_die_with_a_killed_demo(short_folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    process = subprocess.Popen(DEMO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    children: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    while len(children) < 1 + len(PROFILES):
        assert process.poll() is None
        assert time.monotonic() < deadline
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.kill()
    process.wait()
    while any(alive(pid) for pid in children):
        assert time.monotonic() < deadline


def test_a_process_whose_demo_died_before_it_could_ask_ends_at_once(tmp_path: Path) -> None:
    """kill -9 may strike between the start of a process and its asking for its end: the parent is a stranger then."""
    command = HamiProcess("scheduler", ["--version"], tmp_path / "log").command
    ours = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ours.returncode, ours.stdout.split()[0]) == (0, "hami")
    strangers = [*command[:3], str(os.getppid()), *command[4:]]
    told = subprocess.run(strangers, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (1, "", "the demo has ended\n")


def test_a_killed_scheduler_comes_back_by_the_printed_command(short_folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    command = [*DEMO, "--serve"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert demo.stdout is not None
    try:
        lines = []
        for line in demo.stdout:
            lines.append(line)
            if "Ctrl-C ends everything" in line:
                break
        pid = next(int(line.split("pid ")[1].split()[0]) for line in lines if line.startswith("·   scheduler "))
        os.kill(pid, signal.SIGKILL)
        said = demo.stdout.readline()
        assert f"scheduler (pid {pid}) ended with -9. Start it again with:" in said
        again = shlex.split(demo.stdout.readline().removeprefix("·"))
        scheduler = subprocess.Popen(again, stderr=subprocess.PIPE, text=True)
        assert scheduler.stderr is not None
        try:
            synced = next(line for line in scheduler.stderr if '"synced"' in line)
            assert json.loads(synced)["nodes"] == len(PROFILES)
        finally:
            scheduler.terminate()
            scheduler.communicate(timeout=LIMIT_S)
    finally:
        demo.terminate()
        demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 128 + signal.SIGTERM
    assert not list(short_folder.iterdir())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (POD, ["a"]),
        (f"{POD}---\n---\n{POD.replace('name: a', 'name: b')}", ["a", "b"]),
        ("kind: List\nitems:\n- {kind: Pod, metadata: {name: c, namespace: team}, spec: {}}\n", ["c"]),
        ("kind: Pod\nmetadata: {name: a, namespace: null}\nspec: {}\n", ["a"]),
    ],
)
def test_takes_pods(text: str, names: list[str], tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(text)
    stops = guests.read(file)
    assert [stop.name for stop in stops] == names
    assert all(stop.manifest["metadata"]["namespace"] in ("default", "team") for stop in stops)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no pod"),
        ("kind: List\nitems:\n", "holds no pod"),
        ("kind: List\nitems: 5\n", "holds 5: only"),
        ("hello", "holds 'hello': only"),
        ("- a\n", "only objects of kind Pod"),
        ("kind: Deployment\nmetadata: {name: d}\n", "holds 'Deployment': only"),
        ("kind: Pod\n", "without metadata.name"),
        ("kind: Pod\nmetadata:\n", "without metadata.name"),
        ("kind: Pod\nmetadata: text\n", "without metadata.name"),
        ("kind: Pod\nmetadata: {generateName: a-}\nspec: {}\n", "without metadata.name"),
        ("kind: Pod\nmetadata: {name: 5}\nspec: {}\n", "metadata.name 5 is no text"),
        ("kind: Pod\nmetadata: {name: a, namespace: 7}\nspec: {}\n", "metadata.namespace 7 is no text"),
        ("kind: Pod\nmetadata: {name: a}\n", "without a spec"),
        ("kind: [open", "cannot be read as YAML"),
    ],
)
def test_refuses_what_is_no_pod(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        guests.read(file)
    assert says in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--profiles", "a100,nope"], "'nope': no such file; known names are a10, a100"),
        (["--profiles", "a10"], "the tour needs a100,t4,rtx3090"),
        (["--profiles", ","], "at least one"),
        (["--pods", "/nonexistent.yaml"], "cannot be read: "),
        (["--containers", "real"], "expected auto or simulated"),
        (["--bogus"], "unknown argument '--bogus'"),
        (["extra"], "unknown argument 'extra'"),
    ],
)
def test_wrong_use_is_said_before_anything_starts(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run("hami", ["demo", *flags]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.out == ""


async def test_a_node_that_offers_nothing_in_time_is_an_error_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def node_without_shares(request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": "n"}})

    monkeypatch.setattr(stage, "START_LIMIT_S", 0.2)
    async with serving(node_without_shares) as address, ApiClient(Access(address)) as client:
        made = stage.Stage(["a100"])
        made.client = client
        with pytest.raises(HamiError, match=r"device-plugin n: no shares on n within 0\.2 s: it said nothing"):
            await made._wait_registered("n", HamiProcess("device-plugin n", [], tmp_path / "log"))
