"""The images' parts that need no container engine: what is copied exists, what the init container does on the host."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hami import __version__
from hami.config.device_plugin import FLAGS
from scripts import images
from tests.chart.installing import install
from tests.chart.rendering import ROOT

DOCKERFILES = ("Dockerfile.scheduler", "Dockerfile.plugin")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_copied_is_there_and_not_ignored(name: str) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(\S+) ", (ROOT / name).read_text(), flags=re.M)
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert any(source == each or source.startswith(f"{each}/") for each in kept), f"{source} is ignored"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_bases_are_arguments_and_packages_are_locked(name: str) -> None:
    text = (ROOT / name).read_text()
    stages = set(re.findall(r" AS (\S+)$", text, flags=re.M))
    assert set(re.findall(r"^FROM (\S+)", text, flags=re.M)) <= {"${BASE}", "${BUILD_BASE}"} | stages
    installs = re.findall(
        r"pip\S* install[^\n]*(?:\\\n[^\n]*)*", text + (ROOT / "docker" / "install-packages.sh").read_text()
    )
    assert installs
    assert all("--require-hashes" in install for install in installs)


def test_scheduler_image_runs_as_nobody_special() -> None:
    assert "USER 65532:65532" in (ROOT / "Dockerfile.scheduler").read_text()


def test_images_are_named_after_everything_that_they_copy() -> None:
    for name, (dockerfile, *sources) in images.SOURCES.items():
        copied = set(re.findall(r"^COPY (?!--from)(\S+) ", (ROOT / dockerfile).read_text(), flags=re.M))
        forgotten = {one for one in copied if not any(one == each or one.startswith(f"{each}/") for each in sources)}
        assert not forgotten, f"{name}: a change of {forgotten} would not be seen"


def test_name_changes_with_content_and_base_only() -> None:
    before = images.content("hami-scheduler", "base:1")
    assert images.content("hami-scheduler", "base:1") == before
    assert images.content("hami-scheduler", "base:2") != before
    assert images.content("hami-device-plugin", "base:1") != before


def test_an_unknown_image_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no image 'hami': there are hami-scheduler, hami-device-plugin, kube-sched"):
        images.ensure("hami")


def test_library_is_installed_under_its_version(tmp_path: Path) -> None:
    source, target = tmp_path / "image", tmp_path / "host" / "vgpu"
    source.mkdir()
    (source / f"libvgpu.so.{__version__}").write_text("one")
    (source / "vgpu-info").write_text("info")
    install(source, target)
    assert (target / f"libvgpu.so.{__version__}").read_text() == "one"
    assert (target / "ld.so.preload").read_text() == f"{target}/libvgpu.so\n"
    assert (target / "containers").is_dir()
    assert os.access(target / "vgpu-info", os.X_OK)
    assert not [entry.name for entry in target.iterdir() if entry.name.startswith(".")], "no halves are left"
    assert next(flag for flag in FLAGS if flag.name == "hook-path").default == "/usr/local"


def test_a_library_in_use_is_never_written_to(tmp_path: Path) -> None:
    source, target = tmp_path / "image", tmp_path / "vgpu"
    source.mkdir()
    library = source / "libvgpu.so.1"
    library.write_text("one")
    install(source, target)
    with (target / "libvgpu.so.1").open() as mapped:
        before = os.fstat(mapped.fileno()).st_ino
        install(source, target)
        assert (target / "libvgpu.so.1").stat().st_ino == before, "an equal library stays as it is"
        library.write_text("two")
        (source / "libvgpu.so.2").write_text("next")
        install(source, target)
        assert mapped.read() == "one", "who has it open keeps it"
    assert (target / "libvgpu.so.1").read_text() == "two"
    assert (target / "libvgpu.so.2").read_text() == "next"
