"""Folders of every kind, found by hunting: the page of metrics stays whole, and the others are shown."""

from __future__ import annotations

import math
import os
import random
import struct
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami.core.objects import ObjectMeta, Pod
from hami.monitor import legacy_metrics, metrics
from hami.monitor.containers import give_feedback, look, release
from hami.monitor.monitor import _text
from hami.shim import layout
from hami.shim.old_layouts import ODD_SIZE, V0_SIZE
from tests.monitor.regions import MIB, container, region

SIZES = (
    0, 1, 11, 12, 4096, V0_SIZE, V0_SIZE + 1, layout.V1_SIZE - 1, layout.V1_SIZE, layout.V1_SIZE + 1, ODD_SIZE,
    ODD_SIZE + 1, layout.REGION_SIZE, layout.REGION_SIZE + 7,
)  # fmt: skip
SEEN_CARD = b"CUDA_DEVICE_MEMORY_SHARED_CACHE=/vgpu/none.cache\nNVIDIA_VISIBLE_DEVICES=GPU-a\n"
LIMITS = (
    None,
    b"",
    b"\xff\xfe=\n=\n==\n\n",
    SEEN_CARD + b"CUDA_DEVICE_MEMORY_LIMIT_0=" + b"9" * 5000 + b"m\nCUDA_DEVICE_SM_LIMIT=" + b"9" * 5000 + b"\n",
    SEEN_CARD + b"CUDA_DEVICE_MEMORY_LIMIT_0=-1m\nCUDA_DEVICE_SM_LIMIT=\n",
    b"CUDA_DEVICE_MEMORY_SHARED_CACHE=/vgpu/..\n",
    b"CUDA_DEVICE_MEMORY_SHARED_CACHE=/vgpu/.\n",
    b"CUDA_DEVICE_MEMORY_SHARED_CACHE=/vgpu/" + b"x" * 300 + b"\n",
)


def _content(chance: random.Random) -> bytes:
    size = chance.choice(SIZES)
    data = bytearray(chance.randbytes(size)) if chance.random() < 0.7 else bytearray(size)
    if size >= 12 and chance.random() < 0.9:
        struct.pack_into("<iII", data, 0, layout.MAGIC, 1, chance.choice((0, 1, 2, 3)))
    if size > 64 and chance.random() < 0.5:
        struct.pack_into("<Q", data, 56, chance.choice((0, 1, 16, 99, 2**63)))
    if size >= layout.REGION_SIZE and chance.random() < 0.5:
        struct.pack_into("<QI", data, layout.TAIL_OFFSET, layout.TAIL_MAGIC, layout.TAIL_VERSION)
    return bytes(data)


def _pods(count: int) -> dict[str, Pod]:
    return {f"u{i}": Pod(ObjectMeta(name=f"p{i}", namespace="d", uid=f"u{i}")) for i in range(count)}


@pytest.mark.parametrize("seed", range(3))
def test_a_page_of_any_regions_is_read_and_the_good_one_is_on_it(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    pods = _pods(40)
    for uid in pods:
        if uid == "u7":
            container(tmp_path, "u7_main", region("ours", processes=((0, 0, 300, 0, 1),)))
            continue
        container(tmp_path, f"{uid}_main", _content(chance))
        limits = chance.choice(LIMITS)
        if limits is not None:
            (tmp_path / "limits").mkdir(exist_ok=True)
            (tmp_path / "limits" / f"{uid}_main").write_bytes(limits)
    for _ in range(2):
        found = look(tmp_path, pods)
        give_feedback(found.uses, time.time())
        rows = metrics.rows("n", found.uses)
        families = [
            *metrics.container_families(rows, time.time()),
            *legacy_metrics.legacy_families("n", (), rows, (), time.time()),
        ]
        samples = [
            sample for family in text_string_to_metric_families(_text(families).decode()) for sample in family.samples
        ]
        assert all(math.isfinite(sample.value) for sample in samples)
        assert "u7_main" not in dict(found.problems)
        limit = [s for s in samples if s.name == "hami_vgpu_memory_limit_bytes" and s.labels["pod"] == "p7"]
        assert [each.value for each in limit] == [1000 * MIB]
    release(found.uses)


def test_what_is_no_file_of_a_region_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    """Links, pipes, sockets of a kind, folders, files that grow without end: the container owns its folder."""
    pods = _pods(6)
    good = container(tmp_path, "u0_main", region("ours"))
    for uid in list(pods)[1:]:
        container(tmp_path, f"{uid}_main")
    homes = [tmp_path / "containers" / f"u{i}_main" for i in range(6)]
    (homes[1] / "r.cache").symlink_to(good)
    os.mkfifo(homes[2] / "r.cache")
    (homes[3] / "r.cache").mkdir()
    (homes[4] / "r.cache").symlink_to("/dev/zero")
    with (homes[5] / "r.cache").open("wb") as file:
        file.truncate(1 << 40)
    found = look(tmp_path, pods)
    assert [use.pod for use in found.uses] == ["p0"]
    # An empty pipe looks as a region that is not begun.
    assert sorted(name for name, _ in found.problems) == [f"u{i}_main" for i in (1, 3, 4, 5)]
    assert give_feedback(found.uses, time.time()) == ()


def test_a_container_keeps_a_card_busy_at_most_wholly(tmp_path: Path) -> None:
    """Samples of several processes were added up to 300 (HAMi#555)."""
    busy = ((0, 0, 1, 60, 1), (0, 0, 1, 70, 1), (0, 0, 1, 2**63, 1))
    container(tmp_path, "u0_main", region("v1.2", processes=busy))
    container(tmp_path, "u1_main", region("v1.2", processes=busy[:1]))
    rows = metrics.rows("n", look(tmp_path, _pods(2)).uses)
    assert [metrics.sm_percent(row) for row in rows] == [100, 60]
