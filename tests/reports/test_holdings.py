"""Reports B23 to B35, B43, B44, B52, B53, B59: what pods hold, when it comes free, and nodes that come and go."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.placement.complete_lists import pods_replaced
from tests.reports.site import SIDECAR, Object, Site, card, gpu, pod, typed

FULL = "GPU-n1,NVIDIA,16384,100:;"


def all_of(name: str = "p", **fields: object) -> Object:
    body = pod(gpu(gpu=1, mem=16384), name=name)
    body["metadata"] |= fields
    return body


async def fits(site: Site, body: Object, *names: str) -> bool:
    answer = await site.filter(body, *(names or ("n1",)))
    assert answer["Error"] == ""
    return answer["NodeNames"] is not None


@pytest.fixture
def site() -> Site:
    site = Site()
    site.node("n1")
    return site


# --- B23: deletions that nobody told of ---


@pytest.mark.parametrize("replaced_by", [None, "uid-new"])
async def test_b23_a_relist_frees_what_is_gone(site: Site, replaced_by: str | None) -> None:
    site.running(all_of("old"), "n1", FULL)
    assert not await fits(site, all_of())
    listed = [] if replaced_by is None else [typed(all_of("old", uid=replaced_by))]
    await pods_replaced(site.world, listed)
    assert dict(site.world.ledger.uses("n1")) == {}
    assert await fits(site, all_of())


async def test_b23_a_new_pod_of_the_same_name_ends_the_old_one(site: Site) -> None:
    site.running(all_of("old"), "n1", FULL)
    site.world.on_pod(typed(all_of("old", uid="uid-2")))
    assert await fits(site, all_of())


async def test_b23_a_deletion_that_comes_twice_or_for_a_stranger_changes_nothing(site: Site) -> None:
    site.running(all_of("old"), "n1", FULL)
    for uid in ("uid-stranger", "", "uid-old", "uid-old"):
        site.world.on_pod_deleted("default", "old", uid)
    assert dict(site.world.ledger.uses("n1")) == {}
    site.running(all_of("next", resourceVersion="9"), "n1", FULL)
    site.world.on_pod_deleted("default", "old", "uid-old")
    assert not await fits(site, all_of())


# --- B25: pods that end ---


@pytest.mark.parametrize("events", list(itertools.permutations(("ended", "ending", "deleted"))))
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_b25_a_share_is_given_back_once_whatever_comes_first(
    site: Site, phase: str, events: tuple[str, ...]
) -> None:
    for number in range(3):
        name = f"old{number}"
        site.running(all_of(name), "n1", FULL)
        body = site.pods[f"uid-{name}"]
        for event in events:
            if event == "deleted":
                site.world.on_pod_deleted("default", name, f"uid-{name}")
            elif event == "ended":
                site.world.on_pod(typed({**body, "status": {"phase": phase}}))
            else:
                meta = {**body["metadata"], "deletionTimestamp": "2027-01-01T00:00:00Z"}
                site.world.on_pod(typed({**body, "metadata": meta}))
        site.world.on_pod_deleted("default", name, f"uid-{name}")
        assert dict(site.world.ledger.uses("n1")) == {}
        assert dict(site.world.ledger.namespaces.of("default")) == {}
    assert await fits(site, all_of())


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", ""])
async def test_b25_a_pod_that_is_ending_or_unknown_holds_its_share_to_the_end(site: Site, phase: str) -> None:
    old = all_of("old", deletionTimestamp="2027-01-01T00:00:00Z")
    site.running(old, "n1", FULL)
    site.world.on_pod(typed({**site.pods["uid-old"], "status": {"phase": phase}}))
    assert not await fits(site, all_of())


# --- B26, B28: filter again ---


@pytest.mark.parametrize("state", ["allocating", "success", "failed", ""])
@pytest.mark.parametrize("again", ["same", "larger", "nowhere", "unknown", "none"])
async def test_b26_b28_filtering_a_bound_pod_changes_nothing(site: Site, again: str, state: str) -> None:
    site.node("small", card("GPU-small", devmem=100))
    old = pod(gpu(gpu=1, mem=9000), name="old", annotations={"hami.io/bind-phase": state})
    site.running(old, "n1", "GPU-n1,NVIDIA,9000,0:;")
    before = dict(site.world.ledger.uses("n1"))
    asking = pod(gpu(gpu=1, mem=15000), name="old") if again == "larger" else old
    names = {"nowhere": ["small"], "unknown": ["?"], "none": []}.get(again, ["n1", "small"])
    answer = await site.filter(asking, *names)
    assert answer["NodeNames"] == ["n1"] or "already bound" in answer["Error"]
    assert dict(site.world.ledger.uses("n1")) == before
    assert not await fits(site, pod(gpu(gpu=1, mem=9000), name="new"))


async def test_b26_four_pods_of_two_on_eight_cards() -> None:
    site = Site()
    site.node("n1", *(card(f"GPU-{number}", index=number) for number in range(8)))
    for number in range(4):
        text = f"GPU-{2 * number},NVIDIA,16384,100:GPU-{2 * number + 1},NVIDIA,16384,100:;"
        site.running(pod(gpu(gpu=2), name=f"old{number}"), "n1", text)
    await site.filter(pod(gpu(gpu=2), name="old1"), "unknown")
    assert not await fits(site, pod(gpu(gpu=2, mem=1), name="new"))


# --- B29, B31, B32: several containers ---


@pytest.mark.parametrize("order", list(itertools.permutations((10240, 1024, 9216))))
async def test_b29_each_container_gets_its_own_amount_in_order(order: tuple[int, ...]) -> None:
    site = Site()
    site.node("n1", card("GPU-a", devmem=10240), card("GPU-b", index=1, devmem=10240))
    notes = {"hami.io/gpu-scheduler-policy": "binpack"}
    body = pod(*(gpu(f"c{at}", gpu=1, mem=size) for at, size in enumerate(order)), annotations=notes)
    assert await fits(site, body)
    claim = site.world.ledger.get("uid-p")
    assert claim is not None
    assert claim.fit is not None
    shares = claim.fit.allocation["NVIDIA"]
    assert [each[0].memory_mib for each in shares] == list(order)
    assert max(use.memory_mib for use in site.world.ledger.uses("n1").values()) <= 10240
    large = next(each[0].device_id for each in shares if each[0].memory_mib == 10240)
    assert all(each[0].device_id != large for each in shares if each[0].memory_mib != 10240)


@pytest.mark.parametrize(
    ("inits", "sidecars", "apps", "card_mib", "fit"),
    [
        pytest.param((10000,) * 3, (), (1000,), 16000, True, id="B31-three-inits-one-after-another"),
        pytest.param((16001,), (), (1000,), 16000, False, id="B31-one-init-too-large"),
        pytest.param((), (), (9000, 9000), 16000, False, id="B31-apps-add-up"),
        pytest.param((16000,), (), (8000, 8000), 16000, True, id="B31-either-fills-the-card"),
        pytest.param((16000,), (), (), 16000, True, id="B31-init-only"),
        pytest.param((), (6000,), (6000,), 10000, False, id="B32-sidecar-and-app-on-10000"),
        pytest.param((), (6000,), (6000,), 16000, True, id="B32-sidecar-and-app-on-16000"),
        pytest.param((), (6000, 6000), (4000,), 16000, True, id="B32-two-sidecars"),
        pytest.param((), (6000, 6000), (4001,), 16000, False, id="B32-two-sidecars-too-much"),
        pytest.param((10001,), (6000,), (1,), 16000, False, id="B32-init-beside-sidecar"),
        pytest.param((10000,), (6000,), (1,), 16000, True, id="B32-init-beside-sidecar-fits"),
        pytest.param((), (16000,), (), 16000, True, id="B32-sidecar-only"),
    ],
)
async def test_b31_b32_the_max_rule_and_sidecars(
    inits: tuple[int, ...], sidecars: tuple[int, ...], apps: tuple[int, ...], card_mib: int, fit: bool
) -> None:
    site = Site()
    site.node("n1", card("GPU-n1", devmem=card_mib))
    before = [{**gpu(f"s{at}", gpu=1, mem=size), **SIDECAR} for at, size in enumerate(sidecars)]
    before += [gpu(f"i{at}", gpu=1, mem=size) for at, size in enumerate(inits)]
    containers = [gpu(f"a{at}", gpu=1, mem=size) for at, size in enumerate(apps)] or [gpu("plain")]
    assert await fits(site, pod(*containers, init=tuple(before))) == fit


@pytest.mark.parametrize("restarts", [0, 3])
async def test_b32_a_sidecar_stays_counted_when_inits_end_and_when_it_restarts(site: Site, restarts: int) -> None:
    ended = {"terminated": {"exitCode": 0}}
    body = pod(gpu("a"), name="old", init=({**gpu("s", gpu=1, mem=9000), **SIDECAR}, gpu("i", gpu=1, mem=16000)))
    text = "GPU-n1,NVIDIA,9000,0:;GPU-n1,NVIDIA,7000,0:;;"
    site.running(body, "n1", text)
    assert not await fits(site, pod(gpu(gpu=1, mem=7000)))
    shown = site.pods["uid-old"]
    statuses = [{"name": "s", "restartCount": restarts, "state": ended if restarts else {"running": {}}}]
    statuses.append({"name": "i", "state": ended})
    status = {"phase": "Running", "initContainerStatuses": statuses}
    site.world.on_pod(typed({**shown, "status": status}))
    assert not await fits(site, pod(gpu(gpu=1, mem=7385)))
    assert await fits(site, pod(gpu(gpu=1, mem=7384)))


# --- B34: candidates that are none ---


@pytest.mark.parametrize("order", list(itertools.permutations(("good", "cpu", "unknown", "empty"))))
async def test_b34_nodes_without_devices_are_failed_with_a_reason(order: tuple[str, ...]) -> None:
    site = Site()
    site.node("good")
    site.node("cpu", notes={"hami.io/node-nvidia-register": ""})
    site.node("empty", notes={"hami.io/node-nvidia-register": "[]"})
    assert (await site.filter(pod(gpu(gpu=1, mem=5)), *order))["NodeNames"] == ["good"]
    answer = await site.filter(pod(gpu(gpu=1, mem=99999), name="q"), *order)
    assert set(answer["FailedNodes"]) == set(order)
    assert all(answer["FailedNodes"].values())


@pytest.mark.parametrize("items", [None, []])
async def test_b34_no_candidates_at_all_are_an_answer(site: Site, items: object) -> None:
    calls: list[Object] = [{"Nodes": {"items": items}}, {"NodeNames": []}]
    for args in calls:
        answer = json.loads((await site.post("/filter", {"Pod": all_of(), **args})).body)
        assert (answer["NodeNames"], answer["Error"]) == (None, "")


async def test_b34_null_fields_of_a_pod_are_absent_ones(site: Site) -> None:
    body = all_of()
    body["spec"] |= {"nodeName": None, "schedulerName": None, "initContainers": None}
    body["metadata"] |= {"annotations": None, "labels": None, "generateName": None}
    assert await fits(site, body, "n1", "unknown")
    assert "cannot be decoded" in (await site.filter({**body, "spec": 7}, "n1"))["Error"]


async def test_b34_a_node_that_goes_between_two_calls_is_no_fault(site: Site) -> None:
    assert await fits(site, all_of())
    site.world.on_node_deleted("n1")
    answer = await site.filter(all_of(), "n1")
    assert answer["FailedNodes"] == {"n1": "node unregistered"}


# --- B43, B44, B59: nodes come and go ---


async def test_b43_a_node_made_anew_starts_fresh(site: Site) -> None:
    site.node("n1", card("GPU-0"), card("GPU-1"), notes={"hami.io/device-cordon": "GPU-0"})
    site.running(all_of("old"), "n1", "GPU-0,NVIDIA,16384,100:;")
    site.world.on_pod_deleted("default", "old", "uid-old")
    site.world.on_node_deleted("n1")
    site.node("n1", card("GPU-0"))
    view = site.world.view("n1")
    assert await fits(site, all_of())
    assert view is None or len(view.state.devices) <= 2
    fresh = site.world.view("n1")
    assert fresh is not None
    assert [device.id for device in fresh.state.devices] == ["GPU-0"]


@pytest.mark.parametrize("fault", ["no-cards", "zero-count", "zero-memory", "zero-cores", "unhealthy", "broken"])
async def test_b43_a_nodes_fault_stays_on_that_node(site: Site, fault: str) -> None:
    texts = {
        "no-cards": "[]",
        "zero-count": json.dumps([card("GPU-n1", count=0)]),
        "zero-memory": json.dumps([card("GPU-n1", devmem=0)]),
        "zero-cores": json.dumps([card("GPU-n1", devcore=0)]),
        "unhealthy": json.dumps([card("GPU-n1", health=False)]),
        "broken": "garbage:",
    }
    site.node("n2", notes={"hami.io/node-nvidia-register": texts[fault]})
    body = pod(gpu(gpu=1, mem=100, cores=10))
    assert not await fits(site, body, "n2")
    assert await fits(site, body, "n1", "n2")
    site.node("n2", card("GPU-n1"))
    assert await fits(site, pod(gpu(gpu=1, mem=100, cores=10), name="q"), "n2")


@pytest.mark.parametrize("back", ["same", "fewer", "other"])
async def test_b44_b59_a_node_is_used_as_soon_as_it_offers_cards_again(site: Site, back: str) -> None:
    site.node("n1", allocatable=0)
    assert not await fits(site, all_of())
    site.world.on_node_deleted("n1") if back == "other" else None
    site.clock.advance(300)
    cards = {"same": ["GPU-n1"], "fewer": ["GPU-n1"], "other": ["GPU-x", "GPU-y"]}[back]
    site.node("n1", *(card(uuid) for uuid in cards), allocatable=10 * len(cards))
    assert await fits(site, all_of())


@pytest.mark.parametrize("before", ["True", "False"])
async def test_b44_a_node_whose_kubelet_is_silent_is_out_until_it_is_heard_again(site: Site, before: str) -> None:
    site.node("n1", ready=before)
    assert await fits(site, all_of())
    site.world.on_pod_deleted("default", "p", "uid-p")
    site.node("n1", ready="Unknown")
    answer = await site.filter(all_of("q"), "n1")
    assert answer["FailedNodes"] == {"n1": "node unregistered: kubelet is not heard of any more"}
    site.node("n1")
    assert await fits(site, all_of("q"))


async def test_b59_a_refusal_is_unschedulable_and_never_an_error(site: Site) -> None:
    site.running(all_of("old"), "n1", FULL)
    for body in (all_of(), pod(gpu(gpu=9), name="q"), pod(gpu(gpu=1, mem="x"), name="r")):
        answer = await site.filter(body, "n1", "unknown")
        assert answer["Error"] == ""
        assert set(answer["FailedNodes"]) == {"n1", "unknown"}


# --- B52, B53: reservations that nobody took ---


@pytest.mark.parametrize("end", ["deleted", "unscheduled", "elsewhere", "finished", "time"])
async def test_b52_b53_a_reservation_that_came_to_nothing_ends(site: Site, end: str) -> None:
    site.quota(limits_nvidia_com__gpumem="16384")
    site.node("n2")
    assert await fits(site, all_of("first"))
    assert not await fits(site, all_of("second"), "n1", "n2")
    body = all_of("first", resourceVersion="2")
    match end:
        case "deleted":
            site.world.on_pod_deleted("default", "first", "uid-first")
        case "unscheduled":
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            condition["lastTransitionTime"] = "2031-01-01T00:00:00Z"
            site.world.on_pod(typed({**body, "status": {"phase": "Pending", "conditions": [condition]}}))
        case "elsewhere":
            assert await fits(site, all_of("first"), "n2")
            site.world.on_pod_deleted("default", "first", "uid-first")
        case "finished":
            site.world.on_pod(typed({**body, "status": {"phase": "Failed"}}))
        case _:
            site.clock.advance(3600)
    assert await fits(site, all_of("second"))
    assert site.world.ledger.namespaces.of("default")["NVIDIA"].memory_mib == 16384


async def test_b53_a_group_that_went_back_to_pending_succeeds_later() -> None:
    site = Site()
    site.node("n1", card("GPU-a"), card("GPU-b", index=1))
    for name in ("g1", "g2"):
        assert await fits(site, all_of(name))
    assert not await fits(site, all_of("g3"))
    for name in ("g1", "g2"):
        condition = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2031-01-01T00:00:00Z"}
        body = all_of(name, resourceVersion="5", annotations={"hami.io/vgpu-node": "n1"})
        site.world.on_pod(typed({**body, "status": {"phase": "Pending", "conditions": [condition]}}))
    assert await fits(site, pod(gpu(gpu=2, mem=16384), name="other"))
    site.world.on_pod_deleted("default", "other", "uid-other")
    site.node("n2", card("GPU-c"))
    assert [await fits(site, all_of(name), "n1", "n2") for name in ("g1", "g2", "g3")] == [True] * 3


# --- pods without a uid, as simple clients send them ---


async def test_b52_two_pods_without_a_uid_do_not_share_a_reservation(site: Site) -> None:
    first, second = all_of("a"), all_of("b")
    del first["metadata"]["uid"], second["metadata"]["uid"]
    assert await fits(site, first)
    assert not await fits(site, second)
    site.world.on_pod_deleted("default", "a", "uid-a")
