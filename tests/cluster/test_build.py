"""The build's own promises: clear words when something is missing, and nothing half-made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster import build
from tests.cluster.build import Binaries


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HAMI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def path_with(folder: Path, monkeypatch: pytest.MonkeyPatch, go_script: str | None) -> None:
    """A PATH that holds a `go` of our own, or none."""
    folder.mkdir()
    if go_script is not None:
        (folder / "go").write_text(f"#!/bin/sh\n{go_script}\n")
        (folder / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin" if go_script else str(folder))


@pytest.mark.usefixtures("empty_cache")
def test_missing_go_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path_with(tmp_path / "bin", monkeypatch, None)
    assert "Go 1.26 or newer is not installed" in (build.missing_prerequisite() or "")
    with pytest.raises(build.BuildError, match="not installed"):
        build.ensure(progress=False)


@pytest.mark.usefixtures("empty_cache")
def test_old_go_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path_with(tmp_path / "bin", monkeypatch, "echo go1.22.3")
    assert "found go1.22" in (build.missing_prerequisite() or "")


@pytest.mark.usefixtures("empty_cache")
def test_full_disk_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    monkeypatch.setattr(build, "COLD_BUILD_BYTES", 1 << 60)
    assert "GiB are free" in (build.missing_prerequisite() or "")


def test_failed_build_leaves_nothing_and_shows_the_compilers_words(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        f'case "$1" in env) [ $2 = GOVERSION ] && echo go1.30.0 || echo {tmp_path} ;; *) echo boom >&2; exit 2 ;; esac'
    )
    path_with(tmp_path / "bin", monkeypatch, script)
    monkeypatch.setattr(build, "COLD_BUILD_BYTES", 0)
    with pytest.raises(build.BuildError, match="boom"):
        build.ensure(progress=False)
    assert list((empty_cache / "control-plane").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "begun"),
    [
        ("m@v1.0.0: Get https://proxy.invalid/m: dial tcp 192.0.2.1:443: i/o timeout", build.ATTEMPTS),
        ("m@v1.0.0: reading https://proxy.invalid/m/@v/v1.0.0.zip: 503 Service Unavailable", build.ATTEMPTS),
        ("main.go:5:2: undefined: main.x", 1),
        ("m@v1.0.0: reading https://proxy.invalid/m/@v/v1.0.0.zip: 404 Not Found", 1),
    ],
)
def test_a_module_that_cannot_be_fetched_now_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, begun: int
) -> None:
    path_with(tmp_path / "bin", monkeypatch, f"echo begun >> {tmp_path}/log; echo '{said}' >&2; exit 1")
    monkeypatch.setattr(build, "PAUSE_S", 0)
    source, output = tmp_path / "source", tmp_path / "output"
    source.mkdir()
    output.mkdir()
    with pytest.raises(build.BuildError, match="go build of source failed"):
        build.compile_module(source, "v1.0.0", output, "", progress=False)
    assert (tmp_path / "log").read_text().split() == ["begun"] * begun


def test_a_build_that_succeeds_at_last_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"test -e {tmp_path}/tried && echo made > {tmp_path}/output/source && exit 0\n"
    script += f"touch {tmp_path}/tried; echo 'dial tcp: i/o timeout' >&2; exit 1"
    path_with(tmp_path / "bin", monkeypatch, script)
    monkeypatch.setattr(build, "PAUSE_S", 0)
    (tmp_path / "source").mkdir()
    (tmp_path / "output").mkdir()
    build.compile_module(tmp_path / "source", "v1.0.0", tmp_path / "output", "", progress=False)
    assert (tmp_path / "output/source").read_text() == "made\n"


def test_finished_build_needs_no_go(binaries: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path_with(tmp_path / "bin", monkeypatch, None)
    assert build.missing_prerequisite() is None
    assert build.ensure(progress=False) == binaries


@pytest.mark.parametrize("component", build.COMPONENTS)
def test_components_report_the_pinned_release(binaries: Binaries, component: str) -> None:
    flags = ["version", "--client"] if component == "kubectl" else ["--version"]
    shown = subprocess.run([binaries.path(component), *flags], capture_output=True, text=True, check=True).stdout
    assert f"v{binaries.kubernetes_version}" in shown
