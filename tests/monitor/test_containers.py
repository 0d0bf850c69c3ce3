"""Folders matched to pods, feedback over a whole node, and when a folder without a pod goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from hami.core.errors import TransportError
from hami.core.objects import ObjectMeta, Pod
from hami.monitor.collect import Collector
from hami.monitor.containers import Look, give_feedback, look, release
from hami.shim.layout import read_region
from tests.monitor.regions import container, region

LONG_AGO_S = 1_600_000_000


def pod(uid: str, name: str = "p") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=uid))


def seen(vgpu: Path, *pods: Pod) -> Look:
    return look(vgpu, {each.metadata.uid: each for each in pods})


def test_no_folder_of_folders_yet(tmp_path: Path) -> None:
    assert seen(tmp_path, pod("u")) == Look()


def test_folders_are_matched_by_uid_and_container(tmp_path: Path) -> None:
    container(tmp_path, "u1_main", region())
    container(tmp_path, "u1_side_car", region(uuids=("GPU-b",)))
    container(tmp_path, "u1_not-started")
    container(tmp_path, "u2_main", region())
    container(tmp_path, "gone_main", region())
    found = seen(tmp_path, pod("u1", "one"), pod("u2", "two"), pod("u3", "three"))
    assert [(use.namespace, use.pod, use.container) for use in found.uses] == [
        ("ns", "one", "main"),
        ("ns", "one", "side_car"),
        ("ns", "two", "main"),
    ]
    assert found.strangers == {"gone_main"}
    assert found.problems == ()


@pytest.mark.parametrize(
    ("state", "sidecar", "shown"),
    [
        ({"terminated": {"exitCode": 0}}, False, False),
        ({"terminated": {"exitCode": 1}}, False, True),
        ({"terminated": {"exitCode": 0}}, True, True),
        ({"running": {}}, False, True),
        ({"waiting": {}}, False, True),
        (None, False, True),
    ],
)
def test_an_init_container_that_has_done_its_work_has_no_share(
    tmp_path: Path, state: dict[str, object] | None, sidecar: bool, shown: bool
) -> None:
    """Its rows would go on for the pod's life (HAMi #2716, volcano-vgpu #130, #131); its folder stays all the same."""
    spec = {
        "initContainers": [{"name": "fetch"} | ({"restartPolicy": "Always"} if sidecar else {})],
        "containers": [{"name": "main"}],
    }
    status = {"initContainerStatuses": [{"name": "fetch", "state": state}]}
    known = msgspec.convert({"metadata": {"uid": "u"}, "spec": spec, "status": status}, Pod)
    for name in ("u_fetch", "u_main"):
        container(tmp_path, name, region())
    found = seen(tmp_path, known)
    assert [use.container for use in found.uses] == (["fetch", "main"] if shown else ["main"])
    assert (found.strangers, found.problems) == (frozenset(), ())


def test_odd_names_and_bad_regions_hide_nobody_else(tmp_path: Path) -> None:
    for folder, content in {"_c": None, "u_": None, "plain": None, "u_bad": b"no region", "u_good": region()}.items():
        container(tmp_path, folder, content)
    (tmp_path / "containers/u_file").touch()
    (tmp_path / "containers/u_link").symlink_to(tmp_path)
    found = seen(tmp_path, pod("u"))
    assert [use.container for use in found.uses] == ["good"]
    assert [name for name, _ in found.problems] == ["_c", "plain", "u_", "u_bad"]
    assert found.strangers == set()


def test_a_crowded_folder_costs_little(tmp_path: Path) -> None:
    home = container(tmp_path, "u_main", region()).parent
    for index in range(3000):
        (home / f"z{index}").touch()
    found = seen(tmp_path, pod("u"))
    assert len(found.uses) <= 1


def test_feedback_reaches_every_container_of_every_card(tmp_path: Path) -> None:
    high = container(tmp_path, "u1_a", region("v1.1", uuids=("GPU-a",), priority=0))
    low = container(tmp_path, "u2_a", region("v1.1 odd", uuids=("GPU-b", "GPU-a")))
    ours = container(tmp_path, "u3_a", region("ours", uuids=("GPU-c",)))
    old = container(tmp_path, "u4_a", region("v0", uuids=("GPU-c",)))
    pods = [pod(f"u{index}") for index in range(1, 5)]

    def state(path: Path) -> tuple[int, int]:
        read = read_region(path)
        return read.recent_kernel, read.utilization_switch

    assert give_feedback(seen(tmp_path, *pods).uses, time.time()) == ()
    assert [state(path) for path in (high, low, ours, old)] == [(1, 0), (-1, 1), (1, 1), (1, 1)]
    assert give_feedback(seen(tmp_path, *pods).uses, time.time()) == ()
    assert [state(path) for path in (high, low, ours, old)] == [(0, 0), (0, 0), (0, 0), (0, 0)]


