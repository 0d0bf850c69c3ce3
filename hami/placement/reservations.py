"""Reservations of pods that nobody will ever tell us about are found out by a look (design 3: they end by fact).

A pod that was deleted while our watch was cut, and that kube-scheduler still asked about afterwards, is in no list and
in no event. Its cards would be held until the backstop.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import structlog

from hami.core.errors import ApiError, NotFoundError, TransportError
from hami.core.objects import Pod
from hami.placement.claims import Claim, ClaimState
from hami.placement.world import World

PAUSE_S: Final = 30.0
OLD_S: Final = 60.0
"""A bind follows its filter within seconds, except where Permit or PreBind plugins take their time."""
_MOST_A_ROUND: Final = 50

log = structlog.get_logger("hami.placement.reservations")


class PodReader(Protocol):
    """The one read."""

    async def get_pod(self, namespace: str, name: str) -> Pod: ...


class ReservationCheck:
    """Looks at pods whose reservation is older than `OLD_S`, each once in that time."""

    def __init__(self, world: World, reader: PodReader) -> None:
        self._world = world
        self._reader = reader
        self._looked_at_s: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_S)
            await self.check()

    async def check(self) -> None:
        """One round. What cannot be read now is looked at later."""
        now_s = self._world.clock.monotonic_s()
        old = self._old(now_s)
        kept = {claim.uid for claim in self._world.ledger.claims() if claim.state is ClaimState.RESERVED}
        self._looked_at_s = {uid: at_s for uid, at_s in self._looked_at_s.items() if uid in kept}
        for claim in old:
            self._looked_at_s[claim.uid] = now_s
            try:
                pod = await self._reader.get_pod(claim.namespace, claim.name)
            except NotFoundError:
                self._gone(claim)
            except (ApiError, TransportError):
                continue
            else:
                if pod.metadata.uid != claim.uid:
                    self._gone(claim)
                self._world.on_pod(pod)

    def _old(self, now_s: float) -> list[Claim]:
        now_unix_s = self._world.clock.unix_s()
        found = []
        for claim in self._world.ledger.claims():
            if claim.state is not ClaimState.RESERVED or claim.pinned or now_unix_s - claim.since_unix_s < OLD_S:
                continue
            if now_s - self._looked_at_s.get(claim.uid, -OLD_S) >= OLD_S:
                found.append(claim)
        return found[:_MOST_A_ROUND]

    def _gone(self, claim: Claim) -> None:
        log.info("reservation of a pod that is gone", pod=claim.key, uid=claim.uid, node=claim.node)
        self._world.on_pod_deleted(claim.namespace, claim.name, claim.uid)
