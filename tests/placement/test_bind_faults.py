"""Conflicts and faults in a bind: what is undone, what is kept, what is tried again."""

from __future__ import annotations

import asyncio

import pytest

from hami.core import keys
from hami.core.errors import ApiError, ConflictError, HamiError, NotFoundError, TransportError
from hami.core.model import Use
from hami.placement.bind import Binder, BindSettings
from hami.placement.claims import ClaimState
from hami.placement.names import NodeNames
from tests.placement.bind_setup import Setup
from tests.placement.fakes import (
    NVIDIA,
    annotated,
    container,
    deleted,
    make_node,
    make_pod,
    with_phase,
)
from tests.tools.waiting import until


async def test_B70_node_changed_between_read_and_patch(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.world = None
    setup.api.annotate_node("n1", cordon="GPU-9")
    setup.api.world = setup.world
    assert await setup.bind() == ""
    assert [verb for verb, _ in setup.api.calls] == ["patch_node", "get_node", "patch_node", "bind"]


async def test_B70_newer_token_is_not_overwritten() -> None:
    setup = Setup(wait_s=0.02)
    setup.reserve(make_pod("p"))
    setup.api.put_pod(annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"))
    setup.api.world = None
    text = setup.lock("o")
    setup.api.world = setup.world
    assert "contention" in await setup.bind()
    assert setup.api.lock("n1") == text


async def test_stale_resource_version_of_the_pod_is_read_again(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.world = None
    setup.api.put_pod(make_pod("p"))
    setup.api.world = setup.world
    assert await setup.bind() == ""
    # The new version is written beside the token before a Binding asks for it (docs/adr/0004).
    assert [verb for verb, _ in setup.api.calls] == [
        "patch_node",
        "bind",
        "get_pod",
        "get_node",
        "patch_node",
        "bind",
    ]


async def test_conflict_with_a_token_taken_over_ends_the_call(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults["bind", "before"] = [ConflictError(409, "Conflict", "changed")]
    setup.api.hooks["bind", "before"] = lambda: setup.api.annotate_node("n1", lock="2027-01-15T08:00:09Z,default,thief")
    assert "taken over" in await setup.bind()
    assert setup.api.lock("n1").endswith("thief")
    assert setup.api.pod("p").spec.node_name == ""


async def test_token_of_another_leader_for_the_same_pod_in_the_same_second_is_not_ours(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults["bind", "before"] = [ConflictError(409, "Conflict", "changed")]
    setup.api.hooks["bind", "before"] = lambda: setup.api._merge_node("n1", {keys.BIND_EPOCH: "sched-1/7"})
    assert "taken over" in await setup.bind()
    assert setup.api.lock("n1").endswith(",p")
    assert setup.api.count("bind") == 1


async def test_bound_elsewhere_meanwhile(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    elsewhere = annotated(setup.api.pod("p"), "n2", "GPU-1,NVIDIA,7,0:;")
    setup.api.hooks["bind", "before"] = lambda: setup.api.put_pod(elsewhere)
    assert "bound to node n2" in await setup.bind()
    assert setup.api.lock("n1") == ""
    setup.assert_free("n1")
    assert dict(setup.world.ledger.uses("n2")) == {"GPU-1": Use(1, 7, 0)}


async def test_B74_pod_deleted_between_filter_and_bind(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.world = None
    setup.api.delete_pod("default", "p")
    setup.api.world = setup.world
    assert "not found" in await setup.bind()
    setup.assert_free()
    assert setup.world.ledger.namespaces.of("default") == {}
    assert setup.api.lock("n1") == ""


async def test_pod_of_the_same_name_with_another_uid(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.world = None
    setup.api.put_pod(make_pod("p", uid="other"))
    setup.api.world = setup.world
    assert "replaced" in await setup.bind()
    setup.assert_free()
    assert setup.api.lock("n1") == ""
    assert setup.api.pod("p").annotations == {}


async def test_B67_node_gone(setup: Setup) -> None:
    setup.reserve(make_pod("p"))
    setup.world.on_node_deleted("n1")
    assert await setup.bind() == "failed to get node n1"
    setup.assert_free()


async def test_bind_of_a_bound_pod(setup: Setup) -> None:
    setup.reserve(make_pod("p"))
    assert await setup.bind() == ""
    setup.api.calls.clear()
    assert await setup.bind() == ""
    assert "bound to node n1 already" in await setup.bind(node="n2")
    assert setup.api.calls == []


GONE = TransportError("connection reset")
SLOW = ApiError(504, "Timeout", "request did not complete")
BUSY = ApiError(429, "TooManyRequests", "later")


@pytest.mark.parametrize("verb", ["patch_node", "bind"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("fault", [GONE, SLOW, BUSY], ids=["reset", "504", "429"])
async def test_B67_B68_one_fault_at_each_write(verb: str, moment: str, fault: HamiError) -> None:
    """Every combination ends bound, exactly once."""
    setup = Setup(wait_s=0.2)
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults[verb, moment] = [fault]
    assert await setup.bind() == ""
    assert setup.api.pod("p").spec.node_name == "n1"
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert (claim.state, claim.pinned) == (ClaimState.BOUND, False)
    assert dict(setup.world.ledger.uses("n1")) == {"GPU-0": Use(1, 1000, 0)}


async def test_B68_binding_that_never_gets_an_answer_rolls_back(setup: Setup) -> None:
    setup.own_epoch()
    pod = setup.reserve(make_pod("p"))
    setup.api.faults["bind", "before"] = [TransportError("timeout") for _ in range(9)]
    assert "timeout" in await setup.bind()
    assert setup.api.lock("n1") == ""
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert (claim.state, claim.pinned) == (ClaimState.RESERVED, False)
    setup.api.faults.clear()
    with pytest.raises(ConflictError):
        await setup.api.bind(
            "default", "p", uid="uid-p", resource_version=pod.metadata.resource_version, node="n1", annotations={}
        )
    assert await setup.bind() == ""


@pytest.mark.parametrize("fault", [ApiError(403, "Forbidden", "no"), ApiError(422, "Invalid", "bad")])
async def test_B67_refused_binding_gives_the_token_back_and_keeps_the_reservation(
    setup: Setup, fault: ApiError
) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults["bind", "before"] = [fault]
    assert await setup.bind() == str(fault)
    assert setup.api.lock("n1") == ""
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert claim.state is ClaimState.RESERVED
    assert await setup.bind() == ""


async def test_list_that_fails_binds_nothing(setup: Setup) -> None:
    setup.strange_epoch()
    setup.reserve(make_pod("p"))
    setup.api.faults["list_pods", "before"] = [TransportError("down")]
    assert await setup.bind() == "down"
    assert setup.api.lock("n1") == ""
    assert setup.api.count("bind") == 0


async def test_node_deleted_under_the_token_patch(setup: Setup) -> None:
    setup.reserve(make_pod("p"))
    setup.api.faults["patch_node", "before"] = [NotFoundError(404, "NotFound", "node gone")]
    assert await setup.bind() == "failed to get node n1"
    setup.assert_free()


async def test_card_lost_after_the_filter_is_replaced_by_another(setup: Setup) -> None:
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    nodes = make_node("n1")
    broken = nodes.annotations[NVIDIA.register_key].replace('"id":"GPU-0"', '"id":"GPU-7"')
    setup.api._merge_node("n1", {NVIDIA.register_key: broken})
    assert await setup.bind() == ""
    assert "GPU-0" not in setup.api.pod("p").annotations[NVIDIA.allocated_key]


async def test_two_schedulers_never_share_a_card() -> None:
    """The first leader stalls between token and Binding; the second fills the node; the first goes on."""
    first = Setup()
    second = Setup()
    second.api = first.api
    second.binder = Binder(
        second.world,
        first.api,
        second.events,
        second.clock,
        BindSettings("sched-1", wait_s=0.5, token_expiry_s=0.0, retry_pause_s=0.001),
    )
    whole = container(memory_mib=16384)
    first.reserve(make_pod("a", whole))
    for name in ("b", "c"):
        first.api.put_pod(make_pod(name, whole))
    gate = first.api.gates["bind"] = asyncio.Event()
    stalled = asyncio.create_task(first.bind("a"))
    await until(lambda: ("bind", "a") in first.api.calls, "stalled")
    first.api.gates.clear()
    first.api.world = second.world
    for node in first.api.nodes.values():
        second.world.on_node(node)
    for pod in first.api.pods.values():
        second.world.on_pod(pod)
    for name in ("b", "c"):
        assert second.engine.filter(first.api.pod(name), NodeNames.of(["n1"])).node == "n1"
        assert await second.binder.bind("default", name, f"uid-{name}", "n1") == ""
        first.api.serve("default", name)
    gate.set()
    assert await stalled != ""
    texts = [pod.annotations.get(NVIDIA.allocated_key, "") for pod in first.api.pods.values()]
    cards = [text.split(",")[0] for text in texts if text]
    assert sorted(cards) == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize("ended", ["Succeeded", "Failed"])
async def test_B74_pod_that_ended_between_filter_and_bind(setup: Setup, ended: str) -> None:
    pod = setup.reserve(make_pod("p"))
    setup.api.put_pod(with_phase(pod, ended))
    assert "has ended" in await setup.bind()
    assert setup.api.pod("p").spec.node_name == ""
    assert setup.api.lock("n1") == ""
    setup.assert_free()


async def test_a_binding_of_another_leader_found_after_an_unanswered_one_is_not_ours(setup: Setup) -> None:
    """Ours came too late or not at all; theirs is on the same node, under their token, with their cards."""
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    theirs = annotated(setup.api.pod("p"), "n1", "GPU-1,NVIDIA,1000,0:;")
    setup.api.hooks["bind", "before"] = lambda: setup.api.put_pod(theirs)
    setup.api.faults["bind", "before"] = [TransportError("reset")]
    assert "bound to node n1 already, not by this call" in await setup.bind()
    assert setup.api.lock("n1").endswith(",default,p"), "the pod's Allocate is still to come"
    assert setup.api.pod("p").annotations[NVIDIA.allocated_key] == "GPU-1,NVIDIA,1000,0:;"
    assert dict(setup.world.ledger.uses("n1")) == {"GPU-1": Use(1, 1000, 0)}


@pytest.mark.parametrize("when", ["before the bind", "during the Binding"])
async def test_a_pod_that_is_being_deleted_is_not_bound(setup: Setup, when: str) -> None:
    """kube-apiserver would bind it; its node would then wait for an Allocate that never comes."""
    setup.own_epoch()
    if when == "before the bind":
        setup.api.put_pod(deleted(make_pod("p")))
    else:
        pod = setup.reserve(make_pod("p"))
        setup.api.hooks["bind", "before"] = lambda: setup.api.put_pod(deleted(pod))
        setup.api.faults["bind", "before"] = [ConflictError(409, "Conflict", "changed")]
    assert await setup.bind() == "pod default/p is being deleted"
    assert setup.api.pod("p").spec.node_name == ""
    assert setup.api.lock("n1") == ""
