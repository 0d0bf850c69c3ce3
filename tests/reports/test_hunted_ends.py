"""Pods that will never be bound: kube-scheduler's queue may still hold them when they end or are deleted."""

from __future__ import annotations

import pytest

from tests.reports.site import Object, Site, gpu, pod, typed

ENDS: dict[str, tuple[Object, Object, str]] = {
    "failed": ({}, {"phase": "Failed"}, "pod default/p has ended (Failed)"),
    "succeeded": ({}, {"phase": "Succeeded"}, "pod default/p has ended (Succeeded)"),
    "finalizer": ({"deletionTimestamp": "2027-01-15T08:00:00Z"}, {}, "pod default/p is being deleted"),
}


@pytest.mark.parametrize("query", ["", "all=true"])
@pytest.mark.parametrize("end", ENDS)
async def test_b52_b74_a_pod_that_is_over_gets_no_node_and_holds_none(end: str, query: str) -> None:
    meta, status, why = ENDS[end]
    site = Site()
    site.node("n1")
    asking = pod(gpu(gpu=1, mem=16384))
    assert (await site.filter(asking, "n1"))["NodeNames"] == ["n1"]
    over = {**asking, "metadata": {**asking["metadata"], **meta}, "status": status}
    answer = await site.filter(over, "n1", query=query)
    assert (answer["NodeNames"], answer["Error"]) == (None, why)
    assert list(site.world.ledger.claims()) == []
    assert (await site.filter(pod(gpu(gpu=1, mem=16384), name="q"), "n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("query", ["", "all=true"])
async def test_b28_a_bound_pod_that_is_being_deleted_keeps_its_node(query: str) -> None:
    site = Site()
    site.node("n1")
    asking = pod(gpu(gpu=1, mem=16384))
    site.running(asking, "n1", "GPU-n1,NVIDIA,16384,0:;")
    going = {**asking, "metadata": {**asking["metadata"], "deletionTimestamp": "2027-01-15T08:00:00Z"}}
    answer = await site.filter(going, "n1", query=query)
    assert (answer["NodeNames"], answer["Error"]) == (["n1"], "")
    assert [claim.node for claim in site.world.ledger.claims()] == ["n1"]


async def test_a_client_that_sends_no_uids_may_ask_about_a_name_again() -> None:
    """The name stands for the uid then: that a pod of the name was replaced or deleted says nothing of the next."""
    site = Site()
    site.node("n1")
    asking = pod(gpu(gpu=1, mem=16384))
    nameless = {**asking, "metadata": {"name": "p", "namespace": "default"}}
    for _ in range(2):
        assert (await site.filter(nameless, "n1"))["NodeNames"] == ["n1"]
        site.world.on_pod(typed(asking))
        assert list(site.world.ledger.claims()) == []
        assert (await site.filter(nameless, "n1"))["NodeNames"] == ["n1"]
        site.world.on_pod_deleted("default", "p", "default/p")
        assert list(site.world.ledger.claims()) == []
