"""Reports beyond the list on what lives long, ends, or comes back: pods, nodes, cards and the memory they take."""

from __future__ import annotations

import itertools
from collections.abc import Sized
from typing import Any

import pytest

from tests.reports.site import SIDECAR, Object, Site, card, gpu, pod, typed
from tests.reports.stamps import HANDSHAKE, stamp

WHOLE = "GPU-a,NVIDIA,16384,100:;"
_numbers = itertools.count()


def one_card(site: Site, **fields: Any) -> None:
    site.node("n1", card("GPU-a", **fields))


async def fits(site: Site, **wishes: Any) -> bool:
    """Whether a pod that asks for this fits; it is gone again afterwards."""
    name = f"probe-{next(_numbers)}"
    answer = await site.filter(pod(gpu(gpu=1, **(wishes or {"mem": 1})), name=name), "n1")
    site.world.on_pod_deleted("default", name, f"uid-{name}")
    return bool(answer["NodeNames"])


# --- pods that end, are ending, or come back ---


@pytest.mark.parametrize("phase", ["Running", "Pending", "Unknown"])
@pytest.mark.parametrize("restarted", [True, False])
async def test_a_terminating_pod_holds_its_cards_until_it_is_gone(phase: str, restarted: bool) -> None:
    """Hours of grace: after a restart of the scheduler, too (upstream 057a8e5)."""
    site = Site()
    one_card(site)
    body = pod(gpu(gpu=1), name="old")
    if not restarted:
        site.running(body, "n1", WHOLE)
    site.running({**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-11-30T00:00:00Z"}}, "n1", WHOLE)
    ending = site.pods["uid-old"]
    ending["status"]["phase"] = phase
    site.world.on_pod(typed(ending))
    assert not await fits(site)
    site.world.on_pod_deleted("default", "old", "uid-old")
    assert await fits(site)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_hami_1458_an_ended_pod_frees_its_cards_whatever_its_annotations_say_by_then(phase: str) -> None:
    site = Site()
    one_card(site)
    body = pod(gpu(gpu=1), name="old")
    site.running(body, "n1", WHOLE)
    assert not await fits(site)
    site.world.on_pod(typed({**body, "spec": {**body["spec"], "nodeName": "n1"}, "status": {"phase": phase}}))
    assert await fits(site)


async def test_hami_2923_a_late_deletion_of_the_old_pod_leaves_its_successor_alone() -> None:
    site = Site()
    one_card(site)
    old, new = pod(gpu(gpu=1), name="web-0"), pod(gpu(gpu=1), name="web-0")
    new["metadata"] |= {"uid": "uid-new", "resourceVersion": "9"}
    site.running(old, "n1", WHOLE)
    site.running(new, "n1", WHOLE)
    site.world.on_pod_deleted("default", "web-0", "uid-web-0")
    assert not await fits(site)
    site.world.on_pod_deleted("default", "web-0", "uid-new")
    assert await fits(site)


async def test_hami_303_a_rollout_that_does_not_fit_leaves_the_books_as_they_were() -> None:
    site = Site()
    site.node("n1", card("GPU-a"), card("GPU-b", index=1))
    site.running(pod(gpu(gpu=1, mem=4096), name="old"), "n1", "GPU-a,NVIDIA,4096,0:;")
    site.world.settle_now()
    before = dict(site.world.ledger.uses("n1"))
    for at in range(3):
        answer = await site.filter(pod(gpu(gpu=2, mem=20000), name=f"new-{at}"), "n1")
        assert answer["NodeNames"] is None
    site.world.settle_now()
    assert dict(site.world.ledger.uses("n1")) == before


# --- init containers and quotas ---


@pytest.mark.parametrize("init", [(), (gpu("plain"),), (gpu("a"), gpu("b")), ({**gpu("s"), **SIDECAR},)])
@pytest.mark.parametrize(("limit", "fit"), [("13106", True), ("13105", False)])
async def test_hami_3052_an_init_container_without_cards_changes_no_sum(
    init: tuple[Object, ...], limit: str, fit: bool
) -> None:
    """Two apps of 40 % of a 16384 MiB card: 6553 MiB each, 13106 together with upstream's rounding down."""
    site = Site()
    one_card(site)
    site.quota(limits_nvidia_com__gpumem=limit)
    body = pod(gpu("a", gpu=1, percent=40), gpu("b", gpu=1, percent=40), init=init)
    answer = await site.filter(body, "n1")
    assert bool(answer["NodeNames"]) == fit, answer
    assert fit or "ResourceQuotaNotFit" in answer["FailedNodes"]["n1"]


async def test_hami_2965_an_ended_init_container_leaves_the_apps_exclusive_claim() -> None:
    site = Site()
    one_card(site)
    body = pod(gpu("app", gpu=1, mem=1000, cores=100), init=(gpu("load", gpu=1, mem=1000, cores=100),), name="old")
    site.running(body, "n1", "GPU-a,NVIDIA,1000,100:;GPU-a,NVIDIA,1000,100:;")
    for status in ([], [{"name": "load", "state": {"terminated": {"exitCode": 0}}}]):
        running = site.pods["uid-old"]
        running["status"]["initContainerStatuses"] = status
        site.world.on_pod(typed(running))
        assert not await fits(site, mem=1, cores=22)
        assert not await fits(site, mem=1, cores=0)


# --- nodes and cards ---


@pytest.mark.parametrize("minutes", [1, 5, 60 * 24])
async def test_hami_1899_an_old_request_for_a_sign_does_not_take_out_a_node_that_offers_cards(minutes: int) -> None:
    """Upstream's scheduler wrote `Requesting_`; nobody answers that any more, and kubelet still offers the cards."""
    site = Site()
    site.node("n1", card("GPU-a"), notes={HANDSHAKE: f"Requesting_{stamp(60 * minutes)}"})
    site.clock.now_s += 3600
    site.world.settle_now()
    assert await fits(site)


async def test_hami_848_a_mig_pod_on_a_card_that_shares_again_is_counted_and_breaks_nothing() -> None:
    """The node was switched from mig to hami-core under a running pod; its slice is written in the older form."""
    for text in ("GPU-a[0-1],NVIDIA,9856,28:;", "GPU-a,NVIDIA,9856,28:;"):
        site = Site()
        one_card(site, mode="hami-core")
        site.running(pod(gpu(gpu=1, mem=9856), annotations={"nvidia.com/vgpu-mode": "mig"}, name="old"), "n1", text)
        assert not await fits(site, mem=16384 - 9855)
        assert await fits(site, mem=16384 - 9856)


PROFILES = [
    {"name": name, "memoryMB": mib, "core": 14 * size, "sliceCount": size,
     "placements": [{"start": start, "size": size} for start in starts]}
    for name, mib, size, starts in (
        ("1g.5gb", 5120, 1, range(7)), ("2g.10gb", 10240, 2, (0, 2, 4)), ("3g.20gb", 20480, 4, (0, 4)),
    )
]  # fmt: skip


@pytest.mark.parametrize(("mib", "fit"), [(5120, 7), (5121, 3), (10240, 3), (20480, 2), (20481, 0)])
async def test_hami_1074_2403_a_request_as_large_as_a_profile_gets_that_profile(mib: int, fit: int) -> None:
    for at_once in (False, True):
        site = Site()
        site.node("n1", card("GPU-a", mode="mig", devmem=40960, count=7, migProfiles=PROFILES), allocatable=7)
        if at_once and fit:
            answer = await site.filter(pod(gpu(gpu=fit, mem=mib), name="all"), "n1")
            assert answer["NodeNames"] == ["n1"]
            continue
        names = [(await site.filter(pod(gpu(gpu=1, mem=mib), name=f"p{at}"), "n1"))["NodeNames"] for at in range(8)]
        assert names == [["n1"]] * fit + [None] * (8 - fit)


async def test_hami_1782_a_card_that_fails_takes_only_its_own_share_with_it() -> None:
    """volcano #1782: four cards, one fails; three pods go on, and a fourth fits on none."""
    site = Site()
    ids = [f"GPU-{at}" for at in range(4)]
    site.node("n1", *(card(each, index=at) for at, each in enumerate(ids)))
    for each in ids[:3]:
        site.running(pod(gpu(gpu=1), name=each.lower()), "n1", f"{each},NVIDIA,16384,100:;")
    site.node("n1", *(card(each, index=at, health=each != "GPU-3") for at, each in enumerate(ids)), allocatable=30)
    answer = await site.filter(pod(gpu(gpu=1, mem=1)), "n1")
    assert "1/4 CardNotHealth" in answer["FailedNodes"]["n1"]


# --- memory ---


async def test_hami_343_what_comes_and_goes_leaves_little_behind() -> None:
    site, most = Site(), 4_200
    world = site.world
    for at in range(most):
        site.node("n1", card("GPU-a", devmem=20_000 + at))
        await site.filter(pod(gpu(gpu=1, mem=1 + at), name=f"p{at}"), "n1")
        world.on_pod_deleted("default", f"p{at}", f"uid-p{at}")
        world.settle_now()
    books: tuple[Sized, ...] = (
        world._card_sets._numbers,
        world._gone,
        world._views,
        world.shapes._memo,
        world.ledger._claims,
        world.ledger._uid_of,
    )
    assert max(len(book) for book in books) < most
    assert (len(world.inventory), len(world.ledger._claims), dict(world.ledger.uses("n1"))) == (1, 0, {})
