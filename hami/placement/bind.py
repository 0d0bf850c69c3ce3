"""`/bind`: token, re-check, one Binding, events (design 3 "Bind, exactly").

Before the first write a call can be cancelled without a trace; after it the call runs to its end, whatever the client
does, and the ledger learns the outcome.
"""

from __future__ import annotations

import asyncio

import msgspec

from hami.core import keys, narrative
from hami.core.device_type import Refusal
from hami.core.errors import ApiError, NotFoundError, TransportError
from hami.core.fit import Fit, evaluate
from hami.core.model import NO_USE, Device, PodRequest, Use
from hami.core.objects import ObjectMeta, Pod
from hami.obs import metrics
from hami.placement.announce import decision_annotations
from hami.placement.bind_error import BindError
from hami.placement.binding import BindingWriter
from hami.placement.claims import Claim, ClaimState
from hami.placement.in_flight import BindCall
from hami.placement.node_queue import NodeQueues
from hami.placement.node_token import HeldToken, TokenKeeper
from hami.placement.ports import Clock, ClusterWriter, EventSink
from hami.placement.vendor_locks import token_is_awaited
from hami.placement.world import World


class BindSettings(msgspec.Struct, frozen=True):
    """`identity` names this scheduler; `wait_s` bounds the wait for a node (`--node-lock-retry-timeout`);
    `token_expiry_s` is when a token's owner loses its turn; `retry_pause_s` spaces tries after unanswered writes."""

    identity: str
    wait_s: float = 3.0
    token_expiry_s: float = 300.0
    retry_pause_s: float = 0.1


