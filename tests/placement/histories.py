"""Random histories of a small cluster in virtual time: an API server behind a bad network, two schedulers, plugins.

Every request travels, takes effect and is answered after random times, may be lost or come twice, and takes effect
though its sender was killed meanwhile. Schedulers stop and go on, are killed and start anew, lead or believe they do,
have clocks that are minutes wrong, see the watch late and lists in the middle. Nothing waits in real time, and one
seed gives one history.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec

from hami.core import keys
from hami.core.objects import Pod
from tests.placement.fakes import (
    NVIDIA,
    card,
    container,
    deleted,
    make_node,
    make_pod,
    totals_from_text,
    unscheduled,
    with_phase,
)
from tests.placement.history_replica import CARDS, NODES, ROOM, Replica
from tests.placement.virtual import MEMORY, SLOTS, Server, VirtualLoop


class History:
    """One seed's cluster. `play` runs it for so many steps; `settle` lets it come to rest."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.random = Random(seed)
        self.steps = 0
        self.fault_rate = self.random.choice([0.0, 0.02, 0.1])
        self.may_patch_pods = self.random.random() < 0.3
        self.server = Server()
        self.on_the_way: set[asyncio.Future[Any]] = set()
        self.failed: BaseException | None = None
        self.changes: dict[str, int] = {}
        self._serial = 0
        self._quiet = False
        for name in NODES:
            cards = [card(number, node=name, slots=SLOTS, memory_mib=MEMORY) for number in range(CARDS)]
            self.server.put_node(make_node(name, cards))
        self.replicas = [self.replica(number) for number in range(2)]
        self.leader = self.replicas[0]

    def replica(self, number: int) -> Replica:
        return Replica(self, f"s-{number}", self.random.choice([0.0, 0.0, 600.0, -600.0]))

    def step(self) -> None:
        self.steps += 1

    def travel_s(self) -> float:
        """One way: mostly a moment, sometimes seconds."""
        return self.random.random() * (3.0 if not self._quiet and self.random.random() < 0.05 else 0.02)

    def lag_s(self) -> float:
        return self.random.random() * (2.0 if not self._quiet and self.random.random() < 0.02 else 0.01)

    def list_s(self) -> float:
        """A complete list takes longer than one object, often by seconds."""
        return self.random.random() * (3.0 if not self._quiet and self.random.random() < 0.3 else 0.05)

    def watch_over(self, task: asyncio.Future[Any]) -> None:
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and self.failed is None:
            self.failed = error

    def give_up(self, uid: str, name: str, why: str) -> None:
        """kube-scheduler writes the condition; not where it says that already."""
        pod = self.server.pods.get(("default", name))
        if pod is None or pod.metadata.uid != uid or pod.spec.node_name:
            return
        changed = unscheduled(pod, f"2027-01-15T08:{int(self.loop.time()) // 60 % 60:02d}:00Z", message=why)
        if changed.status != pod.status:
            self.server.put_pod(changed)

    # What happens

    async def lead(self, replica: Replica) -> None:
        """The lease passes to `replica`; the other notices it later, or believes for long that it still leads."""
        old, self.leader = self.leader, replica
        if old is not replica and old.leads:

            async def notice() -> None:
                await asyncio.sleep(self.random.random() * 5)
                await old.going.wait()
                if old is not self.leader:
                    old.leads = False
                    old.binder.leadership_lost()

            old.start(notice())
        replica.leads = True
        replica.binder.new_term()
        replica.start(replica.keep_scheduling())

    async def disturb(self) -> None:
        """One thing that goes wrong, or just happens, at random."""
        acts = {
            self._change_leader: 2,
            self._stop_for_a_while: 2,
            self._kill: 1,
            self._relist: 3,
            self._delete: 6,
            self._finish: 4,
            self._touch_pod: 4,
            self._touch_node: 2,
        }
        act = self.random.choices(list(acts), list(acts.values()))[0]
        self.changes[act.__name__] = self.changes.get(act.__name__, 0) + 1
        self.step()
        await act()

    async def _change_leader(self) -> None:
        await self.lead(self.random.choice(self.replicas))

    async def _stop_for_a_while(self) -> None:
        stopped = self.random.choice(self.replicas)
        stopped.going.clear()
        self.loop.call_later(self.random.random() * self.random.choice([1, 10, 100]), stopped.going.set)
        if stopped is self.leader and self.random.random() < 0.8:
            await self.lead(self.replicas[stopped is self.replicas[0]])

    async def _kill(self) -> None:
        number = self.random.randrange(2)
        old = self.replicas[number]
        await old.kill()
        self.replicas[number] = new = self.replica(number)
        if old is self.leader:
            self.leader = new
            await self.lead(self.random.choice(self.replicas))

    async def _relist(self) -> None:
        self.random.choice(self.replicas).relist()

    def _some_pod(self) -> Pod | None:
        pods = list(self.server.pods.values())
        return self.random.choice(pods) if pods else None

    async def _delete(self) -> None:
        pod = self._some_pod()
        if pod is None:
            return
        if self.random.random() < 0.3:
            self.server.put_pod(deleted(pod))
        else:
            self.server.delete_pod("default", pod.metadata.name)

    async def _finish(self) -> None:
        pod = self._some_pod()
        if pod is not None and pod.spec.node_name and not pod.finished:
            self.server.put_pod(with_phase(pod, self.random.choice(["Succeeded", "Failed"])))

    async def _touch_pod(self) -> None:
        if (pod := self._some_pod()) is not None:
            self.server._merge_pod(pod, {"example.com/note": str(self.steps)})

    async def _touch_node(self) -> None:
        self.server._merge_node(self.random.choice(NODES), {"example.com/note": str(self.steps)})

    async def create_pods(self) -> None:
        """As many as there is room for, names used again; those that ended are removed."""
        while True:
            for (_, name), pod in list(self.server.pods.items()):
                if pod.finished or pod.metadata.deletion_timestamp is not None:
                    self.server.delete_pod("default", name)
            for number in range(ROOM):
                if ("default", f"p{number}") not in self.server.pods:
                    self._serial += 1
                    self.server.put_pod(make_pod(f"p{number}", container(memory_mib=4900), uid=f"u{self._serial}"))
            await asyncio.sleep(1.0 + self.random.random() * 2)

    async def serve(self, node: str) -> None:
        """The node's plugin: quick, slow, failing, or away for longer than a token lasts."""
        while True:
            await asyncio.sleep(self.random.random() * 0.1)
            if not self._quiet and self.random.random() < 0.002:
                await asyncio.sleep(self.random.random() * 100)
            waiting = [
                pod
                for pod in self.server.pods.values()
                if pod.spec.node_name == node and pod.annotations.get(keys.BIND_PHASE) == "allocating"
            ]
            named = [pod for pod in waiting if self.server.lock(node).endswith(f",default,{pod.metadata.name}")]
            if not waiting:
                continue
            self.step()
            if (not named and len(waiting) > 1) or (not self._quiet and self.random.random() < 0.05):
                # Refused: it cannot be told whose call this is, or the start failed.
                failed = self.server._merge_pod(waiting[0], {keys.BIND_PHASE: keys.PHASE_FAILED})
                self.server.put_pod(with_phase(failed, "Failed"))
                continue
            owner = (named or waiting)[0]
            self.server._merge_pod(owner, {keys.BIND_PHASE: keys.PHASE_SUCCESS, NVIDIA.to_allocate_key: ";"})
            await asyncio.sleep(self.travel_s())
            if self.server.lock(node).endswith(f",default,{owner.metadata.name}"):
                self.server._merge_node(node, {keys.NODE_LOCK: None})

    async def play(self, steps: int) -> None:
        """Raises what broke a promise."""
        helpers = [asyncio.ensure_future(self.serve(node)) for node in NODES]
        helpers.append(asyncio.ensure_future(self.create_pods()))
        for helper in helpers:
            self.watch_over(helper)
        await self.lead(self.leader)
        try:
            while self.steps < steps:
                await asyncio.sleep(self.random.random() * self.random.choice([0.1, 1, 5]))
                await self.disturb()
                self.raise_failure()
            await self.settle()
        finally:
            for helper in helpers:
                helper.cancel()
            for replica in self.replicas:
                await replica.kill()
            await asyncio.gather(*helpers, *self.on_the_way, return_exceptions=True)

    def raise_failure(self) -> None:
        if self.failed is not None:
            raise self.failed

    async def settle(self) -> None:
        """Faults end: within ten minutes every pod runs, and the leader's books are what the API says."""
        self._quiet, self.fault_rate = True, 0.0
        for replica in self.replicas:
            replica.going.set()
        await self.lead(self.leader)
        ends_s = self.loop.time() + 600
        while not self.all_served():
            self.raise_failure()
            assert self.loop.time() < ends_s, f"not bound or not served: {self.waiting()}"
            await asyncio.sleep(1)
        await self.leader.binder.drain()
        await asyncio.sleep(30)
        self.raise_failure()
        self.leader.world.settle_now()
        held = {
            (name, device): msgspec.structs.astuple(use)
            for name in NODES
            for device, use in self.leader.world.ledger.uses(name).items()
        }
        assert held == totals_from_text(list(self.server.pods.values()))

    def waiting(self) -> list[str]:
        return [
            f"{pod.metadata.name} on {pod.spec.node_name or 'no node'}, {pod.annotations.get(keys.BIND_PHASE)}"
            for pod in self.server.pods.values()
            if pod.annotations.get(keys.BIND_PHASE) != keys.PHASE_SUCCESS
        ] + [f"token of {name}: {self.server.lock(name)}" for name in NODES]

    def all_served(self) -> bool:
        return len(self.server.pods) == ROOM and all(
            pod.annotations.get(keys.BIND_PHASE) == keys.PHASE_SUCCESS for pod in self.server.pods.values()
        )


def play(seed: int, steps: int) -> History:
    """One history; AssertionError where a promise is broken."""
    loop = VirtualLoop()

    async def run() -> History:
        history = History(loop, seed)
        await history.play(steps)
        return history

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(run())
