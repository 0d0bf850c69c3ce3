"""`hami explain` on files and dumps that people have: odd, cut off, of other tools. An answer or one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hami.apps import explain
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
