"""Commands for people, when what they say cannot be written: a full disk, a reader that has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "vllm.yaml"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    dump = tmp_path / "dump.json"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "n1"}}
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node]}))
    return [sys.executable, "-m", "hami.apps", "explain", "-f", str(EXAMPLE), "--dump", str(dump)]


def _run(command: list[str], stdout: int) -> tuple[int, str]:
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def test_answer(command: list[str]) -> None:
    """The control of those below: with a place to write to, the answer is no."""
    status, errors = _run(command, subprocess.DEVNULL)
    assert (status, errors) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_is_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        status, errors = _run(command, full.fileno())
    assert status == 2, "1 is an answer"
    assert errors.strip().endswith("No space left on device")
    assert len(errors.splitlines()) == 1


def test_reader_gone_is_quiet(command: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        status, errors = _run(command, theirs)
    finally:
        os.close(theirs)
    assert (status, errors) == (141, "")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--help"], 1), (["--version"], 1), (["certs"], 1), (["dev"], 1), (["doctor", "--help"], 0),
     (["dev", "scheduler-config", "--extender-url", "http://a:1"], 1), (["nonsense"], 2), (["certs", "nonsense"], 2)],
)  # fmt: skip
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line_for_every_command(arguments: list[str], status: int) -> None:
    with Path("/dev/full").open("w") as full:
        found, errors = _run([sys.executable, "-m", "hami.apps", *arguments], full.fileno())
    assert "Traceback" not in errors
    assert found == status
    assert len(errors.splitlines()) == (1 if status else 0)


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_closed_streams_lead_nowhere(closed: tuple[int, ...], tmp_path: Path) -> None:
    """No file that is written may get the number of a closed stream, and no error the place of an answer."""
    streams = " ".join(f"{number}>&-" for number in closed)
    told = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m hami.apps certs create --host a --out certs {streams}', sys.executable],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert told.returncode == 0
    assert sorted(path.name for path in (tmp_path / "certs").iterdir()) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    wrong = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m hami.apps explain -f nowhere.yaml {streams}', sys.executable],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", "")


def test_a_user_without_a_home_is_told_what_is_missing(tmp_path: Path) -> None:
    """A uid that no passwd entry knows, as on OpenShift or under systemd's DynamicUser."""
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "KUBECONFIG")}
    code = (
        "import pwd, sys\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "from hami.apps.cli import run\n"
        "sys.exit(run('hami', ['explain', 'default/p']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pass --kubeconfig" in done.stderr
    assert len(done.stderr.splitlines()) == 1


HOSTILE = 'T4 [/red] [bold]x\x1b]0;title\x07 \x9b2J \u202e rev \U0001f600 "z"\nnothing is wrong'
"""A card's model as somebody who may write one node could choose it."""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_what_others_wrote_cannot_steer_the_terminal(tmp_path: Path, form: str, encoding: str) -> None:
    card = {"id": "GPU-a", "count": 1, "devmem": 10, "devcore": 100, "type": HOSTILE, "health": True}
    notes = {"hami.io/node-nvidia-register": json.dumps([card]), "hami.io/node-handshake": "Reported"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "n1", "annotations": notes}}
    node["status"] = {"allocatable": {"nvidia.com/gpu": "1"}}
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node]}))
    command = [sys.executable, "-m", "hami.apps", "explain", "-f", str(EXAMPLE), "--dump", str(dump), "-o", form]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stderr) == (1, b"")
    said = done.stdout.decode(encoding)
    assert "GPU-a" in said
    assert "title" in said, "the model is shown"
    assert not {letter for letter in said if not letter.isprintable()} - {"\n"}
    if form == "json":
        assert any(HOSTILE in text for text in _texts(json.loads(said)))


def _texts(value: object) -> set[str]:
    """Every text in a JSON document."""
    if isinstance(value, dict):
        return set[str]().union(*(_texts(each) for each in value.values()))
    if isinstance(value, list):
        return set[str]().union(*(_texts(each) for each in value))
    return {value} if isinstance(value, str) else set()
