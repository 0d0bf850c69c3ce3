"""Virtual time, and an API server at the end of long roads: what histories are made of."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Final, Protocol, TypeVar

from hami.core.errors import ApiError, TransportError
from hami.core.objects import Node, Pod
from tests.placement.fake_api import FakeApi
from tests.placement.fakes import START_UNIX_S, totals_from_text

T = TypeVar("T")
SLOTS, MEMORY = 2, 10000
CALL_LIMIT_S: Final = 10.0
FAULTS = (
    lambda: TransportError("reset"),
    lambda: ApiError(429, "TooManyRequests", "later"),
    lambda: ApiError(500, "InternalError", "no"),
)


class _Jump(selectors.SelectSelector):
    """Waits for nothing: time jumps to the next thing that happens."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left that could happen"
        self.now_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only when nothing is left to do."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s

    def spend(self, seconds: float) -> None:
        """Work that took so long."""
        self._jump.now_s += seconds


class SkewedClock:
    """A scheduler's clocks: its time of day is wrong by `skew_s`; each look takes a moment, so that work is sliced."""

    def __init__(self, loop: VirtualLoop, skew_s: float) -> None:
        self._loop = loop
        self._skew_s = skew_s

    def monotonic_s(self) -> float:
        self._loop.spend(0.0005)
        return self._loop.time()

    def unix_s(self) -> float:
        return START_UNIX_S + self._loop.time() + self._skew_s


class Server(FakeApi):
    """The truth. `watchers` hear of each change; the cards are counted after each Binding."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers: list[Callable[[Node | Pod, bool], None]] = []

    def put_node(self, node: Node) -> Node:
        node = super().put_node(node)
        for tell in self.watchers:
            tell(node, False)
        return node

    def put_pod(self, pod: Pod) -> Pod:
        pod = super().put_pod(pod)
        for tell in self.watchers:
            tell(pod, False)
        if pod.spec.node_name:
            self.check(pod.spec.node_name)
        return pod

    def delete_pod(self, namespace: str, name: str) -> None:
        pod = self.pods.pop((namespace, name))
        for tell in self.watchers:
            tell(pod, True)

    def check(self, node: str) -> None:
        """Promise 1, from annotation text alone."""
        here = [pod for pod in self.pods.values() if pod.spec.node_name == node]
        for place, (slots, memory, _) in totals_from_text(here).items():
            names = [pod.metadata.name for pod in here]
            fits = slots <= SLOTS and memory <= MEMORY
            assert fits, f"{place} holds {slots} pods, {memory} MiB; on the node: {names}"


class Roads(Protocol):
    """How requests travel."""

    random: Random
    fault_rate: float
    may_patch_pods: bool
    on_the_way: set[asyncio.Future[Any]]

    def step(self) -> None: ...

    def travel_s(self) -> float: ...


class Network:
    """`ClusterWriter` of one scheduler process: each call goes out, takes effect and is answered after a while."""

    def __init__(self, roads: Roads, server: Server, going: asyncio.Event) -> None:
        self._roads = roads
        self._server = server
        self._going = going

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        roads, random = self._roads, self._roads.random
        await self._going.wait()
        roads.step()
        effect = asyncio.ensure_future(self._effect(work))
        roads.on_the_way.add(effect)
        effect.add_done_callback(roads.on_the_way.discard)
        effect.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                answer: T = await asyncio.shield(effect)
                if random.random() < roads.fault_rate:
                    await asyncio.sleep(CALL_LIMIT_S)
                await asyncio.sleep(roads.travel_s())
        except TimeoutError as error:
            raise TransportError("no answer") from error
        await self._going.wait()
        return answer

    async def _effect(self, work: Callable[[], Awaitable[T]]) -> T:
        roads, random = self._roads, self._roads.random
        await asyncio.sleep(roads.travel_s())
        if random.random() < roads.fault_rate:
            raise random.choice(
                [TransportError("reset"), ApiError(429, "TooMany", "later"), ApiError(500, "Err", "no")]
            )
        if random.random() < roads.fault_rate:
            with contextlib.suppress(ApiError):
                await work()
        return await work()

    async def get_node(self, name: str) -> Node:
        return await self._call(lambda: self._server.get_node(name))

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._call(lambda: self._server.get_pod(namespace, name))

    async def list_pods_on_node(self, node: str) -> list[Pod]:
        return await self._call(lambda: self._server.list_pods_on_node(node))

    async def patch_node_annotations(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str
    ) -> Node:
        return await self._call(lambda: self._server.patch_node_annotations(name, annotations, resource_version))

    async def patch_pod_annotations(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        resource_version: str = "",
        labels: Mapping[str, str | None] | None = None,
    ) -> Pod:
        if not self._roads.may_patch_pods:
            raise ApiError(403, "Forbidden", "may not patch pods")
        return await self._call(
            lambda: self._server.patch_pod_annotations(
                namespace, name, annotations, uid=uid, resource_version=resource_version, labels=labels
            )
        )

    async def bind(
        self, namespace: str, name: str, *, uid: str, resource_version: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        await self._call(
            lambda: self._server.bind(
                namespace, name, uid=uid, resource_version=resource_version, node=node, annotations=annotations
            )
        )
