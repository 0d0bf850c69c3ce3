"""The shared file: upstream's layout, the same in Python, and nothing in it can crash a process or lift a limit."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.shim.conftest import ContainerFactory, make_container
from tests.shim.container import json_lines, kill, used_values
from tests.shim.harness import MIB

# Upstream's version 1.2 (spec/shim.md 5): offsets that monitors outside this repository read.
MAGIC = 19920718
V1_SIZE = 2008952
UUIDS, UUID_LENGTH = 64, 96
MEMORY_LIMIT, CORE_LIMIT = 1600, 1728
SLOTS, SLOT_SIZE, SLOT_COUNT = 1856, 1960, 1024
STATUS, TOTAL_OF_CARD_0 = 1928, 8 + 32
PROCESS_COUNT = 2008896


def _u64(data: bytes, offset: int) -> int:
    return int(struct.unpack_from("<Q", data, offset)[0])


def _i32(data: bytes, offset: int) -> int:
    return int(struct.unpack_from("<i", data, offset)[0])


def _bytes_in_v1(data: bytes) -> int:
    """The sum over running slots, as upstream's monitor computes it."""
    total = 0
    for slot in range(min(_i32(data, PROCESS_COUNT), SLOT_COUNT)):
        start = SLOTS + slot * SLOT_SIZE
        if _i32(data, start + STATUS) != 0:
            total += _u64(data, start + TOTAL_OF_CARD_0)
    return total


def test_an_upstream_monitor_can_read_it(container: ContainerFactory) -> None:
    box = container(limit_mib=100)
    with box.holding(64) as holder:
        data = box.region.read_bytes()
        assert len(data) >= V1_SIZE
        assert (_i32(data, 0), _i32(data, 4), _i32(data, 8)) == (MAGIC, 1, 2)
        assert _u64(data, 56) == 1
        uuid = data[UUIDS : UUIDS + UUID_LENGTH].rstrip(b"\0").decode()
        assert uuid == box.machine.cards[0].uuid
        assert _u64(data, MEMORY_LIMIT) == 100 * MIB
        assert _i32(data, SLOTS) == holder.pid
        assert _bytes_in_v1(data) == 64 * MIB
    assert _bytes_in_v1(box.region.read_bytes()) == 0


def test_live_change_of_the_limit_is_noticed(container: ContainerFactory) -> None:
    """The monitor may write another limit while processes run (HAMi#1674)."""
    box = container(limit_mib=100)
    with box.holding(10):
        with box.region.open("r+b") as file:
            file.seek(MEMORY_LIMIT)
            file.write(struct.pack("<Q", 200 * MIB))
        done = box.run("test_alloc", 150)
        assert done.returncode in (0, 2)  # the newcomer's own environment says 100: either answer is a limit
        assert box.run("test_alloc", 195).returncode == 2


