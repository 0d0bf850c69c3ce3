"""An API server, its lawful writers and late watches in virtual time, around the real Allocate (docs/adr/0014).

The scheduler frees a token as `core.token.judge` says; kubelet asks for its pods in the order of their Bindings. What
the view hears comes as late as the test wants, whole lists included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from hami.core.errors import AllocateError
from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING
from hami.core.objects import Container, Node, ObjectMeta, Pod, PodSpec, PodStatus
from hami.core.token import TokenAction, encode_token, judge, token_of
from hami.core.whose_call import Call, CallRefusal, whose_calls
from hami.deviceplugin.allocate import Allocator
from hami.deviceplugin.board import Board
from hami.deviceplugin.node_view import NodeView
from hami.deviceplugin.seen_writer import Seen
from hami.deviceplugin.settings import PluginSettings
from hami.nvml.probe import CardFacts
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from hami.vendors.nvidia.names import ALLOCATED_KEY, TO_ALLOCATE_KEY
from tests.deviceplugin.bench import NODE, A, B, RecordedEvents
from tests.deviceplugin.memory_api import MemoryApi

T = TypeVar("T")

EXPIRY_S: Final = 300.0
NAMES: Final = ("p0", "p1", "p2")
SHARES: Final = {
    "one": f"{A},NVIDIA,100,0:;",
    "other": f"{B},NVIDIA,200,0:;",
    "pair": f"{A},NVIDIA,300,0:{B},NVIDIA,300,0:;",
    "two containers": f"{A},NVIDIA,400,0:;{B},NVIDIA,500,0:;",
}
VENDOR: Final = Nvidia(NvidiaConfig())


@dataclass(slots=True)
class _Asked:
    """One call of kubelet's."""

    counts: Sequence[int]
    reads: int = 0
    ruled: tuple[str, str] | None = None
    """Pod and rest of its work list that the rule names at the moment of the write."""


_asked: Final[ContextVar[_Asked]] = ContextVar("_asked")


class LateApi(Seen, MemoryApi):
    """Applies writes at once; before and after each call, others may write (`between`)."""

    def __init__(self, world: World) -> None:
        super().__init__(NODE)
        self._world = world
        self.view = world.view
        self.careless = False
        """A control: preconditions are not looked at."""

    async def get_node(self, name: str) -> Node:
        return await self._amid(lambda: super(LateApi, self).get_node(name), read=True)

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._amid(lambda: super(LateApi, self).get_pod(namespace, name), read=True)

    async def list_pods_on_node(self, node: str) -> list[Pod]:
        return await self._amid(lambda: super(LateApi, self).list_pods_on_node(node), read=True)

    async def drop_node_annotation(self, name: str, key: str, expected: str) -> Node:
        return await self._amid(lambda: super(LateApi, self).drop_node_annotation(name, key, expected))

    async def patch_node_annotations(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str = ""
    ) -> Node:
        node = await super().patch_node_annotations(name, annotations, resource_version)
        self._world.node_changed()
        return node

    async def patch_pod_annotations(self, namespace: str, name: str, annotations: Any, **more: Any) -> Pod:
        if self.careless:
            more |= {"uid": "", "resource_version": ""}

        def write() -> Awaitable[Pod]:
            self._world.about_to_write(annotations)
            return super(LateApi, self).patch_pod_annotations(namespace, name, annotations, **more)

        pod = await self._amid(write)
        self._world.written(pod, annotations)
        return pod

    async def _amid(self, call: Callable[[], Awaitable[T]], *, read: bool = False) -> T:
        _asked.get().reads += read
        self._world.between()
        await asyncio.sleep(0)
        answer = await call()
        self._world.between()
        return answer


class _Setup:
    """Makes no files: an answer is who got what."""

    async def ready(self, until_s: float) -> None:
        return

    async def prepare(self, call: Call, state: object) -> Any:
        return (call.pod.metadata.uid, call.container_index, call.shares)


