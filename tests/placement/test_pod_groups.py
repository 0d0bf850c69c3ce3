"""Members of a group wait in Permit: what was reserved for each stays until its bind, its end, or 20 minutes (report
B53; design 3: a time limit is only a backstop)."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from hami.placement.claims import ClaimState
from hami.placement.reservations import ReservationCheck
from tests.placement.bind_setup import Setup
from tests.placement.complete_lists import pods_replaced
from tests.placement.fakes import START_UNIX_S, container, make_pod, unscheduled

BACKSTOP_S = 20 * 60
WHOLE = container(memory_mib=16384)
MEMBERS = ("m1", "m2", "m3")
"""Each needs a whole card; the two nodes have two each."""


async def waiting_group(setup: Setup) -> None:
    """All filtered, none bound: kube-scheduler's Permit plugin has them."""
    for name in MEMBERS:
        pod = setup.api.put_pod(make_pod(name, WHOLE))
        assert setup.engine.filter(pod, setup.names).node


def reserved(setup: Setup) -> list[str]:
    setup.world.settle_now()
    claims = setup.world.ledger.claims()
    return sorted(claim.name for claim in claims if claim.state is ClaimState.RESERVED)


async def quiet_minutes(setup: Setup, minutes: int) -> None:
    """What happens around them meanwhile: sweeps, looks, relists, writes of others to pods and nodes."""
    check = ReservationCheck(setup.world, setup.api)
    for number in range(minutes):
        setup.clock.advance(60)
        await check.check()
        for name in MEMBERS:
            setup.api._merge_pod(setup.api.pod(name), {"example.com/note": str(number)})
        setup.api._merge_node("n1", {"example.com/note": str(number)})
        await pods_replaced(setup.world, list(setup.api.pods.values()))
        await setup.world.settle()


async def test_reservations_last_through_permit_and_are_bound_as_chosen() -> None:
    setup = Setup()
    await waiting_group(setup)
    chosen = {claim.name: (claim.node, claim.charges) for claim in setup.world.ledger.claims()}
    await quiet_minutes(setup, 19)
    assert reserved(setup) == list(MEMBERS)
    fourth, fifth = (setup.api.put_pod(make_pod(name, WHOLE)) for name in ("other", "one-too-many"))
    assert setup.engine.filter(fourth, setup.names).node
    assert setup.engine.filter(fifth, setup.names).node is None
    setup.world.ledger.end_reservation("uid-other")

    async def serve() -> None:
        done: set[str] = set()
        while len(done) < len(MEMBERS):
            for node in ("n1", "n2"):
                owner = setup.api.lock(node).rpartition(",")[2]
                if owner and setup.api.pod(owner).spec.node_name:
                    setup.api.serve("default", owner)
                    done.add(owner)
            await asyncio.sleep(0)

    serving = asyncio.create_task(serve())
    nodes = {name: node for name, (node, _) in chosen.items()}
    assert await asyncio.gather(*(setup.bind(name, nodes[name]) for name in MEMBERS)) == ["", "", ""]
    await serving
    held = {claim.name: (claim.node, claim.charges) for claim in setup.world.ledger.claims()}
    assert held == chosen


async def test_twenty_minutes_are_the_most_and_a_later_bind_fits_again_or_says_why() -> None:
    setup = Setup()
    await waiting_group(setup)
    nodes = {claim.name: claim.node for claim in setup.world.ledger.claims()}
    setup.clock.advance(BACKSTOP_S - 1)
    assert reserved(setup) == list(MEMBERS)
    setup.clock.advance(2)
    assert reserved(setup) == []
    assert await setup.bind("m1", nodes["m1"]) == ""
    for name in ("x", "y", "z"):
        assert setup.engine.filter(setup.api.put_pod(make_pod(name, WHOLE)), setup.names).node
    assert "does not fit any more" in await setup.bind("m2", nodes["m2"])
    assert setup.api.pod("m2").spec.node_name == ""


async def test_a_group_that_permit_gave_up_holds_nothing_and_others_take_its_cards() -> None:
    setup = Setup()
    await waiting_group(setup)
    setup.clock.advance(300)
    for name in MEMBERS:
        version = int(setup.api.pod(name).metadata.resource_version)
        given_up = unscheduled(setup.api.pod(name), stamp(299), version, "rejected due to timeout in Permit")
        setup.api.put_pod(given_up)
    assert reserved(setup) == []
    assert dict(setup.world.ledger.uses("n1")) == dict(setup.world.ledger.uses("n2")) == {}
    for name in ("a", "b", "c", "d"):
        assert setup.engine.filter(setup.api.put_pod(make_pod(name, WHOLE)), setup.names).node


@pytest.mark.parametrize("order", [MEMBERS, MEMBERS[::-1]])
async def test_a_member_that_goes_leaves_the_others_where_they_are(order: tuple[str, ...]) -> None:
    setup = Setup()
    await waiting_group(setup)
    setup.api.delete_pod("default", order[0])
    assert reserved(setup) == sorted(order[1:])
    version = int(setup.api.pod(order[1]).metadata.resource_version)
    setup.clock.advance(5)
    setup.api.put_pod(unscheduled(setup.api.pod(order[1]), stamp(4), version, "volume cannot be bound"))
    assert reserved(setup) == [order[2]]


def stamp(after_s: float) -> str:
    return datetime.datetime.fromtimestamp(START_UNIX_S + after_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
