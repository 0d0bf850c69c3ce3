"""Pods that do not come the usual way: with a node of their own, of other schedulers, static ones, init-only ones.

What each holds is read from its annotations, never guessed; what kubelet may do with the others is doctor's to tell
(issue 6; spec/scheduler 11.1 no. 5, 11, 14; design 3 and 4).
"""

from __future__ import annotations

import msgspec
import pytest

from hami.core import keys
from hami.core.model import Use
from hami.core.objects import Pod
from hami.placement.world import World
from tests.placement.bind_setup import Setup
from tests.placement.complete_lists import pods_replaced
from tests.placement.fakes import (
    NVIDIA,
    START_UNIX_S,
    annotated,
    container,
    deleted,
    init_ended,
    make_pod,
    with_phase,
)

ONE = "GPU-0,NVIDIA,1000,10:;"
FULL = "GPU-0,NVIDIA,16384,100:GPU-1,NVIDIA,16384,100:;"


def used(world: World, node: str = "n1") -> dict[str, Use]:
    world.settle_now()
    return dict(world.ledger.uses(node))


def placed_by_hand(name: str, node: str = "n1", **notes: str) -> Pod:
    """`spec.nodeName` from the start, or bound by a scheduler that knows nothing of shares."""
    pod = make_pod(name, annotations=notes)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


@pytest.mark.parametrize(
    "notes",
    [{}, {"kubernetes.io/config.mirror": "0123", "kubernetes.io/config.source": "file"}, {keys.VGPU_NODE: "n1"}],
    ids=["preset or other scheduler", "static", "node without cards"],
)
@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded"])
async def test_a_pod_without_an_allocation_holds_nothing_in_any_phase(
    setup: Setup, notes: dict[str, str], phase: str
) -> None:
    setup.api.put_pod(with_phase(placed_by_hand("stranger", **notes), phase))
    assert used(setup.world) == {}
    setup.reserve(make_pod("p"))
    assert await setup.bind() == ""


async def test_a_preset_node_is_the_answer_to_filter_and_costs_bind_nothing(setup: Setup) -> None:
    pod = setup.api.put_pod(placed_by_hand("p"))
    assert setup.engine.filter(pod, setup.names).node == "n1"
    assert used(setup.world) == {}
    assert await setup.bind() == ""
    assert "bound to node n1 already" in await setup.bind(node="n2")
    assert [verb for verb, _ in setup.api.calls] == ["get_pod", "get_pod"]
    assert setup.api.pod("p").annotations == {}


async def test_an_allocation_on_a_preset_node_counts_whoever_wrote_it(setup: Setup) -> None:
    """Where admission was away: kubelet would hand these cards out, so nobody else gets them."""
    setup.api.put_pod(placed_by_hand("p", **{NVIDIA.allocated_key: FULL}))
    assert used(setup.world) == {"GPU-0": Use(1, 16384, 100), "GPU-1": Use(1, 16384, 100)}
    assert setup.engine.filter(setup.api.put_pod(make_pod("q")), setup.names).node == "n2"
    setup.api.delete_pod("default", "p")
    assert used(setup.world) == {}


async def test_pods_of_upstreams_scheduler_hold_their_cards_from_filter_to_their_end(setup: Setup) -> None:
    notes = {keys.VGPU_TIME: str(int(START_UNIX_S)), NVIDIA.to_allocate_key: ONE}
    pod = annotated(make_pod("p", annotations=notes), "n1", ONE, bound=False)
    setup.api.put_pod(pod)
    assert used(setup.world) == {"GPU-0": Use(1, 1000, 10)}
    bound = annotated(pod, "n1", ONE, phase="allocating")
    for state in (bound, with_phase(annotated(pod, "n1", ONE, phase="success"), "Running"), deleted(bound)):
        setup.api.put_pod(state)
        assert used(setup.world) == {"GPU-0": Use(1, 1000, 10)}
    setup.api.put_pod(with_phase(bound, "Failed"))
    assert used(setup.world) == {}


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", ""])
def test_only_an_end_gives_back(setup: Setup, phase: str) -> None:
    """Unknown is what a node that is not heard of any more leaves behind: its pods may well run on."""
    setup.api.put_pod(with_phase(annotated(make_pod("p"), "n1", ONE), phase))
    assert used(setup.world) == {"GPU-0": Use(1, 1000, 10)}


@pytest.mark.parametrize("ended", ["Succeeded", "Failed"])
def test_each_end_gives_back_at_once_and_once(setup: Setup, ended: str) -> None:
    pod = annotated(make_pod("p"), "n1", ONE)
    other = setup.api.put_pod(annotated(make_pod("q"), "n1", ONE))
    for state in (pod, with_phase(pod, ended), with_phase(deleted(pod), ended), with_phase(pod, ended)):
        setup.api.put_pod(state)
    assert used(setup.world) == {"GPU-0": Use(1, 1000, 10)}
    setup.api.delete_pod("default", "p")
    assert used(setup.world) == {"GPU-0": Use(1, 1000, 10)}
    setup.api.put_pod(with_phase(other, ended))
    assert used(setup.world) == {}


async def test_an_init_only_pod_goes_the_whole_way_and_gives_back_when_its_init_containers_ended(setup: Setup) -> None:
    """Upstream takes no lock for such pods, so their Allocate may go to another (11.1 no. 11)."""
    setup.reserve(make_pod("p", container(count=0), init=(container(memory_mib=500),)))
    assert await setup.bind() == ""
    assert setup.api.lock("n1").endswith(",default,p")
    bound = setup.api.pod("p")
    assert bound.annotations[NVIDIA.to_allocate_key] == "GPU-0,NVIDIA,500,0:;;"
    assert used(setup.world) == {"GPU-0": Use(1, 500, 0)}
    setup.api.serve("default", "p")
    setup.api.put_pod(init_ended(setup.api.pod("p"), exit_code=1))
    assert used(setup.world) == {"GPU-0": Use(1, 500, 0)}
    setup.api.put_pod(init_ended(setup.api.pod("p")))
    assert used(setup.world) == {}
    assert setup.api.pod("p").spec.node_name == "n1"


async def test_a_pod_in_deletion_keeps_its_cards_over_a_relist_and_its_successor_waits(setup: Setup) -> None:
    """One of a StatefulSet: the next pod has the same name and comes only when this one is gone."""
    pod = annotated(make_pod("web-0"), "n1", FULL, phase="success")
    setup.api.put_pod(with_phase(deleted(pod), "Running"))
    await pods_replaced(setup.world, list(setup.api.pods.values()))
    assert used(setup.world) == {"GPU-0": Use(1, 16384, 100), "GPU-1": Use(1, 16384, 100)}
    waiting = setup.api.put_pod(make_pod("other"))
    assert setup.engine.filter(waiting, setup.names).node == "n2"
    successor = make_pod("web-0", uid="next")
    setup.api.put_pod(successor)
    assert used(setup.world) == {}
    assert setup.engine.filter(setup.api.pod("web-0"), setup.names).node is not None
    setup.world.on_pod_deleted("default", "web-0", "uid-web-0")
    assert setup.world.ledger.get("next") is not None
