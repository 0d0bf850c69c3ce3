"""Latency per verb, outcomes and token waits on port 9395 move with what happens (issue 5, "Metrics on 9395")."""

from __future__ import annotations

import asyncio

import pytest

from hami.obs import metrics
from tests.placement.bind_setup import Setup
from tests.placement.fakes import make_pod
from tests.tools.waiting import until
from tests.web.extender_site import Site, pod
from tests.web.review_bodies import body as review


def counted(name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


BOUND = {**pod(gpu=1)["spec"], "nodeName": "n2"}
BIND = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"}


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("filter", "/filter", {"Pod": pod(gpu=1), "Nodes": None, "NodeNames": ["n1"]}),
        ("bind", "/bind", BIND),
        ("webhook", "/webhook", review("admission.k8s.io/v1", {})),
    ],
)
async def test_each_call_is_timed_under_its_verb(verb: str, path: str, body: object) -> None:
    before = {each: counted("hami_scheduler_verb_seconds_count", verb=each) for each in ("filter", "bind", "webhook")}
    assert (await Site().post(path, body)).status == 200
    after = {each: counted("hami_scheduler_verb_seconds_count", verb=each) for each in before}
    assert {each: after[each] - before[each] for each in before if after[each] != before[each]} == {verb: 1}


@pytest.mark.parametrize(
    ("document", "outcome"),
    [
        ({"Pod": pod(gpu=1), "Nodes": None, "NodeNames": ["n1"]}, "fit"),
        ({"Pod": pod(gpu=3), "Nodes": None, "NodeNames": ["n1"]}, "unfit"),
        ({"Pod": {**pod(gpu=1), "spec": BOUND}, "Nodes": None, "NodeNames": ["n1"]}, "error"),
    ],
)
async def test_filters_are_counted_by_outcome(document: dict[str, object], outcome: str) -> None:
    before = counted("hami_scheduler_filters_total", outcome=outcome)
    await Site().filter(document)
    assert counted("hami_scheduler_filters_total", outcome=outcome) == before + 1


@pytest.mark.parametrize(("error", "outcome"), [("", "bound"), ("the pod is gone", "failed")])
async def test_binds_are_counted_by_outcome(error: str, outcome: str) -> None:
    before = counted("hami_scheduler_binds_total", outcome=outcome)
    await Site(error).post("/bind", BIND)
    assert counted("hami_scheduler_binds_total", outcome=outcome) == before + 1


async def test_the_wait_for_a_token_includes_the_queue() -> None:
    """The second bind of a node waits until the first one's token comes free."""
    setup = Setup()
    for name in ("a", "b"):
        setup.reserve(make_pod(name))
    before = counted("hami_scheduler_token_wait_seconds_count"), counted("hami_scheduler_token_wait_seconds_sum")
    assert await setup.bind("a") == ""
    waiting = asyncio.create_task(setup.bind("b"))
    await until(lambda: "node/n1" in setup.world.signals._waiters, "the second bind waits")
    setup.clock.advance(2.0)
    setup.api.serve("default", "a")
    assert await waiting == ""
    assert counted("hami_scheduler_token_wait_seconds_count") == before[0] + 2
    assert counted("hami_scheduler_token_wait_seconds_sum") - before[1] >= 2.0
