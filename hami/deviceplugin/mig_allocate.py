"""Allocate on a node in mode mig: the instances that the scheduler's placement asks for, made or found (spec/node 5.3).

Nothing is served that another pod holds or a stranger uses: a place that is not free yet is waited for, and then
refused with what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog

from hami.core.codec import MigAllocation, decode_mig_allocations, encode_mig_allocations, physical_id
from hami.core.container_edits import ContainerEdits
from hami.core.errors import AllocateError, NvmlError
from hami.core.keys import MIG_ALLOCATIONS
from hami.core.whose_call import Call
from hami.deviceplugin.mig_cards import profile_of
from hami.deviceplugin.mig_manager import MigManager
from hami.deviceplugin.mig_plan import Holds, fills, holds_of, overlapping, rival, used
from hami.deviceplugin.mig_setup import MigDevice, MigSetup
from hami.deviceplugin.node_view import Found
from hami.deviceplugin.settings import PluginSettings
from hami.kube.writer import KubeWriter
from hami.nvml.probe import CardFacts, DeviceProbe, MigInstanceFacts

_POLL_S: Final = 0.1

log = structlog.get_logger(__name__)


class Prepared(msgspec.Struct, frozen=True):
    """Edits for each container, and what is to be written on the pod with them."""

    edits: list[ContainerEdits]
    annotations: dict[str, str]


class _Place(msgspec.Struct, frozen=True):
    """A reservation on its card, checked against what the card offers."""

    card: CardFacts
    profile: int
    reservation: MigAllocation


class MigAllocator:
    """Makes instances for containers, one call at a time."""

    def __init__(
        self, settings: PluginSettings, probe: DeviceProbe, writer: KubeWriter, manager: MigManager, setup: MigSetup
    ) -> None:
        self._settings = settings
        self._probe = probe
        self._writer = writer
        self._manager = manager
        self._setup = setup

    async def prepare(self, found: Found) -> Prepared:
        """Raises AllocateError, NvmlError, OSError, ApiError and TransportError; no instance is left behind then."""
        reservations = list(_all_reservations(found))
        async with self._manager.turn:
            made: list[tuple[str, int]] = []
            try:
                edits = [await self._serve(call, reservations, made) for call in found.calls]
            except BaseException:
                # A task that is being cancelled may still wait: the driver's calls have their own time limits.
                await self._undo(made)
                raise
        return Prepared(edits, {MIG_ALLOCATIONS: encode_mig_allocations(reservations)})

    async def _serve(
        self, call: Call, reservations: list[MigAllocation], made: list[tuple[str, int]]
    ) -> ContainerEdits:
        """Edits of one container; `reservations` get the ids of its instances, `made` those that did not exist."""
        own = _own_reservations(call, reservations)
        devices = []
        for at in own:
            card, instance = await self._instance(call, reservations, at, made)
            (compute,) = instance.compute
            reservations[at] = msgspec.structs.replace(
                reservations[at],
                mig_uuid=compute.uuid,
                gpu_instance_id=instance.id,
                compute_instance_id=compute.id,
            )
            devices.append(MigDevice(card, instance, compute))
        cards = (await self._probe.cards()).cards
        return await asyncio.to_thread(self._setup.edits, devices, cards)

    async def _instance(
        self, call: Call, reservations: Sequence[MigAllocation], at: int, made: list[tuple[str, int]]
    ) -> tuple[CardFacts, MigInstanceFacts]:
        """The instance of one reservation. A place that somebody is about to leave is waited for."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.allocate_timeout_s / 2
        while True:
            place = await self._place(reservations[at])
            holds = holds_of(await self._writer.list_pods_on_node(self._settings.node_name))
            other = rival(holds, reservations, reservations[at], call.pod.metadata.uid)
            if other is not None:
                raise AllocateError(f"{_where(place)} is held by {other.pod_key}")
            obstacle = await self._make_room(place, holds, call.pod.metadata.uid)
            if isinstance(obstacle, MigInstanceFacts):
                return place.card, obstacle
            if not obstacle:
                instance = await self._probe.create_mig(place.card.uuid, place.profile, place.reservation.placement)
                made.append((place.card.uuid, instance.id))
                if not fills(place.card, instance, place.reservation):
                    raise AllocateError(f"{_where(place)}: the driver made another instance than was asked for")
                log.info("MIG instance made", card=place.card.uuid, instance=instance.id, pod=call.pod.key)
                return place.card, instance
            if loop.time() >= deadline_s:
                raise AllocateError(f"{_where(place)} is not free: {obstacle}")
            await asyncio.sleep(_POLL_S)

    async def _make_room(self, place: _Place, holds: Holds, pod_uid: str) -> MigInstanceFacts | str:
        """The instance itself if it is there already; else what is in the way, empty if nothing is any more.

        An instance found at the place is this pod's if the pod says so, or if nobody uses it: then a plugin was killed
        after it had made it. Used by somebody, it is what a pod that is gone from the API still runs on (trap T-28).
        """
        reservation = place.reservation
        in_use = frozenset(each.uuid for each in await self._probe.processes())
        recorded = {each.reservation.mig_uuid for each in holds.on(place.card.uuid) if each.pod_uid == pod_uid} - {None}
        for instance in overlapping(place.card, reservation.placement):
            own = any(each.uuid in recorded for each in instance.compute)
            if fills(place.card, instance, reservation) and (own or not used(instance, in_use)):
                return instance
            if used(instance, in_use):
                return f"a process uses MIG instance {instance.id}, which belongs to no pod of this node any more"
            if holds.protects(place.card.uuid):
                whose = holds.protectors(place.card.uuid)
                return f"MIG instance {instance.id} may be that of {whose}, whose places are not known"
            try:
                await self._probe.destroy_mig(place.card.uuid, instance.id)
            except NvmlError as error:
                return str(error)
        return ""

    async def _place(self, reservation: MigAllocation) -> _Place:
        cards = (await self._probe.cards()).cards
        card = next((each for each in cards if each.uuid == reservation.gpu_uuid), None)
        if card is None:
            raise AllocateError(f"card {reservation.gpu_uuid}, which the scheduler chose, is not on this node")
        if not card.mig_enabled:
            raise AllocateError(f"MIG mode of card {card.uuid}, which the scheduler chose, is off")
        profile = profile_of(card, reservation.profile)
        if profile is None:
            raise AllocateError(f"card {card.uuid} offers no MIG profile {reservation.profile}")
        place = _Place(card, profile.number, reservation)
        if reservation.placement not in profile.placements:
            offered = ", ".join(str(each.start) for each in profile.placements)
            raise AllocateError(f"{_where(place)} is no place of {reservation.profile}, which begins at {offered}")
        return place

    async def _undo(self, made: Sequence[tuple[str, int]]) -> None:
        """Takes back what this call made, newest first; what cannot be taken back goes when the pod is gone."""
        for card, instance in reversed(made):
            try:
                await self._probe.destroy_mig(card, instance)
            except NvmlError as error:
                log.warning("MIG instance not taken back", card=card, instance=instance, why=str(error))


def _all_reservations(found: Found) -> tuple[MigAllocation, ...]:
    text = found.pod.annotations.get(MIG_ALLOCATIONS, "")
    subject = f"pod {found.pod.key} annotation {MIG_ALLOCATIONS}"
    if not text:
        raise AllocateError(f"{subject} is missing: was the pod scheduled before the node was in mode mig?")
    return decode_mig_allocations(text, subject)


def _own_reservations(call: Call, reservations: Sequence[MigAllocation]) -> list[int]:
    """Positions of the container's reservations, one for each share and on the share's card."""
    own = [at for at, each in enumerate(reservations) if each.container_index == call.container_index]
    own.sort(key=lambda at: reservations[at].device_index)
    cards = [reservations[at].gpu_uuid for at in own]
    chosen = [physical_id(share.device_id) for share in call.shares]
    if cards != chosen:
        raise AllocateError(
            f"container {call.container_name} has shares of {', '.join(chosen)}, but MIG places on"
            f" {', '.join(cards) or 'no card'}"
        )
    return own


def _where(place: _Place) -> str:
    placement = place.reservation.placement
    slices = f"{placement.start} to {placement.start + placement.size - 1}"
    return f"the place of {place.reservation.profile} on card {place.card.uuid}, memory slices {slices},"
