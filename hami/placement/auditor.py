"""Is the ledger what the API objects say? Looked at all the time, told, never repaired in silence (design 4).

Each minute what is in memory is held against the annotation texts that it came from; each hour against a paged list of
all pods. Differences of the list are looked at twice with a live read, because list and watch may tell different times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final, Protocol

import msgspec
import structlog

from hami.core import keys
from hami.core.allocation import init_done
from hami.core.codec import decode_shares, physical_id
from hami.core.errors import ApiError, DecodeError, NotFoundError, TransportError
from hami.core.model import NO_USE, Use
from hami.core.objects import Pod
from hami.obs import metrics
from hami.placement.claims import PLAIN, SHRUNK, Claim, ClaimState, allocated_texts, read_holdings
from hami.placement.ports import EventSink
from hami.placement.slicer import Slicer
from hami.placement.world import World

MEMORY_PERIOD_S: Final = 60.0
LIST_PERIOD_S: Final = 3600.0
SETTLE_S: Final = 10.0
"""How long the watch has to catch up before a difference to the list counts."""
_TEXTS_AT: Final = 3
"""Where the allocated texts begin in `Claim.source`."""

log = structlog.get_logger("hami.audit")


class Difference(msgspec.Struct, frozen=True, order=True):
    """`subject` is a pod or a card; `problem` says what memory has and what it should have."""

    node: str
    subject: str
    problem: str


class PodReader(Protocol):
    """Live reads. Each call raises the ApiError family or TransportError."""

    def pod_pages(self) -> AsyncIterator[list[Pod]]:
        """Every pod of the cluster, a page at a time, from a consistent list."""

    async def get_pod(self, namespace: str, name: str) -> Pod: ...


class Auditor:
    """Holds the ledger against its sources."""

    def __init__(self, world: World, reader: PodReader, events: EventSink, *, settle_s: float = SETTLE_S) -> None:
        self._world = world
        self._reader = reader
        self._events = events
        self._settle_s = settle_s

    async def run(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        list_due_s = loop.time() + LIST_PERIOD_S
        while True:
            await asyncio.sleep(MEMORY_PERIOD_S)
            self._tell("memory", await self.check_memory())
            if loop.time() >= list_due_s:
                list_due_s = loop.time() + LIST_PERIOD_S
                try:
                    self._tell("list", await self.check_list())
                except (ApiError, TransportError) as error:
                    log.warning("audit against the list not done", why=str(error))

    async def check_memory(self) -> list[Difference]:
        """Sums against claims, and claims against their texts, node by node in slices."""
        slicer = Slicer(self._world.clock)
        found: list[Difference] = []
        for node in self._world.ledger.nodes():
            found += self._check_node(node)
            await slicer.give_way()
        return found

    async def check_list(self) -> list[Difference]:
        """Claims against all pods as the API server has them. Raises the ApiError family and TransportError."""
        suspects = await self._suspects()
        for _ in range(2):
            if not suspects:
                break
            await asyncio.sleep(self._settle_s)
            suspects = [suspect for suspect in suspects if await self._look_again(*suspect)]
        return sorted(filter(None, [await self._look_again(*suspect) for suspect in suspects]))

    # Memory

    def _check_node(self, node: str) -> list[Difference]:
        ledger = self._world.ledger
        sums: dict[str, Use] = {}
        found = []
        for uid in ledger.uids_on(node):
            claim = ledger.get(uid)
            if claim is None:
                found.append(Difference(node, uid, "is booked on the node and has no claim"))
                continue
            for card, use in claim.charges:
                sums[card] = sums.get(card, NO_USE).plus(use)
            problem = self._text_problem(claim)
            if problem:
                found.append(Difference(node, f"pod {claim.key}", problem))
        booked = dict(ledger.uses(node))
        found += [
            Difference(node, f"card {card}", f"booked {booked.get(card, NO_USE)}, pods hold {sums.get(card, NO_USE)}")
            for card in sorted({*booked, *sums})
            if booked.get(card, NO_USE) != sums.get(card, NO_USE)
        ]
        return found

    def _text_problem(self, claim: Claim) -> str:
        """Why the claim cannot come from its texts; without containers the texts give bounds only."""
        if not claim.source or claim.problem:
            return ""
        stage = claim.source[1]
        most: dict[str, Use] = {}
        least: dict[str, Use] = {}
        try:
            for card, use in self._shares(claim):
                most[card] = most.get(card, NO_USE).plus(use)
                least[card] = _at_least(stage, least.get(card, NO_USE), use)
        except DecodeError as error:
            return f"is booked though its allocation cannot be read: {error.problem}"
        held = dict(claim.charges)
        strange = any(card not in most for card in held)
        missing = stage != SHRUNK and any(card not in held for card in most)
        wrong = any(not _between(least[card], held[card], most[card]) for card in held if card in most)
        if not (strange or missing or wrong or claim.node != claim.source[0]):
            return ""
        says = f"node {claim.source[0]} with {_shown(tuple(most.items()))}"
        return f"booked on node {claim.node} with {_shown(claim.charges)}, its allocation says {says}"

    def _shares(self, claim: Claim) -> Iterator[tuple[str, Use]]:
        """Card and use of each share in the claim's texts. Raises DecodeError."""
        for vendor, text in zip(self._world.registry, claim.source[_TEXTS_AT:], strict=True):
            for share in (each for shares in decode_shares(text, claim.key) for each in shares):
                yield physical_id(share.device_id), vendor.use_of(share)

    # List

    async def _suspects(self) -> list[tuple[str, str, str]]:
        """Namespace, name and uid of pods whose claim is not what the list says."""
        slicer = Slicer(self._world.clock)
        # Only what was booked before the list began can be missing from it.
        unlisted: dict[str, Claim] = {}
        for claim in list(self._world.ledger.claims()):
            if claim.state is ClaimState.BOUND:
                unlisted[claim.uid] = claim
            await slicer.give_way()
        suspects = []
        async for page in self._reader.pod_pages():
            for pod in page:
                unlisted.pop(pod.metadata.uid, None)
                if self._problem(pod):
                    suspects.append((pod.metadata.namespace, pod.metadata.name, pod.metadata.uid))
                await slicer.give_way()
        return suspects + [(claim.namespace, claim.name, claim.uid) for claim in unlisted.values()]

    async def _look_again(self, namespace: str, name: str, uid: str) -> Difference | None:
        try:
            pod: Pod | None = await self._reader.get_pod(namespace, name)
        except NotFoundError:
            pod = None
        claim = self._world.ledger.get(uid)
        if pod is None or pod.metadata.uid != uid:
            if claim is None:
                return None
            return Difference(claim.node, f"pod {namespace}/{name}", f"booked on node {claim.node} and does not exist")
        problem = self._problem(pod)
        node = pod.spec.node_name or (claim.node if claim else "")
        return Difference(node, f"pod {namespace}/{name}", problem) if problem else None

    def _problem(self, pod: Pod) -> str:
        """How the claim differs from what the pod says; empty if it does not."""
        claim = self._world.ledger.get(pod.metadata.uid)
        if not pod.spec.node_name and not pod.finished:
            # Reservations: ours are not on the pod, those of others end by facts that a single read does not show.
            return ""
        holds = not pod.finished and bool(allocated_texts(pod, self._world.registry))
        if claim is None:
            return f"holds cards on node {pod.spec.node_name} and is not booked" if holds else ""
        if not holds:
            return f"booked on node {claim.node} and holds nothing ({pod.status.phase})"
        held = read_holdings(pod, self._world.registry, init_finished=init_done(pod))
        same = dict(held.charges) == dict(claim.charges) and bool(held.problem) == bool(claim.problem)
        if same and claim.node == pod.spec.node_name:
            return ""
        booked = f"booked on node {claim.node} with {_shown(claim.charges)}"
        return f"{booked}, holds {_shown(held.charges)} on node {pod.spec.node_name}"

    # Telling

    def _tell(self, source: str, differences: list[Difference]) -> None:
        metrics.audit_differences.labels(source).set(len(differences))
        metrics.audit_time_seconds.labels(source).set(self._world.clock.unix_s())
        for each in differences:
            log.error("audit difference", source=source, node=each.node, subject=each.subject, problem=each.problem)
            message = f"hami's books differ from the API server ({source}): {each.subject} {each.problem}"
            self._events.node_event(each.node, warning=True, reason=keys.EVENT_AUDIT_DIFFERENCE, message=message)


def _at_least(stage: str, so_far: Use, share: Use) -> Use:
    """The least that a pod of these shares holds: all of them, or the largest, or none that its init containers had."""
    if stage == PLAIN:
        return so_far.plus(share)
    if stage == SHRUNK:
        return NO_USE
    return Use(
        max(so_far.slots, share.slots),
        max(so_far.memory_mib, share.memory_mib),
        max(so_far.core_percent, share.core_percent),
    )


def _between(least: Use, held: Use, most: Use) -> bool:
    return (
        least.slots <= held.slots <= most.slots
        and least.memory_mib <= held.memory_mib <= most.memory_mib
        and least.core_percent <= held.core_percent <= most.core_percent
    )


def _shown(charges: tuple[tuple[str, Use], ...]) -> str:
    return ", ".join(f"{card} {use.memory_mib} MiB {use.core_percent}%" for card, use in charges) or "nothing"
