"""Kubelet's Allocate: whose call it is, what the container gets, and the writes that say so (design 3, spec/node 2.8).

One PATCH erases the segment, and says success when nothing is left. It comes before the answer, the token's release
beside it. Where the node's view names the pod beyond doubt, that PATCH under the pod's resourceVersion is the proof,
and the host's files are made meanwhile; otherwise the pod is read live, its files are made, and then it is patched
(docs/adr/0014). Killed at any point, the segment is either still there, so that kubelet's next call for the pod is
served, or erased, so that nobody gets it and the pod fails; a token left behind is freed by its owner's phase
(core.token).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from hami.core.container_edits import ContainerEdits
from hami.core.errors import AllocateError, ApiError, DecodeError, NvmlError, TransportError
from hami.core.keys import BIND_PHASE, PHASE_FAILED, WEBHOOK_LABEL
from hami.core.model import ContainerShares
from hami.deviceplugin import event_reasons
from hami.deviceplugin.board import Board
from hami.deviceplugin.container_setup import ContainerSetup
from hami.deviceplugin.mig_allocate import MigAllocator, Prepared
from hami.deviceplugin.node_view import Found, NodeView
from hami.deviceplugin.replays import Replays
from hami.deviceplugin.replicas import card_of
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.token_release import TokenReleases, release_token
from hami.deviceplugin.whose_pod import NobodysCall, find_pod, first_in_line
from hami.deviceplugin.work_list import WorkList
from hami.kube.writer import KubeWriter
from hami.placement.ports import EventSink
from hami.vendors.nvidia.device import Nvidia

_FAILURE_TIMEOUT_S: Final = 3.0
_RESERVED_FOR_THE_REST: Final = 0.2
"""Part of the deadline that waiting for the host leaves to the API server."""
_SHOWN_IDS: Final = 8
_SHOWN_CHARS: Final = 60
_AGAIN: Final = "Delete the pod so that it is scheduled again; a controller's pod is replaced by itself."

log = structlog.get_logger(__name__)

Answer = list[ContainerEdits]


@dataclass(slots=True)
class AllocateStats:
    """For metrics."""

    served: int = 0
    without_reads: int = 0
    """Of those, how many were served from the node's view."""
    refused: int = 0
    failed: int = 0
    replayed: int = 0
    cards_differ: int = 0


@dataclass(slots=True)
class _Attempt:
    """What is known about one call so far: who has to be told if it fails."""

    found: Found | None = None
    seen: Found | None = None
    """What the view says, not proved yet."""


