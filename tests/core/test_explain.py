"""The mode of the evaluator that never stops early: same outcome, same first reason, nothing left out."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from hami.core.device_type import Check, Refusal
from hami.core.explain import RequestReport, explain
from hami.core.fit import Fit, evaluate
from hami.core.model import NodeState, PodRequest, Policies, Use
from hami.core.objects import Pod
from hami.core.reasons import Reason, Rejection
from hami.core.request import pod_request
from tests.core.build import REGISTRY, device, gpu, node, pod
from tests.reference.objects import namespace_of
from tests.reference.subject import Subject, typed_pod, typed_quotas
from tests.reference.worlds import World, build


def shape(subject: Pod) -> PodRequest:
    found = pod_request(subject, REGISTRY, Policies())
    assert not isinstance(found, Refusal)
    return found


def failed(report: RequestReport, card: int) -> list[Reason]:
    return [check.reason for check in report.reports.cards[card].checks if not check.passed]


def test_every_failed_check_of_every_card() -> None:
    state = node(
        device("A", healthy=False, type="NVIDIA T4"),
        device("B"),
        uses={"A": Use(10, 16000, 100), "B": Use(1, 14000, 60)},
        cordoned=frozenset({"A"}),
    )
    asking = pod(gpu(2, mem=4000, cores=50), annotations={"nvidia.com/use-gputype": "A100"})
    report = explain(state, shape(asking), REGISTRY).requests[0]
    assert failed(report, 0) == [
        Reason.CARD_NOT_HEALTH,
        Reason.CARD_CORDONED,
        Reason.CARD_TYPE_MISMATCH,
        Reason.CARD_TIME_SLICING_EXHAUSTED,
        Reason.CARD_INSUFFICIENT_MEMORY,
        Reason.CARD_INSUFFICIENT_CORE,
    ]
    assert failed(report, 1) == [Reason.CARD_INSUFFICIENT_MEMORY, Reason.CARD_INSUFFICIENT_CORE]
    memory = next(c for c in report.reports.cards[1].checks if c.reason is Reason.CARD_INSUFFICIENT_MEMORY)
    assert (memory.required, memory.available) == ("4000 MiB", "2384 of 16384 MiB")
    assert report.reports.together[-1] == Check(
        Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, False, "2 cards that pass together", "0"
    )


def test_B152_count_means_different_cards() -> None:
    report = explain(node(device("A")), shape(pod(gpu(2))), REGISTRY).requests[0]
    assert report.reports.together == (Check(Reason.NODE_INSUFFICIENT_DEVICE, False, "2 different cards", "1 card"),)


def test_containers_after_a_rejected_one_are_looked_at() -> None:
    report = explain(node(device("A")), shape(pod(gpu(mem=90000), gpu(mem=1000), gpu(mem=16000))), REGISTRY)
    assert [bool(request.rejection) for request in report.requests] == [True, False, True]
    assert report.requests[1].shares[0].memory_mib == 1000
    assert isinstance(report.outcome, Rejection)


def test_init_containers_do_not_add_up() -> None:
    report = explain(node(device("A")), shape(pod(gpu(mem=16000), inits=(gpu(mem=16000), gpu(mem=16000)))), REGISTRY)
    assert [bool(request.rejection) for request in report.requests] == [False, False, False]
    assert isinstance(report.outcome, Fit)


async def shapes_and_states(world: World) -> list[tuple[PodRequest, NodeState, Subject, str]]:
    subject = await Subject.of(world)
    subject.placement.quotas.replace(typed_quotas(world.quotas))
    subject.placement.settle_now()
    policies = Policies(node=world.config.node_policy, device=tuple(world.config.gpu_policy.split(",")))
    found = []
    for asking in world.asking:
        request = pod_request(typed_pod(asking), subject.registry, policies)
        views = [subject.placement.view(name) for name in world.names]
        if not isinstance(request, Refusal) and request.asks_for_devices:
            found += [(request, view.state, subject, namespace_of(asking)) for view in views if view]
    return found


@pytest.mark.parametrize("block", range(3))
async def test_outcome_is_the_evaluators_and_requests_agree_with_it(block: int) -> None:
    seen = 0
    for seed in range(block * 30, block * 30 + 30):
        for request, state, subject, namespace in await shapes_and_states(build(Random(seed))):
            room = subject.placement.quotas.room(namespace)
            report = explain(state, request, subject.registry, room)
            assert report.outcome == evaluate(state, request, subject.registry, room)
            rejections = [each.rejection for each in report.requests if each.rejection]
            if isinstance(report.outcome, Rejection):
                assert report.outcome in rejections or report.outcome.text.endswith("CardMigTopologyInfeasible")
            else:
                assert rejections == []
            seen += bool(rejections)
    assert seen > 50


@pytest.mark.parametrize("block", range(3))
async def test_first_failed_check_is_the_counted_reason(block: int) -> None:
    """Card by card: a node with one card and a pod with one request for it."""
    seen: set[Reason] = set()
    for seed in range(block * 40, block * 40 + 40):
        for request, state, subject, namespace in await shapes_and_states(build(Random(seed))):
            room = subject.placement.quotas.room(namespace)
            for at, card in enumerate(state.devices):
                alone = msgspec.structs.replace(state, devices=(card,), uses=(state.uses[at],))
                for container in request.containers:
                    for asked in container.devices:
                        one = msgspec.structs.replace(container, devices=(msgspec.structs.replace(asked, count=1),))
                        single = msgspec.structs.replace(request, containers=(one,))
                        report = explain(alone, single, subject.registry, room).requests[0]
                        reasons = failed(report, 0)
                        counted = [code for code, _ in report.rejection.counts] if report.rejection else []
                        assert reasons[:1] == counted, (seed, report)
                        seen.update(reasons[:1])
    assert len(seen) >= 8