class World:
    """`between` is what others do while a call of the plugin's is under way."""

    def __init__(self, make_view: Callable[[str, Callable[[], float]], NodeView] = NodeView) -> None:
        self.now_s = 1_000.0
        self.version = 100
        self.view = make_view(NODE, lambda: self.now_s)
        self.between: Callable[[], None] = lambda: None
        self.api = LateApi(self)
        self.kubelet: list[str] = []
        """uids whose containers kubelet has still to admit, in order."""
        self.lawful = True
        """Nobody has lost its turn by time, and kubelet asks for nobody who is gone."""
        self.answered: dict[tuple[str, int], object] = {}
        self.wrong: list[str] = []
        self._asking: list[str] = []
        """uids of pods for whom a call is under way."""
        self.unread = 0
        """Writes of calls that had read nothing."""
        self._pod_events: list[tuple[str, Pod]] = []
        self._node_events: list[Node] = []
        self._listed: list[Pod] | None = None
        settings = PluginSettings(NODE, allocate_timeout_s=60.0)
        self.board = Board(settings)
        self.allocator = Allocator(
            settings, self.board, self.view, self.api, RecordedEvents(), _Setup(), None, lambda: 1  # type: ignore[arg-type]
        )  # fmt: skip

    async def begin(self) -> None:
        """Cards are known, the watches have had their first state, and the first heartbeat is answered."""
        await self.board.set_cards(tuple(CardFacts(uuid, index, "T4", 1 << 34) for index, uuid in enumerate((A, B))))
        self.view.pods_listed([])
        self.view.node_seen(self.api.node)
        await self.heartbeat()

    # --- the scheduler ----------------------------------------------------------------------------------------------

    def bind(self, name: str, shares: str) -> bool:
        """Token and Binding of a new pod, if that name and the token are free, or the token's owner has to yield."""
        if f"default/{name}" in self.api.pods or not self._token_free():
            return False
        self.put_node({NODE_LOCK: encode_token("default", name, self.now_s)})
        self.version += 1
        uid = f"uid-{name}-{self.version}"
        work = SHARES[shares]
        annotations = {BIND_PHASE: PHASE_ALLOCATING, TO_ALLOCATE_KEY: work, ALLOCATED_KEY: work}
        meta = ObjectMeta(name=name, namespace="default", uid=uid, annotations=annotations)
        containers = tuple(Container(name=f"c{number}") for number in range(work.count(";")))
        self.put_pod(Pod(meta, PodSpec(node_name=NODE, containers=containers), PodStatus(phase="Pending")), "ADDED")
        self.kubelet.append(uid)
        return True

    def _token_free(self) -> bool:
        token = token_of(self.api.node)
        if token is None:
            return True
        owner = self.api.pods.get(token.key)
        verdict = judge(token, owner, NODE, self.now_s, EXPIRY_S)
        if verdict.action is TokenAction.FREE and "was not served within" in verdict.why:
            self.lawful = False
        return verdict.action is TokenAction.FREE

    # --- kubelet, controllers, people --------------------------------------------------------------------------------

    def end(self, name: str, phase: str) -> None:
        """Kubelet writes the pod's phase: it runs only once it was served, it fails at any time but amid a call."""
        pod = self.api.pods.get(f"default/{name}")
        if pod is None or pod.finished or (phase == "Running" and pod.metadata.uid in self.kubelet):
            return
        if pod.metadata.uid in self._asking:
            return
        if pod.metadata.uid in self.kubelet:
            self.kubelet.remove(pod.metadata.uid)
        self.put_pod(msgspec.structs.replace(pod, status=PodStatus(phase=phase)))

    def delete(self, name: str, *, kubelet_knows: bool = True) -> None:
        """The pod is gone from the API."""
        pod = self.api.pods.pop(f"default/{name}", None)
        if pod is None:
            return
        self.version += 1
        self._pod_events.append(("DELETED", pod))
        if pod.metadata.uid in self.kubelet:
            if kubelet_knows and pod.metadata.uid not in self._asking:
                self.kubelet.remove(pod.metadata.uid)
            else:
                self.lawful = False

    def succeed(self, phase: str, name: str, shares: str) -> None:
        """The token's owner ends in `phase`, or is deleted where that is empty, and `name` gets the token at once."""
        token = token_of(self.api.node)
        if token is not None and phase:
            self.end(token.pod, phase)
        elif token is not None:
            self.delete(token.pod)
        self.bind(name, shares)

    def touch(self, name: str) -> None:
        """Somebody writes something else to the pod."""
        pod = self.api.pods.get(f"default/{name}")
        if pod is not None:
            self.put_pod(msgspec.structs.replace(pod))

    async def ask(self, at: int = 0) -> None:
        """Kubelet asks for the next container of one of its pods; refused, it fails that pod."""
        if at >= len(self.kubelet):
            return
        uid = self.kubelet[at]
        pod = next((each for each in self.api.pods.values() if each.metadata.uid == uid), None)
        text = pod.annotations[TO_ALLOCATE_KEY] if pod is not None else SHARES["one"]
        count = next((part.count(":") for part in text.split(";") if part), 1)
        await self.call(uid, [count])

    async def call(self, uid: str, counts: Sequence[int]) -> None:
        """A call that kubelet makes for the pod `uid`."""
        _asked.set(_Asked(counts))
        lawful = self.lawful
        ids = [[f"{A}-{number}" for number in range(count)] for count in counts]
        self._asking.append(uid)
        try:
            answers: list[Any] = await self.allocator.allocate(ids)
        except AllocateError:
            self._refused(uid)
            return
        finally:
            self._asking.remove(uid)
        for served, index, _ in answers:
            if (served, index) in self.answered:
                self.wrong.append(f"{served} container {index} was given twice")
            self.answered[served, index] = uid
            if lawful and self.lawful and served != uid:
                self.wrong.append(f"a call for {uid} was given what is {served}'s")
        live = next((each for each in self.api.pods.values() if each.metadata.uid == uid), None)
        if uid in self.kubelet and (live is None or not live.annotations[TO_ALLOCATE_KEY].strip(";")):
            self.kubelet.remove(uid)

    def _refused(self, uid: str) -> None:
        if uid in self.kubelet:
            self.kubelet.remove(uid)
        for pod in list(self.api.pods.values()):
            if pod.metadata.uid == uid:
                self.put_pod(msgspec.structs.replace(pod, status=PodStatus(phase="Failed")))

    # --- what the plugin hears ---------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """The plugin's own proof of life, answered with the node."""
        await self.api.patch_node_annotations(NODE, {"hami.io/node-handshake": f"Reported {self.now_s}"})

    def hear(self, pods: int, nodes: int) -> None:
        """That many events of each watch arrive."""
        for event, pod in self._pod_events[:pods]:
            if event == "DELETED":
                self.view.pod_gone(pod.key, pod.metadata.uid)
            else:
                self.view.pod_seen(pod)
        for node in self._node_events[:nodes]:
            self.view.node_seen(node)
        del self._pod_events[:pods], self._node_events[:nodes]

    def hear_all(self) -> None:
        self.hear(len(self._pod_events), len(self._node_events))

    def list_begins(self) -> None:
        """A new list of pods is made on the server; events before it will not come any more."""
        self._listed = list(self.api.pods.values())
        self._pod_events.clear()

    def list_arrives(self) -> None:
        if self._listed is not None:
            self.view.pods_listed(self._listed)
            self._listed = None

    # --- state -------------------------------------------------------------------------------------------------------

    def put_node(self, annotations: Mapping[str, str | None]) -> None:
        """Somebody else writes the node."""
        merged = {**self.api.node.annotations, **annotations}
        kept = {key: text for key, text in merged.items() if text is not None}
        version = str(int(self.api.node.metadata.resource_version) + 1)
        meta = msgspec.structs.replace(self.api.node.metadata, annotations=kept, resource_version=version)
        self.api.node = msgspec.structs.replace(self.api.node, metadata=meta)
        self.node_changed()

    def put_pod(self, pod: Pod, event: str = "MODIFIED") -> None:
        self.version += 1
        meta = msgspec.structs.replace(pod.metadata, resource_version=str(self.version))
        self.api.pods[pod.key] = fresh = msgspec.structs.replace(pod, metadata=meta)
        self._pod_events.append((event, fresh))

    def node_changed(self) -> None:
        self._node_events.append(self.api.node)

    def about_to_write(self, annotations: Mapping[str, str | None]) -> None:
        """The first write of a call that has read nothing has to be what the rule says, asked at this moment."""
        asked = _asked.get()
        if TO_ALLOCATE_KEY in annotations and not asked.reads:
            pods = list(self.api.pods.values())
            calls = whose_calls(token_of(self.api.node), pods, NODE, asked.counts, VENDOR)
            asked.ruled = None if isinstance(calls, CallRefusal) else (calls[0].pod.metadata.uid, calls[-1].rest_text)

    def written(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """The write got through: then it was right."""
        asked = _asked.get()
        self.version = max(self.version, int(pod.metadata.resource_version))
        self._pod_events.append(("MODIFIED", pod))
        if TO_ALLOCATE_KEY in annotations and not asked.reads:
            self.unread += 1
            done = (pod.metadata.uid, annotations[TO_ALLOCATE_KEY])
            if done != asked.ruled:
                self.wrong.append(f"wrote {done} where the rule says {asked.ruled}")
