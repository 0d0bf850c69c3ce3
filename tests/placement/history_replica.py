"""One scheduler of a random history (histories.py): its process, its kube-scheduler, and what happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from hami.core.objects import Node, Pod
from hami.placement.bind import Binder, BindSettings
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from hami.placement.reservations import ReservationCheck
from tests.placement.complete_lists import nodes_replaced, pods_replaced
from tests.placement.fake_api import FakeEvents
from tests.placement.fakes import make_world
from tests.placement.virtual import SLOTS, Network, SkewedClock

if TYPE_CHECKING:
    from tests.placement.histories import History

NODES = ("n0", "n1")
CARDS = 2
ROOM = len(NODES) * CARDS * SLOTS
"""How many pods of half a card there are room for: as many as there ever are, so that each mistake shows."""


class Replica:
    """One scheduler process with its kube-scheduler; `stop` and `go` are SIGSTOP and SIGCONT."""

    def __init__(self, history: History, name: str, skew_s: float) -> None:
        self._history = history
        self.name = name
        self.going = asyncio.Event()
        self.going.set()
        self.leads = False
        self._busy: set[str] = set()
        """Pods in a scheduling or binding cycle: kube-scheduler never has one in two."""
        clock = SkewedClock(history.loop, skew_s)
        self.world = make_world(clock)  # type: ignore[arg-type]  # any clock
        self.engine = Engine(self.world)
        settings = BindSettings(name, wait_s=5.0, token_expiry_s=60.0, retry_pause_s=0.1)
        network = Network(history, history.server, self.going)
        self.binder = Binder(self.world, network, FakeEvents(), clock, settings)
        self.watch: asyncio.Queue[tuple[Node | Pod, bool] | None] = asyncio.Queue()
        history.server.watchers.append(self._hear)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.start(self._follow())
        self.start(ReservationCheck(self.world, network).run())

    def _hear(self, found: Node | Pod, gone: bool) -> None:
        self.watch.put_nowait((found, gone))

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._history.watch_over(task)

    async def kill(self) -> None:
        """SIGKILL: requests on their way take effect all the same."""
        self._history.server.watchers.remove(self._hear)
        for task in [*self._tasks, *self.world.in_flight.tasks]:
            task.cancel()
        await asyncio.sleep(0)

    async def list_all(self) -> None:
        """A complete list; what the watch had to say before it is never said."""
        self.watch = asyncio.Queue()
        server = self._history.server
        nodes, pods = list(server.nodes.values()), list(server.pods.values())
        # It is old when it comes: this scheduler has bound others meanwhile, and the watch goes on from the list.
        await asyncio.sleep(self._history.list_s())
        await self.going.wait()
        await nodes_replaced(self.world, nodes)
        await pods_replaced(self.world, pods)

    async def _follow(self) -> None:
        await self.list_all()
        while True:
            news = await self.watch.get()
            await asyncio.sleep(self._history.lag_s())
            await self.going.wait()
            if news is None:
                await self.list_all()
                continue
            self._history.step()
            self.take(*news)

    def take(self, found: Node | Pod, gone: bool) -> None:
        if isinstance(found, Node):
            self.world.on_node(found)
        elif gone:
            self.world.on_pod_deleted(found.metadata.namespace, found.metadata.name, found.metadata.uid)
        else:
            self.world.on_pod(found)

    def relist(self) -> None:
        """The watch was cut."""
        self.watch.put_nowait(None)

    async def schedule(self, name: str) -> None:
        """What this kube-scheduler does with a pod: filter, bind, and a condition where that failed."""
        pod = self._history.server.pods.get(("default", name))
        if pod is None or pod.spec.node_name or not self.leads or not self.world.synced:
            return
        await self.going.wait()
        answer = await self.engine.filter_sliced(pod, NodeNames.of(NODES))
        self._history.step()
        why = answer.error or "no node"
        if answer.node is not None:
            await asyncio.sleep(self._history.travel_s())
            why = await self.binder.bind("default", name, pod.metadata.uid, answer.node)
        if why:
            await self.going.wait()
            await asyncio.sleep(self._history.travel_s())
            self._history.give_up(pod.metadata.uid, name, why)

    async def keep_scheduling(self) -> None:
        """As long as it has the lease; each pod on a task of its own, as binding cycles are."""
        busy = self._busy

        async def one(name: str) -> None:
            try:
                await self.schedule(name)
                await asyncio.sleep(0.5)
            finally:
                busy.discard(name)

        while self.leads:
            for (_, name), pod in list(self._history.server.pods.items()):
                if not pod.spec.node_name and pod.metadata.deletion_timestamp is None and name not in busy:
                    busy.add(name)
                    self.start(one(name))
            await asyncio.sleep(0.2)