class Allocator:
    """Serves Allocate calls one at a time, each within its own deadline."""

    def __init__(
        self,
        settings: PluginSettings,
        board: Board,
        view: NodeView,
        writer: KubeWriter,
        events: EventSink,
        setup: ContainerSetup,
        mig: MigAllocator | None,
        generation: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._board = board
        self._view = view
        self._writer = writer
        self._vendor = Nvidia(settings.nvidia)
        self._events = events
        self._setup = setup
        self._mig = mig
        self._replays = Replays(generation)
        self._work_list = WorkList(writer, settings.node_name)
        self._releases = TokenReleases(writer, settings.node_name)
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[Answer]] = set()
        self.stats = AllocateStats()

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Answer:
        """Edits for each container, given kubelet's device ids for each. Raises AllocateError with what to do.

        Goes on when kubelet hangs up in the middle, so that no write is left half done.
        """
        task = asyncio.create_task(self._in_turn(requests))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def drain(self) -> None:
        """Waits for calls whose kubelet has hung up, and for tokens on their way back."""
        if self._running:
            await asyncio.wait(self._running)
        await self._releases.drain()

    async def _in_turn(self, requests: Sequence[Sequence[str]]) -> Answer:
        limit_s = self._settings.allocate_timeout_s
        deadline_s = asyncio.get_running_loop().time() + limit_s
        attempt = _Attempt()
        if requests:
            await self._setup.ready(deadline_s - limit_s * _RESERVED_FOR_THE_REST)
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._turn.acquire()
        except TimeoutError as error:
            raise AllocateError(f"earlier calls took all of {limit_s:g} s; kubelet may try again") from error
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._serve(requests, attempt)
        except TimeoutError as error:
            raise await self._failure(attempt, f"not done within {limit_s:g} s: is the API server slow?") from error
        except (ApiError, TransportError) as error:
            raise await self._failure(attempt, f"the API server: {error}") from error
        except (OSError, ValueError) as error:
            raise await self._failure(attempt, f"files on the node: {error}") from error
        except NvmlError as error:
            raise await self._failure(attempt, f"the driver: {error}") from error
        except (AllocateError, DecodeError) as error:
            raise await self._failure(attempt, str(error)) from error
        finally:
            self._turn.release()

    async def _serve(self, requests: Sequence[Sequence[str]], attempt: _Attempt) -> Answer:
        self._check_ids(requests)
        if not requests:
            return []
        edits = await self._serve_from_view(requests, attempt)
        return await self._serve_live(requests, attempt) if edits is None else edits

    async def _serve_from_view(self, requests: Sequence[Sequence[str]], attempt: _Attempt) -> Answer | None:
        """None where the view does not know, or was wrong: then nothing was written."""
        found = self._view.find([len(ids) for ids in requests], self._vendor) if self._mig is None else None
        if found is None or any(self._problem_of_cards(call.shares) for call in found.calls):
            return None
        attempt.seen = found
        preparing = asyncio.ensure_future(self._prepare(found))
        try:
            right = await self._work_list.erase_if_seen_right(found)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                preparing.cancel()  # out of time: a disk that hangs is not waited for
            await asyncio.gather(preparing, return_exceptions=True)
            raise
        if not right:
            # Files in the making are waited for: the next decision may be for the same container.
            await asyncio.gather(preparing, return_exceptions=True)
            attempt.seen = None
            return None
        attempt.found = found
        edits = (await preparing).edits
        self.stats.without_reads += 1
        self._served(requests, found, edits, read=False)
        return edits

    async def _serve_live(self, requests: Sequence[Sequence[str]], attempt: _Attempt) -> Answer:
        counts = [len(ids) for ids in requests]
        found = await find_pod(self._writer, self._settings.node_name, counts, self._vendor)
        if isinstance(found, NobodysCall):
            return await self._replay_or_refuse(requests, found)
        found = await first_in_line(self._writer, found, self._view.pods, counts, self._vendor)
        attempt.found = found
        for call in found.calls:
            if problem := self._problem_of_cards(call.shares):
                raise AllocateError(problem)
        prepared = await self._prepare(found)
        await self._work_list.erase(found, prepared.annotations)
        self._served(requests, found, prepared.edits, read=True)
        return prepared.edits

    def _served(self, requests: Sequence[Sequence[str]], found: Found, edits: Answer, *, read: bool) -> None:
        """The pod has its devices, and the API server says so: what follows does not hold up the answer."""
        if found.calls[-1].complete:
            self._releases.begin(found.pod, found.node)
        self._replays.remember(requests, found, edits)
        self._note_other_cards(requests, found)
        self.stats.served += 1
        log.info(
            "allocated",
            pod=found.pod.key,
            uid=found.pod.metadata.uid,
            container=[call.container_index for call in found.calls],
            cards=[share.device_id for call in found.calls for share in call.shares],
            read=read,
        )

    async def _prepare(self, found: Found) -> Prepared:
        """Edits for each container, on a node in mode mig with the instances' ids for the pod."""
        if self._mig is not None:
            return await self._mig.prepare(found)
        state = self._board.state
        return Prepared([await self._setup.prepare(call, state) for call in found.calls], {})

    async def _replay_or_refuse(self, requests: Sequence[Sequence[str]], nobody: NobodysCall) -> Answer:
        record = self._replays.find(requests, nobody.pods)
        if record is not None:
            self.stats.replayed += 1
            log.info("allocated again", pod=record.pod_key, uid=record.pod_uid)
            return record.edits
        self.stats.refused += 1
        if nobody.owner is not None:
            self._events.pod_event(
                nobody.owner, warning=True, reason=event_reasons.CALL_REFUSED, message=nobody.message
            )
        else:
            node = self._settings.node_name
            self._events.node_event(node, warning=True, reason=event_reasons.CALL_REFUSED, message=nobody.message)
        raise AllocateError(
            f"{nobody.message}. If the pod was not placed by hami's scheduler, look at schedulerName, the label"
            f" {WEBHOOK_LABEL} and the webhook's certificate"
        )

    async def _failure(self, attempt: _Attempt, problem: str) -> AllocateError:
        """The error for kubelet. A pod that was positively identified is marked failed and its token freed."""
        if attempt.found is None and attempt.seen is not None:
            attempt.found = await self._proved(attempt.seen)
        if attempt.found is None:
            return AllocateError(problem)
        self.stats.failed += 1
        pod = attempt.found.pod
        message = f"node {self._settings.node_name} cannot give pod {pod.key} its devices: {problem}. {_AGAIN}"
        self._events.pod_event(pod, warning=True, reason=event_reasons.ALLOCATE_FAILED, message=message)
        log.error("allocate failed", pod=pod.key, uid=pod.metadata.uid, why=problem)
        try:
            async with asyncio.timeout(_FAILURE_TIMEOUT_S):
                meta = pod.metadata
                await self._writer.patch_pod_annotations(
                    meta.namespace, meta.name, {BIND_PHASE: PHASE_FAILED}, uid=meta.uid
                )
                await release_token(self._writer, self._settings.node_name, pod)
        except (ApiError, TransportError, TimeoutError) as error:
            # kubelet fails the pod now; a failed owner frees the token too.
            log.warning("phase failed not written", pod=pod.key, why=str(error))
        return AllocateError(message)

    async def _proved(self, seen: Found) -> Found | None:
        """What the view said of a call that ended amid its write, if the API server says the same; None otherwise."""
        name, count = self._settings.node_name, len(seen.calls[0].shares)
        try:
            async with asyncio.timeout(_FAILURE_TIMEOUT_S):
                if await self._work_list.shows_erasure(seen):
                    return seen
                live = await find_pod(self._writer, name, [count], self._vendor)
        except (ApiError, TransportError, TimeoutError):
            return None
        same = isinstance(live, Found) and live.pod.metadata.uid == seen.pod.metadata.uid
        return seen if same else None

    def _check_ids(self, requests: Sequence[Sequence[str]]) -> None:
        state = self._board.state
        unknown = [each for ids in requests for each in ids if state.card(card_of(each)) is None]
        if unknown:
            raise AllocateError(f"kubelet asks for devices that this plugin does not offer: {_quoted(unknown)}")

    def _problem_of_cards(self, shares: ContainerShares) -> str:
        """Why the chosen cards cannot be given; empty if they can."""
        state = self._board.state
        for share in shares:
            if state.card(share.device_id) is None:
                return f"card {share.device_id}, which the scheduler chose, is not on this node"
            if not state.healthy(share.device_id):
                why = state.unhealthy[share.device_id]
                return f"card {share.device_id}, which the scheduler chose, is out of service ({why})"
        return ""

    def _note_other_cards(self, requests: Sequence[Sequence[str]], found: Found) -> None:
        """Counts, and where kubelet was told which cards to book also shows, that it booked others (issue 1741)."""
        for ids, call in zip(requests, found.calls, strict=True):
            booked = sorted(card_of(each) for each in ids)
            chosen = sorted(share.device_id for share in call.shares)
            if booked == chosen:
                continue
            self.stats.cards_differ += 1
            if self._settings.preferred_allocation:
                message = f"kubelet booked {', '.join(booked)}; the container gets {', '.join(chosen)}"
                self._events.pod_event(found.pod, warning=False, reason=event_reasons.CARDS_DIFFER, message=message)


def _quoted(ids: Sequence[str]) -> str:
    """Some ids for a message: kubelet shows it to people."""
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(repr(each[:_SHOWN_CHARS]) for each in ids[:_SHOWN_IDS]) + more
