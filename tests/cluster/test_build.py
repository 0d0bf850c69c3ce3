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


def test_finished_build_needs_no_go(binaries: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path_with(tmp_path / "bin", monkeypatch, None)
    assert build.missing_prerequisite() is None
    assert build.ensure(progress=False) == binaries


@pytest.mark.parametrize("component", build.COMPONENTS)
def test_components_report_the_pinned_release(binaries: Binaries, component: str) -> None:
    flags = ["version", "--client"] if component == "kubectl" else ["--version"]
    shown = subprocess.run([binaries.path(component), *flags], capture_output=True, text=True, check=True).stdout
    assert f"v{binaries.kubernetes_version}" in shown