class Binder:
    """Binds pods, one at a time per node."""

    def __init__(
        self, world: World, writer: ClusterWriter, events: EventSink, clock: Clock, settings: BindSettings
    ) -> None:
        self._world = world
        self._writer = writer
        self._events = events
        self._clock = clock
        self._settings = settings
        self._shapes = world.shapes
        self._queues = NodeQueues(world.crowd, clock)
        self._tokens = TokenKeeper(world, writer, clock, settings.token_expiry_s, settings.retry_pause_s)
        self._bindings = BindingWriter(world, writer, self._tokens, settings.retry_pause_s)
        self.new_term()

    def new_term(self) -> None:
        """This scheduler leads from now on: nodes that another term wrote are listed before they are trusted."""
        self._tokens.begin_term(f"{self._settings.identity}/{self._clock.unix_s():.3f}")

    def leadership_lost(self) -> None:
        """Calls off everything that has not begun to write, and ends reservations: the leader filters those pods anew,
        and where they are bound is learnt from the watch."""
        self._world.in_flight.call_off_all("this scheduler does not lead any more")
        for claim in list(self._world.ledger.claims()):
            if claim.state is ClaimState.RESERVED:
                self._world.ledger.end_reservation(claim.uid)

    async def drain(self) -> None:
        """Returns when no call is under way."""
        while tasks := self._world.in_flight.tasks:
            await asyncio.wait(tasks)

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Binds the pod to the node; returns the text of what went wrong, empty if it is bound."""
        if stranger := self._stranger(f"{namespace}/{name}", uid):
            return stranger
        running = self._world.in_flight.get(uid)
        if running is not None and running.writing and running.task is not None:
            if running.node != node:
                return f"pod {namespace}/{name} is being bound to node {running.node}"
            return await asyncio.shield(running.task)
        self._world.in_flight.call_off(uid, "bind was called again")
        call = BindCall(namespace, name, uid, node)
        task = call.task = asyncio.create_task(self._run(call))
        self._world.in_flight.add(call)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if call.called_off and task.cancelled():
                return f"bind to node {node} was called off: {call.called_off}"
            if not call.writing:
                task.cancel()
            raise

    def _stranger(self, key: str, uid: str) -> str:
        """Why this call is not about the pod that has the uid; empty if it may be.

        Whoever reaches the extender may send any uid, and a pod that is not found ends what its uid holds (HAMi #3030).
        """
        known = self._world.in_flight.get(uid) or self._world.ledger.get(uid)
        if known is None or not known.namespace or known.key == key:
            return ""
        return f"uid {uid} is pod {known.key}, not {key}"

    async def _run(self, call: BindCall) -> str:
        try:
            return await self._outcome(call)
        finally:
            self._world.in_flight.remove(call)
            self._world.ledger.unpin(call.uid)

    async def _outcome(self, call: BindCall) -> str:
        try:
            await self._bind(call)
        except BindError as error:
            if error.token:
                await self._tokens.release(call.node, error.token)
            claim = self._world.ledger.get(call.uid)
            if error.gone and (claim is None or claim.state is not ClaimState.BOUND):
                # Where somebody else has bound the pod meanwhile, only API objects end that.
                self._world.ledger.forget(call.uid)
            self._tell(call, warning=True, reason=keys.EVENT_BINDING_FAILED, message=str(error))
            return str(error)
        self._tell(
            call,
            warning=False,
            reason=keys.EVENT_BINDING_SUCCEED,
            message=narrative.binding_succeed(call.node, call.namespace, call.name),
        )
        return ""

    async def _bind(self, call: BindCall) -> None:
        if self._world.is_plain(call.uid):
            await self._bind_plainly(call)
            return
        claim = self._world.ledger.get(call.uid)
        if claim is not None and claim.state is ClaimState.BOUND:
            if claim.node != call.node:
                raise BindError(f"pod {call.key} is bound to node {claim.node} already")
            return
        if not self._still_fits(call):
            pod = await self._read_pod(call)
            if pod.spec.node_name == call.node:
                return
            request = self._request(pod)
            if not request.asks_for_devices:
                await self._bind_plainly(call)
                return
            self._fit_again(call, pod, request)
        await self._bind_shares(call)

    async def _bind_plainly(self, call: BindCall) -> None:
        call.writing = True
        await self._bindings.post(call, "", {}, None)

    async def _bind_shares(self, call: BindCall) -> None:
        began_s = self._clock.monotonic_s()
        deadline_s = began_s + self._settings.wait_s
        async with self._queues.turn(call.node, self._settings.wait_s):
            held = await self._tokens.acquire(call, deadline_s)
            metrics.token_wait_seconds.observe(self._clock.monotonic_s() - began_s)
            await self._bind_holding(call, held)

    async def _bind_holding(self, call: BindCall, held: HeldToken) -> None:
        try:
            claim = await self._secure(call, held)
            await self._bindings.post(call, claim.resource_version, self._annotations(claim), held)
        except BindError as error:
            if not error.keep_token and (error.gone or not held.left_over):
                await self._tokens.release(call.node, held.text)
            raise
        self._world.ledger.mark_bound(call.uid)
        if not token_is_awaited(self._world.registry, claim.words):
            # The token was for the re-check only: no plugin of this pod's vendors would ever take it off.
            await self._tokens.release(call.node, held.text, served=True)

    async def _secure(self, call: BindCall, held: HeldToken) -> Claim:
        """The re-check: from here on nothing but the Binding's outcome ends the claim."""
        claim = self._world.ledger.get(call.uid)
        if claim is not None:
            claim.pinned = True
        if held.strange_epoch:
            known = self._world.ledger.uids_on(call.node)
            try:
                pods = await self._writer.list_pods_on_node(call.node)
            except (ApiError, TransportError) as error:
                raise BindError(str(error)) from error
            self._world.node_pods_listed(call.node, pods, known)
            self._tokens.listed(call.node)
        if not self._still_fits(call):
            pod = await self._read_pod(call)
            if pod.spec.node_name:
                raise BindError(f"pod {call.key} is bound to node {pod.spec.node_name} already", keep_token=True)
            self._fit_again(call, pod, self._request(pod))
        claim = self._world.ledger.get(call.uid)
        assert claim is not None
        claim.pinned = True
        return claim

    def _still_fits(self, call: BindCall) -> bool:
        """Whether the pod's reservation is on this node and every card of it still holds it.

        A card that is not what it was (type, mode, amounts, cordoned since) is a matter for the evaluator again.
        """
        self._world.settle_now()
        claim = self._world.ledger.get(call.uid)
        view = self._world.view(call.node)
        if claim is None or claim.node != call.node or claim.fit is None or view is None or view.problem:
            return False
        if self._world.quotas.overdrawn(claim.namespace):
            return False
        cards = {device.id: (device, use) for device, use in zip(view.state.devices, view.state.uses, strict=True)}
        decided = {device.id: device for device in claim.devices}
        for device_id, own in claim.charges:
            device, use = cards.get(device_id, (None, NO_USE))
            if device is None or device != decided.get(device_id) or device_id in view.state.cordoned:
                return False
            room = use.slots <= device.slots and use.memory_mib <= device.memory_mib
            if not (device.healthy and room and use.core_percent <= device.core_percent):
                return False
            if not self._is_kept_apart(claim, device, own, use):
                return False
        return self._slices_are_free(claim)

    def _is_kept_apart(self, claim: Claim, device: Device, own: Use, use: Use) -> bool:
        """Whether a card of which one pod has all cores is that pod's alone (spec/scheduler 4.6, checks 11 and 12)."""
        whole = device.core_percent
        if own.core_percent >= whole > 0:
            return use.slots <= own.slots
        if own.core_percent or use.core_percent < whole:
            return True
        ledger = self._world.ledger
        others = (ledger.get(uid) for uid in ledger.uids_on(claim.node) if uid != claim.uid)
        return not any(
            card == device.id and held.core_percent >= whole > 0
            for other in others
            if other is not None
            for card, held in other.charges
        )

    def _slices_are_free(self, claim: Claim) -> bool:
        """Whether no other pod holds any of the claim's MIG slices: room on the card alone does not say so."""
        others = self._world.ledger.slices(claim.node, claim.uid) if claim.slices else {}
        return not any(place.overlaps(held) for card, place in claim.slices for held in others.get(card, ()))

    def _fit_again(self, call: BindCall, pod: Pod, request: PodRequest) -> None:
        """Fits the pod on this node as it is now; the reservation was lost or does not hold any more."""
        self._world.settle_now()
        view = self._world.view(call.node)
        state = self._world.state_without(call.node, call.uid)
        if view is None or state is None:
            raise BindError(narrative.binding_failed_node(call.node), gone=True)
        if view.problem:
            raise BindError(f"node {call.node}: {view.problem}")
        quotas, own = self._world.quotas, self._world.ledger.get(call.uid)
        found = evaluate(state, request, self._world.registry, quotas.room(call.namespace, own))
        if not isinstance(found, Fit):
            excess = quotas.excess(call.namespace, request, state, own)
            numbers = f"; {excess.text}" if excess is not None else ""
            raise BindError(f"node {call.node} does not fit any more: {found.text}{numbers}")
        clock = self._clock
        self._world.ledger.reserve(pod, call.node, found, clock.monotonic_s(), clock.unix_s(), view.state.devices)

    async def _read_pod(self, call: BindCall) -> Pod:
        try:
            pod = await self._writer.get_pod(call.namespace, call.name)
        except NotFoundError as error:
            raise BindError(str(error), gone=True) from error
        except (ApiError, TransportError) as error:
            raise BindError(str(error)) from error
        if pod.metadata.uid != call.uid:
            raise BindError(f"pod {call.key} was replaced: its uid is {pod.metadata.uid}", gone=True)
        if pod.finished:
            raise BindError(f"pod {call.key} has ended ({pod.status.phase})", gone=True)
        if pod.spec.node_name not in ("", call.node):
            raise BindError(f"pod {call.key} is bound to node {pod.spec.node_name} already")
        if pod.metadata.deletion_timestamp is not None:
            raise BindError(f"pod {call.key} is being deleted", gone=True)
        return pod

    def _request(self, pod: Pod) -> PodRequest:
        request = self._shapes.of(pod)
        if isinstance(request, Refusal):
            raise BindError(request.message)
        return request

    def _annotations(self, claim: Claim) -> dict[str, str]:
        now_unix_s = self._clock.unix_s()
        return {
            **decision_annotations(claim, self._world.registry, now_unix_s),
            keys.BIND_PHASE: keys.PHASE_ALLOCATING,
            keys.BIND_TIME: str(int(now_unix_s)),
        }

    def _tell(self, call: BindCall, *, warning: bool, reason: str, message: str) -> None:
        meta = ObjectMeta(namespace=call.namespace, name=call.name, uid=call.uid)
        self._events.pod_event(Pod(metadata=meta), warning=warning, reason=reason, message=message)
