"""Taking and giving back a node's hand-off token (design 3, bind step 2; spec/scheduler 2.7).

Whether a token that is in the way may be taken, `placement.token_owners` says; this module waits and writes.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from hami.core import keys
from hami.core.device_type import NodeLock
from hami.core.errors import ApiError, ConflictError, HamiError, NotFoundError, TransportError
from hami.core.objects import Node, Pod
from hami.core.token import (
    BindEpoch,
    Token,
    encode_epoch,
    encode_token,
    parse_epoch,
    readable_token,
)
from hami.core.versions import is_older
from hami.placement.bind_error import BindError, contention, may_have_happened
from hami.placement.claims import ClaimState
from hami.placement.in_flight import BindCall
from hami.placement.inventory import NodeRecord
from hami.placement.ports import Clock, ClusterWriter
from hami.placement.token_owners import LOOK_AGAIN_S, TokenOwners
from hami.placement.vendor_locks import held, own_locks, stamp_of, texts_on
from hami.placement.world import World

_HANDOVER_S: Final = 0.25
_SERVED_HANDOVER_S: Final = 1.0
"""How long a free token is left to the device plugin, which removes it right after it marked the pod as served."""
_WRITES_AT_ONCE: Final = 32
"""Tokens on their way to a busy API server. More would only stand on their nodes while their Bindings wait in line."""
_RELEASE_TRIES: Final = 5
_RENEW_TRIES: Final = 5


class HeldToken(msgspec.Struct, frozen=True):
    """A token that we wrote. `strange_epoch`: another scheduler or term wrote the node since we listed its pods.
    `pod_version`: the version of the pod that its Binding asks for. `left_over`: an earlier Binding of the pod, under
    the token that was there before, may still come true."""

    text: str
    strange_epoch: bool
    pod_version: str
    left_over: bool = False


class TokenKeeper:
    """Takes tokens for bind calls. `epoch` names this scheduler and its term."""

    def __init__(self, world: World, writer: ClusterWriter, clock: Clock, expiry_s: float, pause_s: float) -> None:
        self._world = world
        self._writer = writer
        self._clock = clock
        self._pause_s = pause_s
        self._slots = asyncio.Semaphore(_WRITES_AT_ONCE)
        self._owners = TokenOwners(world, writer, clock, expiry_s, self.fence)
        self._unlisted: set[str] = set()
        """Nodes on which our epoch took the place of a strange one, though the list that this calls for is still owed:
        it may fail, and the epoch stays when the token is given back."""
        self.epoch = ""

    def begin_term(self, epoch: str) -> None:
        """We lead from now on, under this epoch."""
        self.epoch = epoch
        self._owners.forget()

    async def acquire(self, call: BindCall, deadline_s: float) -> HeldToken:
        """Waits for the node's token and takes it. Raises BindError when it stays with another pod."""
        handed_over = ""
        while True:
            record = self._world.inventory.get(call.node)
            if record is None:
                raise BindError(f"failed to get node {call.node}", gone=True)
            judged, epoch = record.lock, record.epoch
            token, written = readable_token(judged), _epoch_of(judged, epoch)
            busy = self._busy_locks(record, call)
            if not busy and (token is None or await self._owners.let_go(token, written, call)):
                if token is not None and token.key != call.key and handed_over != judged:
                    # Whoever served the owner takes its token off next: two writes at once are one in vain.
                    handed_over = judged
                    wait_s = min(deadline_s - self._clock.monotonic_s(), self._handover_s(token))
                    await self._world.signals.wait((f"node/{call.node}",), wait_s)
                    continue
                async with self._slots:
                    held = await self._take_unchanged(call, judged, epoch)
                if held is not None:
                    return held
                self._check_time(call, deadline_s)
                continue
            self._check_time(call, deadline_s, busy)
            wait_s = min(deadline_s - self._clock.monotonic_s(), LOOK_AGAIN_S)
            owner = f"pod/{token.key}" if token is not None else ""
            if not await self._world.signals.wait((f"node/{call.node}", owner), wait_s) and token is not None:
                await self._look_past_the_watch(token, call)

    async def _take_unchanged(self, call: BindCall, judged: str, epoch: str) -> HeldToken | None:
        """Takes the token if it is still the one that was judged; None if it has to be judged again."""
        record = self._world.inventory.get(call.node)
        if record is None or (record.lock, record.epoch) != (judged, epoch) or self._busy_locks(record, call):
            return None
        if parse_epoch(epoch).leader != self.epoch and not _untouched(record):
            self._unlisted.add(call.node)
        written = _epoch_of(judged, epoch) if readable_token(judged) else None
        return await self._take(call, record.resource_version, written)

    def _own_locks(self, call: BindCall) -> tuple[NodeLock, ...]:
        claim = self._world.ledger.get(call.uid)
        return own_locks(self._world.registry, claim.words) if claim is not None else ()

    def _busy_locks(self, record: NodeRecord, call: BindCall) -> str:
        """Locks of vendors of the pod's cards that somebody else holds, as text; empty if there are none."""
        if not record.vendor_locks:
            return ""
        token = readable_token(record.lock)
        own = stamp_of(record.lock) if token is not None and token.key == call.key else ""
        found = held(self._own_locks(call), record.vendor_locks, self._clock.unix_s())
        return ", ".join(f"{key}={text}" for key, text in found if text != own)

    def _handover_s(self, token: Token) -> float:
        claim = self._world.ledger.by_key(token.namespace, token.pod)
        served = claim is not None and claim.phase == keys.PHASE_SUCCESS
        return _SERVED_HANDOVER_S if served else _HANDOVER_S

    async def _look_past_the_watch(self, token: Token, call: BindCall) -> None:
        """Reads the node where the watch is late: it has not even shown our own Binding of the token's owner."""
        claim = self._world.ledger.by_key(token.namespace, token.pod)
        if claim is None or claim.state is not ClaimState.BOUND or claim.source:
            return
        try:
            self._world.on_node(await self._writer.get_node(call.node))
        except (ApiError, TransportError):
            return  # the watch will tell, or the next look

    def listed(self, node: str) -> None:
        """The node's pods were listed while we held its token."""
        self._unlisted.discard(node)

    async def release(self, node: str, text: str, *, served: bool = False) -> None:
        """Takes our token off the node; one that is not ours any more is left alone (reports B61, B62, B70).

        `served`: the pod is bound, and its vendors' own locks are their plugins' to take off.
        """
        for _ in range(_RELEASE_TRIES):
            try:
                current = await self._writer.get_node(node)
                if not self._wrote(current, text):
                    return
                version = current.metadata.resource_version
                changes: dict[str, str | None] = {keys.NODE_LOCK: None}
                if not served:
                    locks = texts_on(self._world.registry, current.annotations)
                    changes |= {key: None for key, lock in locks if lock == stamp_of(text)}
                self._world.on_node(await self._writer.patch_node_annotations(node, changes, version))
                return
            except NotFoundError:
                return
            except (ApiError, TransportError):
                # Whatever it was, the next try reads the node again; a token left behind is freed by its owner's state.
                continue

    async def renew(self, call: BindCall, held: HeldToken, pod_version: str) -> HeldToken:
        """Says beside our token that the Binding asks for another version of the pod. Call it before that Binding.

        Whoever frees the token has looked at the version that stands there: this write fails if they were first, and
        theirs fails if we were (docs/adr/0004). Raises BindError where the token is not ours any more, ApiError and
        TransportError where that cannot be told now.
        """
        epoch = self._epoch_text(held.text, call.uid, pod_version)
        for _ in range(_RENEW_TRIES):
            try:
                current = await self._writer.get_node(call.node)
            except NotFoundError as error:
                raise BindError(str(error), gone=True) from error
            self._world.on_node(current)
            if not self._wrote(current, held.text):
                raise BindError(f"node {call.node}: the token was taken over", keep_token=True)
            try:
                version = current.metadata.resource_version
                node = await self._writer.patch_node_annotations(call.node, {keys.BIND_EPOCH: epoch}, version)
            except ConflictError:
                continue
            self._world.on_node(node)
            return msgspec.structs.replace(held, pod_version=pod_version)
        raise ConflictError(409, "Conflict", f"node {call.node} is written by others all the time")

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

    async def _take(self, call: BindCall, version: str, before: BindEpoch | None) -> HeldToken | None:
        """Writes our token in the place of what stood there; None if somebody else wrote the node meanwhile.

        `before` is what stood beside a token: where it was this pod's own, its Binding may still come true, and whoever
        meets our token has to wait for that one too.
        """
        claim = self._world.ledger.get(call.uid)
        bound_version = told = claim.resource_version if claim is not None else ""
        left_over = before is not None and before.uid == call.uid and not is_older(before.pod_version, bound_version)
        if before is not None and left_over:
            told = before.pod_version
        text = await self._write(call, version, told)
        if not text:
            return None
        return HeldToken(text, call.node in self._unlisted, bound_version, left_over)

    async def _write(self, call: BindCall, version: str, pod_version: str) -> str:
        """Writes our token; empty if somebody else wrote the node meanwhile (nothing has happened then)."""
        text = encode_token(call.namespace, call.name, self._clock.unix_s())
        epoch = self._epoch_text(text, call.uid, pod_version)
        own = {lock.key: stamp_of(text) for lock in self._own_locks(call)}
        call.writing = True
        try:
            node = await self._writer.patch_node_annotations(
                call.node, {keys.NODE_LOCK: text, keys.BIND_EPOCH: epoch, **own}, version
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

    def _epoch_text(self, token_text: str, uid: str, pod_version: str) -> str:
        return encode_epoch(BindEpoch(self.epoch, token_text.partition(",")[0], uid, pod_version))

    async def _landed(self, node: str, text: str, why: HamiError) -> bool:
        try:
            current = await self._writer.get_node(node)
        except (ApiError, TransportError):
            raise BindError(f"node {node} could not be locked: {why}", token=text) from why
        self._world.on_node(current)
        return self._wrote(current, text)

    def _wrote(self, node: Node, text: str) -> bool:
        """Whether we wrote the node's token; another leader's token for the same pod may have the same text."""
        epoch = parse_epoch(node.annotations.get(keys.BIND_EPOCH, ""))
        return node.annotations.get(keys.NODE_LOCK) == text and epoch.leader == self.epoch

    async def _refresh(self, node: str) -> None:
        try:
            self._world.on_node(await self._writer.get_node(node))
        except NotFoundError:
            self._world.on_node_deleted(node)
        except (ApiError, TransportError) as error:
            raise BindError(str(error)) from error

    def _check_time(self, call: BindCall, deadline_s: float, busy: str = "") -> None:
        if self._clock.monotonic_s() >= deadline_s:
            record = self._world.inventory.get(call.node)
            if record is not None and record.lock and not busy:
                self._world.stalled.gave_up(call.node)
            raise contention(call.node, busy or (record.lock if record else ""))


def _epoch_of(token_text: str, text: str) -> BindEpoch | None:
    """What was written together with the token; None if that was something else or is not known."""
    epoch = parse_epoch(text)
    return epoch if epoch.belongs_to(token_text) else None


def _untouched(record: NodeRecord) -> bool:
    """Whether no leader has ever taken this node's token: then none has bound anything that our watch lacks."""
    return not (record.epoch or record.lock or record.anew)
