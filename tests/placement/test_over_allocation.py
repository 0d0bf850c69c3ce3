"""Nothing is ever over-allocated, whatever the order of events: a state machine with shrinking (35,000 steps).

The API is the truth; two schedulers see it late, twice, or only by a relist, and take turns in leading. After each
step the cards are counted from annotation text alone, by code that shares nothing with the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hami.core.errors import TransportError
from hami.core.objects import Pod
from hami.placement.bind import Binder, BindSettings
from hami.placement.claims import BACKSTOP_S
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from tests.placement.complete_lists import nodes_replaced, pods_replaced
from tests.placement.fake_api import FakeApi, FakeEvents
from tests.placement.fakes import (
    FakeClock,
    card,
    container,
    deleted,
    make_node,
    make_pod,
    make_world,
    totals_from_text,
    with_phase,
)

NODES = ("n1", "n2")
OFFERED = NodeNames.of(NODES)
SLOTS, MEMORY, CORES = 3, 10000, 100
SHAPES = (
    (container(memory_mib=4000, cores=30),),
    (container(memory_mib=10000),),
    (container(memory_mib=1000, cores=100),),
    (container(count=2, memory_mib=2500, cores=20),),
    (container(memory_mib=5000), container(count=0), container(memory_mib=5000, cores=50)),
)
INIT = (container(memory_mib=7000, cores=10),)
pods_by_index = st.integers(0, 30)


class Scheduler:
    """One replica: its memory, and the watch events that have not reached it yet."""

    def __init__(self, identity: str, api: FakeApi, clock: FakeClock) -> None:
        self.pending: list[Pod] = []
        self.world = make_world(clock)
        self.engine = Engine(self.world)
        settings = BindSettings(identity, wait_s=0.0, token_expiry_s=300.0, retry_pause_s=0.0)
        self.binder = Binder(self.world, api, FakeEvents(), clock, settings)

    def deliver(self, count: int, *, twice: bool) -> None:
        for _ in range(min(count, len(self.pending))):
            event = self.pending.pop(0)
            for _ in range(1 + twice):
                self.world.on_pod(event)


class Cluster(RuleBasedStateMachine):
    """Two nodes with two cards, two schedulers that may restart, pods that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.api = FakeApi()
        self.serial = 0
        for name in NODES:
            self.api.put_node(make_node(name, [card(n, slots=SLOTS, memory_mib=MEMORY) for n in range(2)]))
        self.schedulers = [Scheduler(identity, self.api, self.clock) for identity in ("a", "b")]
        for scheduler in self.schedulers:
            self.list_all(scheduler)

    @property
    def leader(self) -> Scheduler:
        return self.schedulers[0]

    def list_all(self, scheduler: Scheduler) -> None:
        scheduler.pending.clear()
        self.run(nodes_replaced(scheduler.world, list(self.api.nodes.values())))
        self.run(pods_replaced(scheduler.world, list(self.api.pods.values())))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.loop.close()

    def pick(self, index: int) -> Pod | None:
        pods = list(self.api.pods.values())
        return pods[index % len(pods)] if pods else None

    def changed(self, pod: Pod) -> None:
        self.tell(self.api.put_pod(pod))

    def tell(self, pod: Pod) -> None:
        for scheduler in self.schedulers:
            scheduler.pending.append(pod)

    @precondition(lambda self: len(self.api.pods) < 12)
    @rule(shape=st.sampled_from(SHAPES), init=st.booleans())
    def create(self, shape: Any, init: bool) -> None:
        self.serial += 1
        name = f"p{self.serial % 15}"
        if ("default", name) not in self.api.pods:
            self.changed(make_pod(name, *shape, init=INIT if init else (), uid=f"u{self.serial}"))

    @rule(index=pods_by_index, offered=st.sampled_from([OFFERED, NodeNames.of(["n1"]), NodeNames.of(["n9"])]))
    def filter(self, index: int, offered: NodeNames) -> None:
        pod = self.pick(index)
        if pod is not None:
            self.leader.engine.filter(pod, offered)

    @rule(
        index=pods_by_index,
        fault=st.sampled_from([None, "before", "after"]),
        verb=st.sampled_from(["bind", "patch_node"]),
    )
    def bind(self, index: int, fault: str | None, verb: str) -> None:
        """Binds where the reservation is, or to the first node if a restart has lost it."""
        pod = self.pick(index)
        if pod is None:
            return
        claim = self.leader.world.ledger.get(pod.metadata.uid)
        node = claim.node if claim is not None else "n1"
        self.api.faults.clear()
        if fault:
            self.api.faults[verb, fault] = [TransportError("cut")]
        self.run(self.leader.binder.bind("default", pod.metadata.name, pod.metadata.uid, node))
        self.api.faults.clear()
        after = self.api.pods["default", pod.metadata.name]
        if after is not pod:
            self.tell(after)
        owner = self.api.lock(node).rpartition(",")[2]
        if owner and ("default", owner) in self.api.pods and self.api.pod(owner).spec.node_name == node:
            self.api.serve("default", owner)
            self.tell(self.api.pod(owner))

    @rule(index=pods_by_index, phase=st.sampled_from(["Running", "Succeeded", "Failed"]))
    def finish(self, index: int, phase: str) -> None:
        pod = self.pick(index)
        if pod is not None and pod.spec.node_name and not pod.finished:
            self.changed(with_phase(pod, phase))

    @rule(index=pods_by_index)
    def begin_deletion(self, index: int) -> None:
        pod = self.pick(index)
        if pod is not None:
            self.changed(deleted(pod))

    @rule(index=pods_by_index, told=st.booleans())
    def delete(self, index: int, told: bool) -> None:
        """`told` false: the watch has lost the event, only a relist will show it."""
        pod = self.pick(index)
        if pod is None:
            return
        del self.api.pods["default", pod.metadata.name]
        for scheduler in self.schedulers:
            scheduler.pending = [event for event in scheduler.pending if event.metadata.uid != pod.metadata.uid]
            if told:
                scheduler.world.on_pod_deleted("default", pod.metadata.name, pod.metadata.uid)

    @rule(who=st.integers(0, 1), count=st.integers(1, 5), twice=st.booleans())
    def deliver(self, who: int, count: int, twice: bool) -> None:
        self.schedulers[who].deliver(count, twice=twice)

    @rule(who=st.integers(0, 1))
    def relist(self, who: int) -> None:
        self.list_all(self.schedulers[who])

    @rule()
    def restart(self) -> None:
        self.schedulers[0] = Scheduler(f"r{self.serial}", self.api, self.clock)
        self.list_all(self.schedulers[0])

    @rule()
    def change_leader(self) -> None:
        """The other one leads, whatever it has seen so far."""
        self.clock.advance(1.0)
        self.leader.binder.leadership_lost()
        self.schedulers.reverse()
        self.leader.binder.new_term()

    @rule(seconds=st.sampled_from([1.0, 301.0, BACKSTOP_S + 1]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def nodes_seen(self) -> None:
        for scheduler in self.schedulers:
            for node in self.api.nodes.values():
                scheduler.world.on_node(node)

    @invariant()
    def never_over_allocated(self) -> None:
        for place, (slots, memory, cores) in totals_from_text(list(self.api.pods.values())).items():
            assert slots <= SLOTS, place
            assert memory <= MEMORY, place
            assert cores <= CORES, place

    @invariant()
    def no_sum_is_negative(self) -> None:
        for scheduler in self.schedulers:
            for name in NODES:
                for device, use in scheduler.world.ledger.uses(name).items():
                    assert min(use.slots, use.memory_mib, use.core_percent) >= 0, (name, device)

    @rule()
    def a_list_alone_rebuilds_the_ledger(self) -> None:
        """Promise 2: a scheduler without memory has exactly the bound pods of the API."""
        fresh = Scheduler("fresh", self.api, self.clock)
        self.list_all(fresh)
        found = {
            (name, device): (use.slots, use.memory_mib, use.core_percent)
            for name in NODES
            for device, use in fresh.world.ledger.uses(name).items()
        }
        assert found == totals_from_text(list(self.api.pods.values()))


Cluster.TestCase.settings = settings(
    max_examples=350, stateful_step_count=100, deadline=None, suppress_health_check=list(HealthCheck)
)
TestNeverOverAllocates = Cluster.TestCase