GARBAGE = {
    "empty": b"",
    "one byte": b"\x4e",
    "zeros": bytes(4096),
    "text": b"not a region\n" * 1000,
    "short v1": struct.pack("<iII", MAGIC, 1, 2) + bytes(1000),
    "whole v1 of zeros": struct.pack("<iII", MAGIC, 1, 2) + bytes(V1_SIZE - 12),
    "version 1.1": struct.pack("<iII", MAGIC, 1, 1) + bytes(V1_SIZE - 12),
    "version 9": struct.pack("<iII", MAGIC, 9, 9) + bytes(V1_SIZE - 12),
    "other magic": struct.pack("<iII", 7, 1, 2) + bytes(V1_SIZE - 12),
    "all ones": b"\xff" * (V1_SIZE + 8192),
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_leftover_file_of_any_kind(container: ContainerFactory, content: bytes) -> None:
    """Nobody is attached: the file is made anew, the limit holds."""
    box = container(limit_mib=100)
    box.region.write_bytes(content)
    assert box.run("test_alloc", 64, timeout_s=120).returncode == 0
    assert box.run("test_alloc", 128, timeout_s=120).returncode == 2


def test_limit_of_a_leftover_region_is_forgotten(container: ContainerFactory) -> None:
    """A stale file kept old limits after a restart with new ones (HAMi-core#7)."""
    box = container(limit_mib=100)
    assert box.run("test_alloc", 64).returncode == 0
    raised = {"CUDA_DEVICE_MEMORY_LIMIT_0": "200m"}
    assert box.run("test_alloc", 150, extra=raised).returncode == 0
    assert box.run("test_alloc", 64, extra={"CUDA_DEVICE_MEMORY_LIMIT_0": "50m"}).returncode == 2


def _scribble(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for _ in range(chance.randrange(1, 40)):
            near_header = chance.random() < 0.5
            file.seek(chance.randrange(0, 6000 if near_header else size - 8))
            file.write(chance.choice([chance.randbytes(8), b"\xff" * 8, bytes(8)]))
        if chance.random() < 0.3:
            file.seek(V1_SIZE + 8192 - V1_SIZE % 4096)
            file.write(chance.randbytes(chance.randrange(1, 3000)))


def test_scribbled_region_after_use(container: ContainerFactory) -> None:
    """Random bytes anywhere in a region that nobody is attached to: the next process works within its limit."""
    chance = random.Random(4)
    box = container(limit_mib=100)
    assert box.run("test_alloc", 64).returncode == 0
    for _ in range(40):
        _scribble(box.region, chance)
        assert box.run("test_alloc", 64, timeout_s=120).returncode == 0
        assert box.run("test_alloc", 128, timeout_s=120).returncode == 2


def test_scribbled_region_in_use(container: ContainerFactory) -> None:
    """Random bytes under a running process: no crash and no hang of anybody; more than the card is never granted."""
    chance = random.Random(5)
    for _ in range(15):
        box = container(limit_mib=100)
        running = box.start("churn", 2, 1)
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "at work\n"
            _scribble(box.region, chance)
            for mib in (8, 128):
                done = box.run("test_alloc", mib, timeout_s=120)
                assert done.returncode >= 0, f"signal {-done.returncode}"
            assert running.poll() is None
        finally:
            kill([running])


def test_unwritable_folder_refuses_with_a_line(container: ContainerFactory, tmp_path: Path) -> None:
    """Not `exit`, not unlimited: a CUDA error and one line (HAMi#961, #1090)."""
    missing = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "no" / "such" / "folder" / "x.cache")}
    done = container(limit_mib=100).run("test_alloc", 8, extra=missing)
    assert done.returncode == 1
    assert "->" in done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "x.cache" in done.stderr


def test_open_policy_of_the_mounted_file(container: ContainerFactory, tmp_path: Path) -> None:
    config = tmp_path / "vgpu.conf"
    config.write_text(
        "CUDA_DEVICE_MEMORY_LIMIT_0=100m\nVGPU_FAILURE_POLICY=open\n"
        f"CUDA_DEVICE_MEMORY_SHARED_CACHE={tmp_path}/no/such/x.cache\n"
    )
    box = container(limit_mib=None, VGPU_CONFIG_FILE=str(config))
    assert box.run("test_alloc", 128).returncode == 0
    own = {"VGPU_CONFIG_FILE": None, "VGPU_FAILURE_POLICY": "open", "CUDA_DEVICE_MEMORY_LIMIT_0": "100m"}
    missing = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "no" / "x.cache")}
    assert box.run("test_alloc", 128, extra=own | missing).returncode == 1  # a program cannot choose it for itself


def test_region_is_for_all_users_of_the_container(container: ContainerFactory) -> None:
    box = container(limit_mib=100)
    assert box.run("test_alloc", 8).returncode == 0
    assert box.region.stat().st_mode & 0o777 == 0o666


def test_a_symbolic_link_is_not_followed(container: ContainerFactory, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me")
    box = container(limit_mib=100)
    box.region.symlink_to(target)
    assert box.run("test_alloc", 8).returncode == 1
    assert target.read_text() == "keep me"


def test_users_of_a_container_share_one_account(fakes: Path, shim: Path) -> None:
    """A process that is not root joins the region that root made, and the other way round."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process as another user")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        # Copies: the cache may lie in a home folder that other users cannot enter.
        programs = Path(shutil.copytree(fakes, folder / "fakes"))
        library = Path(shutil.copytree(shim, folder / "shim"))
        box = make_container(folder, programs, library, limit_mib=100)
        box.region.parent.chmod(0o777)
        with box.holding(64):
            command = [box.program("test_alloc"), "48"]
            done = subprocess.run(
                command, env=box.environment(), user=65534, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 2, done.stdout + done.stderr
            assert used_values(done)["before"] == 64 * MIB


def test_a_process_can_start_while_use_is_above_the_limit(container: ContainerFactory) -> None:
    """Nothing more is granted, but a context that costs nothing is not refused."""
    box = container(limit_mib=100)
    with box.holding(64):
        with box.region.open("r+b") as file:
            file.seek(MEMORY_LIMIT)
            file.write(struct.pack("<Q", 32 * MIB))
        (row,) = json_lines(box.run("cards", 1))
        assert (row["alloc"], row["free"], row["total"]) == (2, 0, 32 * MIB)