def test_a_container_that_cannot_be_written_holds_up_nobody(tmp_path: Path) -> None:
    first = container(tmp_path, "u1_a", region())
    second = container(tmp_path, "u2_a", region())
    uses = seen(tmp_path, pod("u1"), pod("u2")).uses
    first.unlink()
    assert [name for name, _ in give_feedback(uses, time.time())] == ["u1_a"]
    assert read_region(second).recent_kernel == 1


def test_an_ending_monitor_leaves_nobody_waiting(tmp_path: Path) -> None:
    path = container(tmp_path, "u1_a", region(recent=-1, switch=1))
    other = container(tmp_path, "u2_a", region(recent=2, switch=0))
    release(seen(tmp_path, pod("u1"), pod("u2")).uses)
    assert (read_region(path).recent_kernel, read_region(path).utilization_switch) == (0, 1)
    assert (read_region(other).recent_kernel, read_region(other).utilization_switch) == (2, 0)


class Api:
    """Reads of this node's pods from the API server."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = list(pods)
        self.reads = 0
        self.broken = False

    async def list_pods(self) -> list[Pod]:
        self.reads += 1
        if self.broken:
            raise TransportError("no route")
        return self.pods


def old(path: Path, time_s: float = LONG_AGO_S) -> Path:
    os.utime(path.parent, (time_s, time_s))
    return path


async def test_an_old_folder_without_a_pod_goes_with_its_limits(tmp_path: Path) -> None:
    path = old(container(tmp_path, "u_main", region()))
    limits = tmp_path / "limits/u_main"
    limits.parent.mkdir()
    limits.touch()
    kept = old(container(tmp_path, "alive_main", region()))
    collector = Collector(tmp_path, 0, Api().list_pods)
    assert await collector.collect(seen(tmp_path, pod("alive")).strangers) == {"u_main"}
    assert (path.parent.exists(), limits.exists(), kept.exists(), collector.collected) == (False, False, True, 1)


@pytest.mark.parametrize(
    ("grace_s", "changed_s_ago", "goes"),
    [(300, 10_000, False), (0, 10_000, True), (0, -10_000, True)],
    ids=["old, but first seen now", "old", "dated into the future by its container"],
)
async def test_grace_counts_from_the_first_look(
    tmp_path: Path, grace_s: float, changed_s_ago: float, goes: bool
) -> None:
    path = old(container(tmp_path, "u_main", region()), time.time() - changed_s_ago)
    collector = Collector(tmp_path, grace_s, Api().list_pods)
    for _ in range(2):
        await collector.collect(seen(tmp_path).strangers)
    assert path.exists() is not goes


async def test_a_young_folder_stays_until_it_is_old(tmp_path: Path) -> None:
    """The plugin makes the folder a moment before the watch tells of the pod."""
    path = container(tmp_path, "u_main", region())
    api = Api()
    collector = Collector(tmp_path, 0.4, api.list_pods)
    first = seen(tmp_path).strangers
    assert await collector.collect(first) == frozenset()
    assert api.reads == 0
    deadline_s = time.monotonic() + 60
    while path.exists() and time.monotonic() < deadline_s:
        await collector.collect(seen(tmp_path).strangers)
    assert not path.exists()


async def test_the_api_server_has_the_last_word(tmp_path: Path) -> None:
    path = old(container(tmp_path, "u_main", region()))
    api = Api(pod("u"))
    collector = Collector(tmp_path, 0, api.list_pods)
    with capture_logs() as said:
        assert await collector.collect({"u_main"}) == frozenset()
    assert said == []
    api.broken = True
    assert await collector.collect({"u_main"}) == frozenset()
    assert path.exists()
    api.broken, api.pods = False, []
    assert await collector.collect({"u_main"}) == {"u_main"}
    assert not path.exists()


async def test_a_pod_that_appears_again_starts_a_new_grace(tmp_path: Path) -> None:
    path = old(container(tmp_path, "u_main", region()))
    collector = Collector(tmp_path, 0.3, Api().list_pods)
    await collector.collect({"u_main"})
    await collector.collect(())
    assert await collector.collect({"u_main"}) == frozenset()
    assert path.exists()
