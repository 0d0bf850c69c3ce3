"""Who holds which card: allocations of pods from API objects, and reservations of our own filter (design 3, 4).

Memory is a cache of API objects: start, leader change and relist use `apply` and `not_listed`, nothing else. Keys are
(node, card id), so ids need to be unique only within a node. What cannot be read blocks its node, never vanishes.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from hami.core import allocation as allocations
from hami.core import keys
from hami.core.device_type import Registry
from hami.core.fit import Fit
from hami.core.model import Device, MigPlacement, Use
from hami.core.objects import Pod
from hami.core.versions import is_older
from hami.placement.claims import (
    BACKSTOP_S,
    PLAIN,
    SHRUNK,
    Claim,
    ClaimState,
    Holdings,
    allocated_texts,
    annotated_at,
    flat_charges,
    flat_slices,
    newer_unscheduled,
    read_holdings,
    unscheduled_condition,
    words_of,
)
from hami.placement.namespace_use import NamespaceUse
from hami.placement.node_book import NodeBook

_NOTHING: Final[Mapping[str, Use]] = {}


class Ledger:
    """Claims by pod uid, and their sums per (node, card). `dirty` collects nodes whose sums changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._claims: dict[str, Claim] = {}
        self._uid_of: dict[str, str] = {}
        self._books: dict[str, NodeBook] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._ended: dict[str, float] = {}
        """Uid -> `vgpu-time` of annotated reservations that a fact has ended though the annotation stays."""
        self.namespaces = NamespaceUse()
        self.dirty: set[str] = set()
        self.expired_total = 0

    # Reading

    def get(self, uid: str) -> Claim | None:
        return self._claims.get(uid)

    def by_key(self, namespace: str, name: str) -> Claim | None:
        uid = self._uid_of.get(f"{namespace}/{name}")
        return self._claims.get(uid) if uid else None

    def uses(self, node: str) -> Mapping[str, Use]:
        """Card id -> what is taken, cards without use left out."""
        book = self._books.get(node)
        return book.uses if book else _NOTHING

    def problem(self, node: str) -> str:
        """Why the node takes no new shares; empty if every allocation on it can be read."""
        book = self._books.get(node)
        return book.problems[min(book.problems)] if book and book.problems else ""

    def slices(self, node: str, without_uid: str = "") -> dict[str, tuple[MigPlacement, ...]]:
        """Card id -> placements that pods hold on it, as if pod `without_uid` held none."""
        book = self._books.get(node)
        taken: dict[str, tuple[MigPlacement, ...]] = {}
        if book and book.slices:
            for uid in sorted(book.slices):
                for card, placement in book.slices[uid] if uid != without_uid else ():
                    taken[card] = (*taken.get(card, ()), placement)
        return taken

    def unsliced(self, node: str, cards: Iterable[str], without_uid: str = "") -> set[str]:
        """Those of the node's MIG `cards` on which a pod holds a share without a known slice for each.

        HAMi 2.5 to 2.9 wrote no slices; what such a pod occupies is unknown (spec/scheduler 6.3).
        """
        wanted, unknown = set(cards), set()
        book = self._books.get(node)
        for uid in book.uids if book and wanted else ():
            claim = self._claims[uid]
            for card, use in claim.charges if uid != without_uid else ():
                if card in wanted and sum(each == card for each, _ in claim.slices) < use.slots:
                    unknown.add(card)
        return unknown

    @property
    def undecodable(self) -> dict[str, str]:
        """Uid -> problem of every live pod whose allocation cannot be read."""
        return {uid: problem for book in self._books.values() for uid, problem in book.problems.items()}

    def claims(self) -> Iterable[Claim]:
        return self._claims.values()

    def uids_on(self, node: str) -> set[str]:
        book = self._books.get(node)
        return set(book.uids) if book else set()

    def nodes(self) -> list[str]:
        return list(self._books)

    # Facts from API objects

    def apply(self, pod: Pod, now_s: float, now_unix_s: float) -> None:
        """Takes a pod as the API server has it; the same pod twice changes nothing."""
        meta = pod.metadata
        known = self._uid_of.get(pod.key)
        if known is not None and known != meta.uid:
            if is_older(meta.resource_version, self._claims[known].resource_version):
                return  # read late: its successor of the same name is here already
            self.release(known)
        claim = self._claims.get(meta.uid)
        if claim is not None and not pod.finished and is_older(meta.resource_version, claim.resource_version):
            claim.seen = True
            return
        if pod.finished:
            self.forget(meta.uid)
        elif pod.spec.node_name:
            self._apply_bound(pod, claim)
        elif claim is None or claim.state is ClaimState.ANNOTATED:
            self._apply_annotated(pod, claim, now_s, now_unix_s)
        elif claim.state is ClaimState.RESERVED:
            self._apply_reserved(pod, claim, now_s, now_unix_s)

    def forget_versions(self) -> None:
        """The API server's history has gone back: what it shows next is the newest state of every pod."""
        for claim in self._claims.values():
            claim.resource_version = ""

    def forget(self, uid: str) -> None:
        """The pod is gone or finished."""
        self._ended.pop(uid, None)
        self.release(uid)

    def uids(self) -> list[str]:
        """Every uid that the ledger knows anything about."""
        return [*self._claims, *(uid for uid in self._ended if uid not in self._claims)]

    def not_listed(self, uid: str, listed: set[str]) -> None:
        """Ends what a pod holds that a complete list does not have; younger reservations and bindings stay.

        A pod that we bound and nobody has shown us is younger than the list, or was deleted before: see `expire`.
        """
        if uid in listed:
            return
        self._ended.pop(uid, None)
        claim = self._claims.get(uid)
        if claim is None or claim.pinned:
            return
        if claim.seen:
            self.release(uid)
        elif claim.state is ClaimState.BOUND:
            claim.unlisted = True
            heapq.heappush(self._deadlines, (claim.deadline_s, uid))

    # Our own decisions

    def reserve(
        self, pod: Pod, node: str, fit: Fit, now_s: float, now_unix_s: float, devices: tuple[Device, ...] = ()
    ) -> Claim:
        """Holds the cards of a fresh decision for the pod; replaces what the pod held before.

        `devices`: the node's cards as the decision saw them.
        """
        self.release(pod.metadata.uid)
        claim = Claim(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=sys.intern(node),
            state=ClaimState.RESERVED,
            charges=flat_charges(fit.charge),
            words=words_of(fit.charge, fit.allocation),
            slices=flat_slices(fit.mig, fit.charge),
            fit=fit,
            devices=devices,
            resource_version=pod.metadata.resource_version,
            since_unix_s=now_unix_s,
            deadline_s=now_s + BACKSTOP_S,
            unscheduled=unscheduled_condition(pod),
        )
        self._put(claim)
        return claim

    def end_reservation(self, uid: str) -> None:
        """The pod is filtered again: whatever was reserved for it is void, also what its annotations say."""
        claim = self._claims.get(uid)
        if claim is None or claim.state is ClaimState.BOUND or claim.pinned:
            return
        self._end(claim)

    def unpin(self, uid: str) -> None:
        """The binding has come to its end, whatever that was."""
        if (claim := self._claims.get(uid)) is not None:
            claim.pinned = False
            if claim.given_up and claim.state is ClaimState.RESERVED:
                self._end(claim)

    def mark_bound(self, uid: str) -> None:
        """Our Binding succeeded; the watch will show the same shortly."""
        claim = self._claims.get(uid)
        if claim is not None and claim.state is not ClaimState.BOUND:
            claim.state = ClaimState.BOUND
            claim.phase = keys.PHASE_ALLOCATING
            claim.fit = None
            claim.devices = ()
            claim.pinned = False

    def release(self, uid: str) -> None:
        """Gives back what the pod holds; nothing if it holds nothing."""
        claim = self._claims.pop(uid, None)
        if claim is None:
            return
        if self._uid_of.get(claim.key) == uid:
            del self._uid_of[claim.key]
        self.namespaces.subtract(claim)
        book = self._books[claim.node]
        book.subtract(claim)
        if not book.uids:
            del self._books[claim.node]
        self.dirty.add(claim.node)

    def expire(self, now_s: float) -> None:
        """Drops claims that no fact has ended, or confirmed as bound, within the backstop."""
        while self._deadlines and self._deadlines[0][0] <= now_s:
            uid = heapq.heappop(self._deadlines)[1]
            claim = self._claims.get(uid)
            bound = claim is not None and claim.state is ClaimState.BOUND and not claim.unlisted
            if claim is None or bound or claim.deadline_s > now_s:
                continue
            if claim.pinned:
                claim.deadline_s = now_s + BACKSTOP_S
                heapq.heappush(self._deadlines, (claim.deadline_s, uid))
                continue
            self.expired_total += 1
            self._end(claim)

    # Inside

    def _end(self, claim: Claim) -> None:
        """Ends a claim; what the unbound pod's annotations say of it counts no more."""
        if claim.state is ClaimState.ANNOTATED or claim.announced:
            self._ended[claim.uid] = claim.since_unix_s
        self.release(claim.uid)

    def _put(self, claim: Claim) -> None:
        self.release(claim.uid)
        self._claims[claim.uid] = claim
        self._uid_of[claim.key] = claim.uid
        self.namespaces.add(claim)
        self._books.setdefault(claim.node, NodeBook()).add(claim)
        if claim.state is not ClaimState.BOUND:
            heapq.heappush(self._deadlines, (claim.deadline_s, claim.uid))
        self.dirty.add(claim.node)

    def _apply_bound(self, pod: Pod, claim: Claim | None) -> None:
        texts = allocated_texts(pod, self._registry)
        if not texts:
            if claim is not None:
                self.release(claim.uid)
            return
        shrunk = allocations.init_done(pod)
        stage = PLAIN if not pod.spec.init_containers else SHRUNK if shrunk else ""
        source = (sys.intern(pod.spec.node_name), stage, pod.annotations.get(keys.MIG_ALLOCATIONS, ""), *texts)
        phase = sys.intern(pod.annotations.get(keys.BIND_PHASE, ""))
        if claim is not None and claim.state is ClaimState.BOUND and claim.source == source:
            claim.phase = phase
            claim.resource_version = pod.metadata.resource_version
            return
        held = read_holdings(pod, self._registry, init_finished=shrunk)
        self._put(self._claim_of(pod, pod.spec.node_name, ClaimState.BOUND, held, source, phase=phase))

    def _apply_annotated(self, pod: Pod, claim: Claim | None, now_s: float, now_unix_s: float) -> None:
        uid = pod.metadata.uid
        texts = allocated_texts(pod, self._registry)
        node = pod.annotations.get(keys.VGPU_NODE, "")
        if not texts or not node:
            self.release(uid)
            return
        since_s = annotated_at(pod, claim.since_unix_s if claim else self._ended.get(uid, now_unix_s))
        over = self._ended.get(uid, -1.0) >= since_s or since_s + BACKSTOP_S <= now_unix_s
        going = pod.metadata.deletion_timestamp is not None  # kube-apiserver binds it no more
        if over or going or newer_unscheduled(pod, (), since_s + 1.0):
            self._ended[uid] = since_s
            self.release(uid)
            return
        source = (sys.intern(node), "", pod.annotations.get(keys.MIG_ALLOCATIONS, ""), *texts)
        if claim is not None and claim.source == source and claim.since_unix_s == since_s:
            claim.resource_version = pod.metadata.resource_version
            return
        held = read_holdings(pod, self._registry, init_finished=False)
        fresh = self._claim_of(pod, node, ClaimState.ANNOTATED, held, source)
        fresh.since_unix_s = since_s
        fresh.deadline_s = now_s + min(BACKSTOP_S, since_s + BACKSTOP_S - now_unix_s)
        self._put(fresh)

    def _apply_reserved(self, pod: Pod, claim: Claim, now_s: float, now_unix_s: float) -> None:
        claim.seen = True
        claim.resource_version = pod.metadata.resource_version
        going = pod.metadata.deletion_timestamp is not None
        over = going or newer_unscheduled(pod, claim.unscheduled, claim.since_unix_s)
        if claim.pinned:
            claim.given_up = claim.given_up or over
        elif over:
            self._end(claim)
        elif allocated_texts(pod, self._registry) and annotated_at(pod, 0.0) > claim.since_unix_s + 1.0:
            self.release(claim.uid)
            self._apply_annotated(pod, None, now_s, now_unix_s)

    @staticmethod
    def _claim_of(
        pod: Pod,
        node: str,
        state: ClaimState,
        held: Holdings,
        source: tuple[str, ...],
        *,
        phase: str = "",
    ) -> Claim:
        meta = pod.metadata
        return Claim(
            uid=meta.uid,
            namespace=sys.intern(meta.namespace),
            name=meta.name,
            node=sys.intern(node),
            state=state,
            charges=held.charges,
            words=held.words,
            slices=held.slices,
            problem=held.problem,
            source=source,
            phase=phase,
            resource_version=meta.resource_version,
            seen=True,
        )
