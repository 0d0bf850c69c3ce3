"""Every layout is read, nothing that a container puts into its folder breaks or misleads the monitor."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.monitor import regions
from hami.monitor.feedback import Feedback
from hami.shim import layout
from hami.shim.layout import RegionError, parse_region, read_region
from hami.shim.old_layouts import OddRegion, V0Region
from tests.monitor.regions import LAYOUTS, MIB, container, region

OFFSETS = [
    (V0Region, {"procs": 1848, "proc_count": 1_197_880, "recent_kernel": 1_197_888, "priority": 1_197_892}, 1_197_896),
    (layout.Region, {"procs": 1856, "recent_kernel": 2_008_904, "last_kernel_time": 2_008_912}, None),
    (OddRegion, {"procs": 1888, "recent_kernel": 2_008_936, "last_kernel_time": 2_008_944}, 2_008_984),
]


@pytest.mark.parametrize(("structure", "offsets", "size"), OFFSETS)
def test_offsets_are_those_of_the_specification(
    structure: type[ctypes.Structure], offsets: dict[str, int], size: int | None
) -> None:
    assert {name: getattr(structure, name).offset for name in offsets} == offsets
    assert size is None or ctypes.sizeof(structure) == size


@pytest.mark.parametrize("kind", [kind for kind in LAYOUTS if kind != "ours"])
def test_every_layout_says_the_same(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "r.cache"
    processes = ((10, 20, 70, 15, 1), (0, 0, 5, 7, 2), (99, 99, 99, 99, 0))
    path.write_bytes(region(kind, uuids=("GPU-a", "GPU-b"), processes=processes, last_kernel_s=1700))
    assert path.stat().st_size == LAYOUTS[kind][2]
    state = regions.read(path)
    assert [(card.index, card.uuid, card.memory_limit_bytes, card.core_limit_percent) for card in state.cards] == [
        (0, "GPU-a", 1000 * MIB, 30),
        (1, "GPU-b", 1000 * MIB, 30),
    ]
    assert [process.status for process in state.processes] == [1, 2]
    assert (state.used_bytes(0), state.used_bytes(1)) == (105 * MIB, 0)
    assert sum(process.cards[0].sm_percent for process in state.processes) == 22
    assert (state.recent_kernel, state.utilization_switch, state.priority) == (2, 1, 1)
    assert state.last_kernel_time_s == (0 if kind == "v0" else 1700)
    assert state == read_region(path)


def test_processes_of_ours_that_hold_no_slot_are_gone(tmp_path: Path) -> None:
    """Control: the same bytes without our tail list them, as upstream's regions do."""
    path = tmp_path / "r.cache"
    path.write_bytes(region("ours", processes=((0, 0, 64, 0, 1),)))
    assert regions.read(path).processes == ()
    path.write_bytes(region("v1.2", processes=((0, 0, 64, 0, 1),)))
    assert regions.read(path).used_bytes(0) == 64 * MIB


@pytest.mark.parametrize("kind", LAYOUTS)
def test_only_the_two_fields_of_the_feedback_are_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "r.cache"
    before = region(kind, processes=((1, 2, 3, 4, 1),), recent=1, switch=1)
    path.write_bytes(before)
    regions.write(path, regions.read(path), Feedback(-1, 0))
    assert path.read_bytes() == region(kind, processes=((1, 2, 3, 4, 1),), recent=-1, switch=0)
    regions.write(path, regions.read(path), Feedback(1, 1))
    assert path.read_bytes() == before


def test_nothing_is_written_where_nothing_differs(tmp_path: Path) -> None:
    path = tmp_path / "r.cache"
    path.write_bytes(region(recent=1, switch=0))
    os.utime(path, (1, 1))
    regions.write(path, regions.read(path), Feedback(1, 0))
    assert path.stat().st_mtime == 1


def test_a_region_that_became_another_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "r.cache"
    path.write_bytes(region("v1.1 odd"))
    state = regions.read(path)
    for other in (region("v1.2"), b"", b"short", bytes(3_000_000)):
        path.write_bytes(other)
        with pytest.raises(RegionError):
            regions.write(path, state, Feedback(-1, 0))
        assert path.read_bytes() == other


WHOLE = region("v1.2")
BAD = {
    "nothing": b"",
    "five bytes": WHOLE[:5],
    "header alone": WHOLE[:12],
    "804,681 bytes of an older release": WHOLE[:804_681],
    "cut v1": WHOLE[: layout.V1_SIZE - 900_000],
    "other magic": b"\1\2\3\4" + WHOLE[4:],
    "version 2": struct.pack("<iII", layout.MAGIC, 2, 0) + WHOLE[12:],
    "version 1.3, which B109 skips": struct.pack("<iII", layout.MAGIC, 1, 3) + WHOLE[12:],
    "text": b"KEY=VALUE\n" * 300_000,
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_what_is_no_region_is_refused_with_a_reason(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.cache"
    path.write_bytes(content)
    with pytest.raises(RegionError, match=r"\w"):
        regions.read(path)


def test_links_pipes_folders_and_missing_files_are_not_read(tmp_path: Path) -> None:
    """A container could point its region at a file of the node, or make the monitor wait for a pipe's other end."""
    secret = tmp_path / "secret"
    secret.write_bytes(region())
    state = regions.read(secret)  # control: readable by its own name
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "none"):
        with pytest.raises(RegionError):
            regions.read(tmp_path / name)
        with pytest.raises(RegionError):
            regions.write(tmp_path / name, state, Feedback(-1, 0))
    assert secret.read_bytes() == region()


@given(st.binary(max_size=400), st.integers(0, 2_008_700), st.sampled_from(list(LAYOUTS)))
def test_random_bytes_anywhere_are_read_or_refused(noise: bytes, position: int, kind: str) -> None:
    data = bytearray(region(kind))
    data[position : position + len(noise)] = noise
    try:
        state = parse_region(bytes(data))
    except RegionError:
        return
    assert len(state.cards) <= 16
    assert len(state.processes) <= 1024
    assert all(card.uuid for card in state.cards)


@given(st.binary(max_size=200), st.integers(0, 2_100_000))
def test_random_headers_and_lengths_are_read_or_refused(noise: bytes, length: int) -> None:
    data = (struct.pack("<i", layout.MAGIC) + noise).ljust(length, noise[-1:] or b"\0")
    try:
        state = parse_region(data)
    except RegionError:
        return
    assert length >= 1_197_000
    assert len(state.cards) <= 16


def test_the_limits_file_names_the_region(tmp_path: Path) -> None:
    """A container adds a file that sorts first; without limits (upstream's plugin) that is a reason to refuse."""
    right = container(tmp_path, "u_main", region(), name="right.cache")
    container(tmp_path, "u_main", region(), name="a.cache")
    with pytest.raises(RegionError, match="2 files"):
        regions.region_path(tmp_path, "u_main")
    (tmp_path / "limits").mkdir()
    (tmp_path / "limits/u_main").write_text(
        "CUDA_DEVICE_MEMORY_LIMIT_0=1m\nCUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/right.cache\n"
    )
    assert regions.region_path(tmp_path, "u_main") == right
    right.write_bytes(b"")
    assert regions.region_path(tmp_path, "u_main") is None
    right.unlink()
    assert regions.region_path(tmp_path, "u_main") is None


def test_the_one_cache_file_is_the_region(tmp_path: Path) -> None:
    made = container(tmp_path, "u_main")
    assert regions.region_path(tmp_path, "u_main") is None
    (made.parent / "vgpu.conf").touch()
    container(tmp_path, "u_main", region())
    assert regions.region_path(tmp_path, "u_main") == made
