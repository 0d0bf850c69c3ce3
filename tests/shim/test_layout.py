"""hami/shim/layout.py says what the C compiler says, and reads what the shim writes (spec/shim.md section 5)."""

from __future__ import annotations

import ctypes
import random
import subprocess
from pathlib import Path

import pytest

from hami.shim import layout
from tests.shim.conftest import ContainerFactory
from tests.shim.container import kill
from tests.shim.harness import MIB

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "region": layout.Region,
    "slot": layout.Slot,
    "usage": layout.Usage,
    "utilization": layout.Utilization,
    "tail": layout.Tail,
}


def _python_value(name: str) -> int:
    if name in ("lock_slot_base", "lock_init"):
        return int(getattr(layout, name.upper()))
    structure, _, field = name.partition(".")
    if not field:
        return ctypes.sizeof(STRUCTURES[structure])
    return int(getattr(STRUCTURES[structure], field).offset)


def test_every_offset_equals_the_compilers(shim: Path) -> None:
    done = subprocess.run([str(shim / "unit-shim"), "layout"], capture_output=True, text=True, check=True)
    from_c = {name: int(value) for name, _, value in (line.partition("=") for line in done.stdout.splitlines())}
    assert len(from_c) > 40
    assert {name: _python_value(name) for name in from_c} == from_c


def test_hash_table(shim: Path) -> None:
    done = subprocess.run([str(shim / "unit-shim"), "book"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_reads_a_running_container(container: ContainerFactory) -> None:
    box = container(limit_mib=100)
    with box.holding(64) as holder:
        state = layout.read_region(box.region)
        assert state.ours
        assert [(card.uuid, card.memory_limit_bytes) for card in state.cards] == [
            (box.machine.cards[0].uuid, 100 * MIB)
        ]
        assert [process.pid for process in state.processes] == [holder.pid]
        assert state.used_bytes(0) == 64 * MIB
        assert state.processes[0].cards[0].data_bytes == 64 * MIB
        kill([holder])
    assert layout.read_region(box.region).processes == ()
    assert layout.parse_region(box.region.read_bytes()).used_bytes(0) == 64 * MIB  # control: only the lock tells


@pytest.mark.parametrize("size", [0, 1, 4096, layout.V1_SIZE - 1])
def test_short_files_are_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.cache"
    path.write_bytes(bytes(size))
    with pytest.raises(layout.RegionError):
        layout.read_region(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(layout.RegionError):
        layout.read_region(tmp_path / "none.cache")


def test_random_bytes_never_crash_the_reader() -> None:
    chance = random.Random(9)
    for _ in range(20):
        data = bytearray(chance.randbytes(4096) * (layout.REGION_SIZE // 4096 + 1))
        data[:12] = layout.MAGIC.to_bytes(4, "little") + (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
        state = layout.parse_region(bytes(data))
        assert len(state.cards) <= layout.MAX_DEVICES
        assert state.used_bytes(0) >= 0
