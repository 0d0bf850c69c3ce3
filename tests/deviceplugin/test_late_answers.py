"""A plugin that answers when the token has been given on: whose call is it then? (HAMi #3096; issue 6 and 7)

`first` was bound six minutes before `second`; its Allocate hung, its token expired, and the scheduler gave it to
`second`. kubelet asks for one of the two and names neither.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hami.core.keys import BIND_PHASE, BIND_TIME, PHASE_ALLOCATING, PHASE_SUCCESS
from hami.deviceplugin import whose_pod
from hami.kube import paths
from hami.kube.client import MERGE_PATCH
from tests.deviceplugin.bench import A, B, Bench

FIRST, SECOND = f"{A},NVIDIA,1000,10:;", f"{B},NVIDIA,2000,20:;"


async def two_waiting(node: Bench, *, second: str = SECOND) -> None:
    await node.bound_pod("first", FIRST)
    await node.bound_pod("second", second)
    for name, bound_at in (("first", "1787277000"), ("second", "1787277360")):
        pod = await node.pod(name)
        await node.writer.patch_pod_annotations("default", name, {BIND_TIME: bound_at}, uid=pod.metadata.uid)
    assert await node.token_owner() == "second"
    await node.until(
        lambda: {pod.annotations.get(BIND_TIME) for pod in node.plugin.view.pods} == {"1787277000", "1787277360"},
        "both are seen",
    )


def looks_at_first(node: Bench) -> int:
    return sum(each.verb == "get" and each.name == "first" for each in node.api.seen)


async def fail(node: Bench, name: str) -> None:
    body = msgspec.json.encode({"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}})
    await node.client.request("PATCH", f"{paths.pod('default', name)}/status", body, MERGE_PATCH)


async def cards_of_a_call(node: Bench) -> str:
    answer = (await node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    return f"{answer.envs['NVIDIA_VISIBLE_DEVICES']} {answer.envs['CUDA_DEVICE_MEMORY_LIMIT_0']}"


async def test_the_call_that_hung_is_served_first_and_the_tokens_pod_after_it(node: Bench) -> None:
    await node.start_plugin()
    await two_waiting(node)
    assert await cards_of_a_call(node) == f"{A} 1000m"
    assert await node.phase("first") == PHASE_SUCCESS
    assert (await node.phase("second"), await node.token_owner()) == (PHASE_ALLOCATING, "second")
    assert await cards_of_a_call(node) == f"{B} 2000m"
    assert await node.phase("second") == PHASE_SUCCESS
    await node.token_free()


@pytest.mark.parametrize("end", ["failed", "deleted", "gone"])
async def test_one_that_kubelet_rejected_shows_it_a_moment_later_and_is_passed_over(
    node: Bench, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A new plugin process: kubelet's call for the first broke with the old one, and the pod has failed."""
    monkeypatch.setattr(whose_pod, "_END_SHOWS_S", 60.0)
    await node.start_plugin(allocate_timeout_s=120.0)
    await two_waiting(node)
    looks = looks_at_first(node)
    call = asyncio.create_task(cards_of_a_call(node))
    await node.until(lambda: looks_at_first(node) >= looks + 2, "two looks at it")
    assert not call.done()
    match end:
        case "failed":
            await fail(node, "first")
        case "deleted":
            await node.client.request("DELETE", paths.pod("default", "first"))
        case "gone":
            await node.client.request("DELETE", paths.pod("default", "first"), params={"gracePeriodSeconds": "0"})
    assert await call == f"{B} 2000m"
    assert await node.phase("second") == PHASE_SUCCESS
    await node.token_free()


async def test_another_count_needs_no_wait(node: Bench) -> None:
    await node.start_plugin()
    await two_waiting(node, second=f"{A},NVIDIA,500,0:{B},NVIDIA,2000,20:;")
    looks = looks_at_first(node)
    answer = (await node.kubelet.allocate([f"{A}-0", f"{B}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == f"{A},{B}"
    assert looks_at_first(node) == looks


async def test_the_annotation_of_a_pod_in_phase_allocating_alone_is_not_enough(node: Bench) -> None:
    """Without a time of bind nobody is ahead: the token's word counts (B79)."""
    await node.start_plugin()
    await node.bound_pod("first", FIRST)
    await node.bound_pod("second", SECOND)
    assert (await node.pod("first")).annotations[BIND_PHASE] == PHASE_ALLOCATING
    assert await cards_of_a_call(node) == f"{B} 2000m"
