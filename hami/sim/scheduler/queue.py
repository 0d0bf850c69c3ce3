"""The three queues of kube-scheduler: active, backoff, unschedulable.

Source: pkg/scheduler/backend/queue (1.34). A refused pod waits in `unschedulable` until something in the cluster
changes, then for the rest of its backoff; a pod whose cycle ended in an error goes to backoff at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hami.sim.objects import Obj, dig
from hami.sim.scheduler.config import SchedulerConfig


@dataclass(slots=True)
class Queued:
    """One waiting pod with its history; counts are of refusals and of errors in a row."""

    pod: Obj
    added: float
    refusals: int = 0
    errors: int = 0
    last_failure: float = 0.0
    by_extender: bool = False
    """Whether the extender took part in the last refusal: then every event is worth another try."""
    events_at_pop: Counter[bool] = field(default_factory=Counter, repr=False)

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def order(self) -> tuple[int, float]:
        """PrioritySort: higher priority first, then first come."""
        return -int(dig(self.pod, "spec", "priority", default=0)), self.added


class SchedulingQueue:
    """Pods that wait to be scheduled, by uid. `clock` is monotonic seconds."""

    def __init__(self, config: SchedulerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self.active: dict[str, Queued] = {}
        self.backoff: dict[str, Queued] = {}
        self.unschedulable: dict[str, Queued] = {}
        self._in_flight: dict[str, Queued] = {}
        self._events: Counter[bool] = Counter()
        """How many events there were that matter after a refusal by the extender (True) and without one (False)."""
        self._changed = asyncio.Event()

    def backoff_s(self, queued: Queued) -> float:
        """1 s doubling to 10 s; errors in a row count before refusals."""
        count = queued.errors or queued.refusals
        if count == 0:
            return 0.0
        return float(min(self._config.initial_backoff_s * 2 ** min(count - 1, 16), self._config.max_backoff_s))

    def add(self, pod: Obj) -> None:
        """A new pod goes to the active queue."""
        queued = Queued(pod, self._clock())
        self.active[queued.uid] = queued
        self._changed.set()

    def update(self, pod: Obj) -> None:
        """Newer version of a waiting pod; where its spec or metadata changed, a refused one gets another try."""
        uid = pod["metadata"]["uid"]
        for waiting in (self.active, self.backoff, self._in_flight):
            if uid in waiting:
                waiting[uid].pod = pod
                return
        queued = self.unschedulable.get(uid)
        if queued is None:
            self.add(pod)
            return
        matters = _schedulable_part(queued.pod) != _schedulable_part(pod)
        queued.pod = pod
        if matters:
            self._move(queued)

    def delete(self, uid: str) -> None:
        for waiting in (self.active, self.backoff, self.unschedulable, self._in_flight):
            waiting.pop(uid, None)

    def cluster_changed(self, *, matters_to_plugins: bool) -> None:
        """Something in the cluster changed: refused pods may be tried again after their backoff.

        Pods that an extender refused are woken by anything, the others (queueing hints) only where the change is one
        that the node checks look at.
        """
        self._events[True] += 1
        self._events[False] += matters_to_plugins
        for queued in list(self.unschedulable.values()):
            if queued.by_extender or matters_to_plugins:
                self._move(queued)

    def _move(self, queued: Queued) -> None:
        self.unschedulable.pop(queued.uid, None)
        ready = queued.last_failure + self.backoff_s(queued) <= self._clock()
        (self.active if ready else self.backoff)[queued.uid] = queued
        self._changed.set()

    async def pop(self) -> Queued:
        """The next pod to try; waits for one."""
        while True:
            self._flush()
            queued = self._next()
            if queued is not None:
                queued.events_at_pop = self._events.copy()
                self._in_flight[queued.uid] = queued
                return queued
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._changed.wait()

    def _next(self) -> Queued | None:
        if self.active:
            queued = min(self.active.values(), key=lambda one: one.order)
            return self.active.pop(queued.uid)
        idle_may_take = (
            [one for one in self.backoff.values() if not one.errors] if self._config.pop_from_backoff else []
        )
        if idle_may_take:
            queued = min(idle_may_take, key=lambda one: one.last_failure + self.backoff_s(one))
            return self.backoff.pop(queued.uid)
        return None

    def _wait_s(self) -> float:
        ends = [one.last_failure + self.backoff_s(one) for one in self.backoff.values()]
        return max(min([*ends, self._clock() + 30.0]) - self._clock(), 0.01)

    def _flush(self) -> None:
        now = self._clock()
        for queued in list(self.backoff.values()):
            if queued.last_failure + self.backoff_s(queued) <= now:
                self.active[queued.uid] = self.backoff.pop(queued.uid)
        for queued in list(self.unschedulable.values()):
            if queued.last_failure + self._config.unschedulable_flush_s <= now:
                self._move(queued)

    def done(self, queued: Queued) -> None:
        """The pod left the queue for good (it is bound, or gone)."""
        self._in_flight.pop(queued.uid, None)

    def failed(self, queued: Queued, *, refused: bool, by_extender: bool = False) -> None:
        """The cycle ended without a node (`refused`) or in an error. A pod deleted meanwhile is dropped."""
        if self._in_flight.pop(queued.uid, None) is None:
            return
        queued.last_failure = self._clock()
        queued.refusals += refused
        queued.errors = 0 if refused else queued.errors + 1
        queued.by_extender = by_extender
        if refused and queued.events_at_pop[by_extender] == self._events[by_extender]:
            self.unschedulable[queued.uid] = queued
        else:
            self.backoff[queued.uid] = queued
            self._changed.set()


def _schedulable_part(pod: Obj) -> tuple[object, ...]:
    meta = pod["metadata"]
    return pod.get("spec"), meta.get("labels"), meta.get("annotations"), meta.get("deletionTimestamp")
