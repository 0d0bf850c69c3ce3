"""Taking and giving back a node's hand-off token (design 3, bind step 2; spec/scheduler 2.7).

`core.token` judges; this module reads, waits and writes what the verdict says.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from hami.core import keys
from hami.core.errors import ApiError, ConflictError, DecodeError, HamiError, NotFoundError, TransportError
from hami.core.objects import Node, Pod
from hami.core.token import Token, TokenAction, encode_token, judge, parse_token
from hami.placement.bind_error import BindError, contention, may_have_happened
from hami.placement.in_flight import BindCall
from hami.placement.ports import Clock, ClusterWriter
from hami.placement.world import World

_LOOK_AGAIN_S: Final = 0.5
"""Longest wait without a look at the owner, should an event be lost or the token expire meanwhile."""
_HANDOVER_S: Final = 0.25
"""How long a free token is left to the device plugin, which removes it right after it marked the pod as served."""
_RELEASE_TRIES: Final = 5
_MOST_MET: Final = 4096


class HeldToken(msgspec.Struct, frozen=True):
    """A token that we wrote. `strange_epoch`: another scheduler or term wrote the node since we listed its pods."""

    text: str
    strange_epoch: bool


class TokenKeeper:
    """Takes tokens for bind calls. `epoch` names this scheduler and its term."""

    def __init__(self, world: World, writer: ClusterWriter, clock: Clock, expiry_s: float, pause_s: float) -> None:
        self._world = world
        self._writer = writer
        self._clock = clock
        self._expiry_s = expiry_s
        self._pause_s = pause_s
        self._owners: dict[str, tuple[float, Pod | None]] = {}
        self._unlisted: set[str] = set()
        """Nodes on which our epoch took the place of a strange one, though the list that this calls for is still owed:
        it may fail, and the epoch stays when the token is given back."""
        self._met: dict[str, str] = {}
        """Owner uid -> resourceVersion when its token was first in the way."""
        self.epoch = ""

    def begin_term(self, epoch: str) -> None:
        """What was seen of owners in an earlier term says nothing about Bindings prepared since."""
        self.epoch = epoch
        self._met.clear()
        self._owners.clear()

    async def acquire(self, call: BindCall, deadline_s: float) -> HeldToken:
        """Waits for the node's token and takes it. Raises BindError when it stays with another pod."""
        handed_over = ""
        while True:
            record = self._world.inventory.get(call.node)
            if record is None:
                raise BindError(f"failed to get node {call.node}", gone=True)
            judged, epoch = record.lock, record.epoch
            token = _parse(judged)
            if token is None or await self._may_take(token, call):
                if token is not None and token.key != call.key and handed_over != judged:
                    # Whoever served the owner takes its token off next: two writes at once are one in vain.
                    handed_over = judged
                    wait_s = min(deadline_s - self._clock.monotonic_s(), _HANDOVER_S)
                    await self._world.signals.wait((f"node/{call.node}",), wait_s)
                    continue
                record = self._world.inventory.get(call.node)
                if record is not None and (record.lock, record.epoch) == (judged, epoch):
                    if epoch != self.epoch:
                        self._unlisted.add(call.node)
                    text = await self._write(call, record.resource_version)
                    if text:
                        return HeldToken(text, strange_epoch=call.node in self._unlisted)
                self._check_time(call, deadline_s)
                continue
            self._check_time(call, deadline_s)
            wait_s = min(deadline_s - self._clock.monotonic_s(), _LOOK_AGAIN_S)
            await self._world.signals.wait((f"node/{call.node}", f"pod/{token.key}"), wait_s)

    def listed(self, node: str) -> None:
        """The node's pods were listed while we held its token."""
        self._unlisted.discard(node)

    async def release(self, node: str, text: str) -> None:
        """Takes our token off the node; one that is not ours any more is left alone (reports B61, B62, B70)."""
        for _ in range(_RELEASE_TRIES):
            try:
                current = await self._writer.get_node(node)
                if not self._wrote(current, text):
                    return
                version = current.metadata.resource_version
                self._world.on_node(await self._writer.patch_node_annotations(node, {keys.NODE_LOCK: None}, version))
                return
            except NotFoundError:
                return
            except (ApiError, TransportError):
                # Whatever it was, the next try reads the node again; a token left behind is freed by its owner's state.
                continue

    async def is_ours(self, node: str, text: str) -> bool:
        """Whether the node still carries the token that we wrote."""
        try:
            current = await self._writer.get_node(node)
        except NotFoundError:
            return False
        self._world.on_node(current)
        return self._wrote(current, text)

    async def fence(self, pod: Pod) -> bool:
        """Moves the pod's resourceVersion on, so that a late Binding of it fails; False where we may not."""
        stamp = f"{self.epoch},{int(self._clock.unix_s())}"
        try:
            await self._writer.patch_pod_annotations(
                pod.metadata.namespace,
                pod.metadata.name,
                {keys.BIND_EPOCH: stamp},
                uid=pod.metadata.uid,
                resource_version=pod.metadata.resource_version,
            )
        except NotFoundError:
            return True
        except (ApiError, TransportError):
            return False
        return True

    async def _may_take(self, token: Token, call: BindCall) -> bool:
        if token.namespace == call.namespace and token.pod == call.name:
            return True
        owner = self._world.owner_on_record(token.namespace, token.pod)
        if owner is None and token.pod:
            owner = await self._read_owner(token, call.node)
        verdict = judge(token, owner, call.node, self._clock.unix_s(), self._expiry_s)
        if verdict.action is TokenAction.FENCE:
            assert owner is not None
            self._owners.pop(token.key, None)
            return await self.fence(owner) or self._left_behind(owner, call)
        if verdict.action is TokenAction.KEEP and owner is not None and not owner.spec.node_name:
            return self._left_behind(owner, call)
        return verdict.action is TokenAction.FREE

    def _left_behind(self, owner: Pod, call: BindCall) -> bool:
        """Whether the token of a live unbound owner is a left-over that no Binding can follow any more.

        A scheduler that was killed, or a Binding that nobody answered, leaves such tokens. If the owner was written
        since we first met it, every Binding prepared before fails on its resourceVersion: a fence by fact. Pods whose
        calls wait for each other's tokens would never be written: then the owner's call is given up once, and
        kube-scheduler writes the pod's condition (docs/adr/0004).
        """
        uid = owner.metadata.uid
        if owner.annotations.get(keys.VGPU_NODE) == call.node:
            # An allocation on this node that was written before its Binding: upstream's scheduler is at work.
            return False
        running = self._world.in_flight.get(uid)
        if running is not None and running.node == call.node:
            self._met.pop(uid, None)
            return False
        if uid not in self._met:
            if len(self._met) >= _MOST_MET:
                self._met.pop(next(iter(self._met)))
            self._met[uid] = owner.metadata.resource_version
            if running is not None:
                why = f"its hand-off token on node {call.node} was left behind; it has to be scheduled again"
                self._world.in_flight.call_off(uid, why)
        return self._met[uid] != owner.metadata.resource_version

    async def _read_owner(self, token: Token, node: str) -> Pod | None:
        now_s = self._clock.monotonic_s()
        known = self._owners.get(token.key)
        if known is not None and now_s - known[0] < _LOOK_AGAIN_S:
            return known[1]
        owner: Pod | None
        try:
            owner = await self._writer.get_pod(token.namespace, token.pod)
        except NotFoundError:
            owner = None
        except (ApiError, TransportError) as error:
            raise BindError(f"cannot read pod {token.key}, which holds node {node}: {error}") from error
        self._owners = {key: value for key, value in self._owners.items() if now_s - value[0] < _LOOK_AGAIN_S}
        self._owners[token.key] = (now_s, owner)
        return owner

    async def _write(self, call: BindCall, version: str) -> str:
        """Writes our token; empty if somebody else wrote the node meanwhile (nothing has happened then)."""
        text = encode_token(call.namespace, call.name, self._clock.unix_s())
        call.writing = True
        try:
            node = await self._writer.patch_node_annotations(
                call.node, {keys.NODE_LOCK: text, keys.BIND_EPOCH: self.epoch}, version
            )
            self._world.on_node(node)
            return text
        except ConflictError:
            call.writing = False
            await self._refresh(call.node)
            return ""
        except NotFoundError as error:
            raise BindError(f"failed to get node {call.node}", gone=True) from error
        except (ApiError, TransportError) as error:
            if not may_have_happened(error):
                raise BindError(str(error)) from error
            await asyncio.sleep(self._pause_s)
            return text if await self._landed(call.node, text, error) else ""

    async def _landed(self, node: str, text: str, why: HamiError) -> bool:
        try:
            current = await self._writer.get_node(node)
        except (ApiError, TransportError):
            raise BindError(f"node {node} could not be locked: {why}", token=text) from why
        self._world.on_node(current)
        return self._wrote(current, text)

    def _wrote(self, node: Node, text: str) -> bool:
        """Whether we wrote the node's token; another leader's token for the same pod may have the same text."""
        return node.annotations.get(keys.NODE_LOCK) == text and node.annotations.get(keys.BIND_EPOCH) == self.epoch

    async def _refresh(self, node: str) -> None:
        try:
            self._world.on_node(await self._writer.get_node(node))
        except NotFoundError:
            self._world.on_node_deleted(node)
        except (ApiError, TransportError) as error:
            raise BindError(str(error)) from error

    def _check_time(self, call: BindCall, deadline_s: float) -> None:
        if self._clock.monotonic_s() >= deadline_s:
            record = self._world.inventory.get(call.node)
            raise contention(call.node, record.lock if record else "")


def _parse(text: str) -> Token | None:
    """The token that stands in the way; None for none and for one that cannot be read, which counts as expired."""
    if not text:
        return None
    try:
        return parse_token(text)
    except DecodeError:
        return None
