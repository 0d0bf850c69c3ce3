"""What the installer of the in-container library finds on hosts, found by hunting."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.chart.installing import INIT, install


@pytest.mark.parametrize("name", ["libvgpu.so", "libvgpu.so.1", "vgpu-info", "ld.so.preload"])
@pytest.mark.parametrize("left", ["folder", "full folder", "dangling link", "link to a folder", "empty file"])
def test_what_lies_under_a_name_of_ours_gives_way(tmp_path: Path, name: str, left: str) -> None:
    """A runtime makes an empty folder for a file it was to mount too early; containers then start unlimited, with
    "cannot read file data: Is a directory" (HAMi#663, #777, #1346)."""
    source, target = tmp_path / "image", tmp_path / "vgpu"
    source.mkdir()
    for each in ("libvgpu.so", "libvgpu.so.1", "vgpu-info"):
        (source / each).write_text(each)
    target.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    match left:
        case "folder":
            (target / name).mkdir()
        case "full folder":
            (target / name).mkdir()
            (target / name / ".libvgpu.so.7").touch()
        case "dangling link":
            (target / name).symlink_to(tmp_path / "nowhere")
        case "link to a folder":
            (target / name).symlink_to(elsewhere)
        case _:
            (target / name).touch()
    for _ in range(2):
        install(source, target)
        for each in ("libvgpu.so", "libvgpu.so.1", "vgpu-info"):
            assert (target / each).read_text() == each
        assert (target / "ld.so.preload").read_text() == f"{target}/libvgpu.so\n"
        assert sorted(entry.name for entry in target.iterdir()) == [
            "containers", "ld.so.preload", "libvgpu.so", "libvgpu.so.1", "vgpu-info",
        ]  # fmt: skip
    assert [entry.name for entry in elsewhere.iterdir()] == ["kept"]


def test_an_image_without_a_library_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    with pytest.raises(subprocess.CalledProcessError):
        install(tmp_path / "image", tmp_path / "vgpu")
    assert not (tmp_path / "vgpu" / "ld.so.preload").exists()
    assert INIT.exists()
