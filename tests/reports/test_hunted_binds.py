"""Reports beyond the list on /bind and /filter: calls about other pods than those that they name."""

from __future__ import annotations

import asyncio

import pytest

from hami.core.model import Use
from hami.placement.claims import ClaimState
from hami.placement.names import NodeNames
from tests.placement.bind_setup import Setup
from tests.placement.fakes import annotated, container, make_pod
from tests.tools.waiting import until


@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(("namespace", "name"), [("team-b", "does-not-exist"), ("default", "q"), ("team-b", "p")])
async def test_hami_3030_a_bind_with_another_pods_uid_takes_nothing_from_it(
    namespace: str, name: str, bound: bool, node: str
) -> None:
    setup = Setup()
    setup.own_epoch()
    setup.api.put_pod(make_pod("q"))
    setup.reserve(make_pod("p", container(memory_mib=16384, cores=100)))
    if bound:
        assert await setup.bind() == ""
    writes = len(setup.api.calls)
    error = await setup.binder.bind(namespace, name, "uid-p", node)
    assert error == f"uid uid-p is pod default/p, not {namespace}/{name}"
    assert len(setup.api.calls) == writes
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert (claim.state, claim.node) == (ClaimState.BOUND if bound else ClaimState.RESERVED, "n1")
    assert [use for _, use in claim.charges] == [Use(1, 16384, 100)]
    assert bound or await setup.bind() == ""


async def test_hami_3030_nor_does_it_call_off_a_bind_that_waits() -> None:
    setup = Setup()
    setup.own_epoch()
    setup.api.put_pod(annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"))
    setup.reserve(make_pod("p"))
    setup.lock("o")
    waiting = asyncio.create_task(setup.bind())
    await until(lambda: setup.world.signals._waiters, "waiting")
    assert await setup.binder.bind("team-b", "x", "uid-p", "n1") == "uid uid-p is pod default/p, not team-b/x"
    setup.api.serve("default", "o")
    assert await waiting == ""


async def test_hami_3040_a_filter_of_a_pod_that_was_replaced_holds_nothing() -> None:
    """A StatefulSet makes its pod anew under the same name; kube-scheduler still asks for the old one."""
    setup = Setup()
    old = setup.api.put_pod(make_pod("web-0"))
    setup.world.on_pod_deleted("default", "web-0", "uid-web-0")
    answer = setup.engine.filter(old, NodeNames.of(["n1"]))
    assert (answer.node, answer.error) == (None, "pod default/web-0 is gone")
    assert list(setup.world.ledger.claims()) == []
