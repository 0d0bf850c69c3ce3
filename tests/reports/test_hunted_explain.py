"""`hami explain` on files and dumps that people have: odd, cut off, of other tools. An answer or one clear line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hami.apps import doctor, explain
from tests.reports.site import Object, card, gpu, pod

NODE: Object = {
    "kind": "Node",
    "metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": json.dumps([card("GPU-1")])}},
    "status": {"allocatable": {"nvidia.com/gpu": "10"}},
}
ASKING: Object = {"kind": "Pod", **pod(gpu(gpu=1, mem=5), annotations={"note": "\U0001f600 é"})}
WORKLOAD: Object = {
    "kind": "CronJob",
    "metadata": {"name": "w"},
    "spec": {"jobTemplate": {"spec": {"template": {"metadata": {}, "spec": ASKING["spec"]}}}},
}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"kind": "List", "items": [NODE]}))
    return path


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Exit status and what stood in the error stream."""
    status = explain.main(list(argv))
    return status, capsys.readouterr().err


@pytest.mark.parametrize("body", [ASKING, WORKLOAD, {"kind": "List", "items": [{"kind": "Secret"}, ASKING]}])
def test_a_file_of_any_kind_that_holds_a_pod_is_read(
    body: Object, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON as kubectl prints it, where characters beyond the basic plane are written as two."""
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(body))
    assert told(capsys, "-f", str(file), "--dump", str(dump)) == (0, "")


@pytest.mark.parametrize("odd", [5, 1.5, True, "x", [None], [1], "\x00"])
@pytest.mark.parametrize("place", ["metadata", "spec", "kind"])
@pytest.mark.parametrize("body", [ASKING, WORKLOAD], ids=["pod", "workload"])
def test_a_file_with_something_else_in_a_place_is_one_clear_line(
    body: Object, place: str, odd: object, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps({**body, place: odd}))
    status, error = told(capsys, "-f", str(file), "--dump", str(dump))
    assert (status, error) == (0, "") or (status == 2 and error.startswith(f"hami explain: {file}: "))


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[]", b'{"kind": "List"', b'{"kind":"\xff"}', b"\x00", b'{"items":' + b"[" * 100_000,
     b'{"items": 5}', b'{"items": [{"kind": "Node", "metadata": {"name": 5}}]}', b"kind: List", b'{"items": []}'],
)  # fmt: skip
def test_a_dump_that_is_none_is_named(text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "dump.json"
    file.write_bytes(text)
    status, error = told(capsys, "default/p", "--dump", str(file))
    assert status == 2
    assert error.startswith(f"hami explain: {file} ")
    assert "kubectl get nodes,pods,resourcequotas" in error


RENAMED = "nvidia:\n  resourceCountName: example.com/gpu\n  resourceMemoryName: example.com/gpumem\n"


def test_resources_of_other_names_are_read_from_the_device_configuration(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, file = tmp_path / "device-config.yaml", tmp_path / "pod.json"
    config.write_text(RENAMED)
    asking = pod({"name": "c", "resources": {"limits": {"example.com/gpu": "1", "example.com/gpumem": "20000"}}})
    file.write_text(json.dumps({"kind": "Pod", **asking}))
    status = explain.main(["-f", str(file), "--dump", str(dump), "--device-config-file", str(config)])
    assert (status, "CardInsufficientMemory" in capsys.readouterr().out) == (1, True)


@pytest.mark.parametrize("command", [explain.main, doctor.main], ids=["explain", "doctor"])
@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("nvidia: 5", "expected a mapping, found 5")])
def test_a_device_configuration_that_cannot_be_used_is_one_clear_line(
    command: Callable[[list[str]], int],
    text: str | None,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "device-config.yaml"
    if text is not None:
        config.write_text(text)
    argv = ["default/p", "--dump", "-"] if command is explain.main else []
    assert command([*argv, "--device-config-file", str(config)]) == 2
    assert words in capsys.readouterr().err
