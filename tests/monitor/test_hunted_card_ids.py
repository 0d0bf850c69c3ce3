"""Ids of cards that containers write in their regions (HAMi #1811, #2302, #2561): of any length and bytes.

The label has 40 characters at most, as upstream's (spec/node 6.3; its maintainers kept that in HAMi PR 2562).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami.core.objects import ObjectMeta, Pod
from hami.monitor import metrics
from hami.monitor.containers import look, release
from hami.monitor.monitor import _text
from hami.shim import layout
from tests.monitor.regions import container, region

GOOD = "GPU-00000000-0000-0000-0000-000000000001"
FIRST = "GPU-first"
CASES = {
    "not there yet": (b"", None),
    "short": (b"GPU-a", "GPU-a"),
    "MIG of old drivers": (f"MIG-{GOOD}/7/0".encode(), f"MIG-{GOOD}"[:40]),
    "as long as its field": (b"x" * 96, "x" * 40),
    "no UTF-8": (b"\x80GPU-a", None),
    "quotes and lines": (b'a"b\\c\nd', 'a"b\\c\nd'),
    "a rest behind the end": (b"GPU-a\0\0rest", "GPU-a"),
    "the same twice": (GOOD.encode(), GOOD),
}


@pytest.mark.parametrize("kind", ["v0", "v1.1", "v1.1 odd", "v1.2", "ours"])
@pytest.mark.parametrize("case", CASES)
def test_hunted_2302_an_id_of_any_kind_hides_no_other_card(tmp_path: Path, kind: str, case: str) -> None:
    written, seen = CASES[case]
    content = region(kind, uuids=(FIRST, GOOD))
    field = 96
    at = content.index(FIRST.encode())
    assert len(layout.Region().uuid[0]) == field
    content = content[:at] + written.ljust(field, b"\0") + content[at + field :]
    container(tmp_path, "u0_main", content)
    container(tmp_path, "u1_main", region(kind, uuids=(GOOD,)))
    pods = {uid: Pod(ObjectMeta(name=uid, namespace="d", uid=uid)) for uid in ("u0", "u1")}
    found = look(tmp_path, pods)
    text = _text(list(metrics.container_families(metrics.rows("n", found.uses), time.time()))).decode()
    release(found.uses)
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    limits = [each for each in samples if each.name == "hami_vgpu_memory_limit_bytes"]
    ids = {pod: [each.labels["device_uuid"] for each in limits if each.labels["pod"] == pod] for pod in pods}
    assert ids == {"u0": [each for each in (seen, GOOD) if each is not None], "u1": [GOOD]}
    series = [(each.name, tuple(sorted(each.labels.items()))) for each in samples]
    assert len(series) == len(set(series))
    assert not found.problems
