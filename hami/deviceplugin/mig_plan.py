"""Which MIG instances pods hold, and what may be done with those that exist. Pure (spec/node 5.3, traps T-28, T-29).

A pod holds its places from the moment it is bound until kubelet says that it ended or it is gone: a pod that is being
deleted still runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from hami.core.codec import MigAllocation, decode_mig_allocations, decode_shares, physical_id
from hami.core.errors import DecodeError
from hami.core.keys import BIND_PHASE, MIG_ALLOCATIONS, PHASE_FAILED
from hami.core.model import MigPlacement
from hami.core.objects import Pod
from hami.deviceplugin.mig_cards import profile_of
from hami.nvml.probe import CardFacts, MigInstanceFacts
from hami.vendors.nvidia.names import ALLOCATED_KEY


class Hold(msgspec.Struct, frozen=True):
    """One place on one card that a live pod has been given."""

    pod_key: str
    pod_uid: str
    reservation: MigAllocation


class Holds(msgspec.Struct, frozen=True):
    """What the node's live pods hold."""

    held: tuple[Hold, ...] = ()
    sharers: dict[str, str] = {}
    """Card -> a pod that has a part of it without a place: a share of before it was a MIG card, or an instance whose
    place nobody wrote down (HAMi 2.5 to 2.9)."""
    unreadable: dict[str, str] = {}
    """Pod -> why its reservations cannot be read."""
    untouchable: frozenset[str] = frozenset()
    """Cards that such a pod may use."""
    all_untouchable: bool = False
    """Such a pod may use any card."""

    def on(self, card: str) -> tuple[Hold, ...]:
        return tuple(each for each in self.held if each.reservation.gpu_uuid == card)

    def protects(self, card: str) -> bool:
        """Whether nothing on the card may be taken away, because it is not known what a pod holds there."""
        return self.all_untouchable or card in self.untouchable or card in self.sharers

    def protectors(self, card: str) -> str:
        """Names of the pods for which the card is protected."""
        return ", ".join([*self.unreadable, *([self.sharers[card]] if card in self.sharers else [])])


class Verdict(msgspec.Struct, frozen=True):
    """The instances of one card, sorted."""

    kept: tuple[MigInstanceFacts, ...] = ()
    """A pod holds them, or might."""
    idle: tuple[MigInstanceFacts, ...] = ()
    """Nobody holds or uses them: to be taken away."""
    busy: tuple[MigInstanceFacts, ...] = ()
    """No pod holds them, but a process uses them."""


def holds_of(pods: Iterable[Pod]) -> Holds:
    """What pods of this node hold. One that cannot be read protects the cards that its other annotation names."""
    held: list[Hold] = []
    sharers: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    untouchable: set[str] = set()
    unknown = False
    for pod in pods:
        if pod.finished or pod.annotations.get(BIND_PHASE) == PHASE_FAILED:
            # Kubelet was refused: the second kind never starts, though it may not have been marked as ended yet.
            continue
        try:
            reservations = _reservations(pod)
        except DecodeError as error:
            if pod.annotations.get(BIND_PHASE):
                unreadable[pod.key] = error.problem
                cards = cards_of(pod)
                unknown = unknown or not cards
                untouchable |= cards
            continue
        held += [Hold(pod.key, pod.metadata.uid, each) for each in reservations]
        for card in cards_of(pod) - {each.gpu_uuid for each in reservations}:
            sharers[card] = pod.key
    return Holds(tuple(held), sharers, unreadable, frozenset(untouchable), unknown)


def cards_of(pod: Pod) -> set[str]:
    """Cards of which the pod has been given a part; none if that cannot be read."""
    try:
        containers = decode_shares(pod.annotations.get(ALLOCATED_KEY, ""), ALLOCATED_KEY)
    except DecodeError:
        return set()
    return {physical_id(share.device_id) for shares in containers for share in shares}


def fills(card: CardFacts, instance: MigInstanceFacts, reservation: MigAllocation) -> bool:
    """Whether the instance is the reserved one: its place and profile, whole."""
    profile = profile_of(card, reservation.profile)
    same = instance.placement == reservation.placement and profile is not None and instance.profile == profile.number
    return same and usable(instance)


def usable(instance: MigInstanceFacts) -> bool:
    """Whether it has one compute instance, of its own size, with an id."""
    return [each.slices for each in instance.compute] == [instance.slices] and bool(instance.compute[0].uuid)


def judge(card: CardFacts, holds: Holds, in_use: Collection[str]) -> Verdict:
    """What to do with each instance of the card. `in_use` are ids of MIG devices that processes use.

    An instance is also kept while it is only near to what a pod holds: at its place, but half made or another profile.
    Whoever serves that pod makes room for it; here it is enough that nothing in use is lost.
    """
    kept: list[MigInstanceFacts] = []
    idle: list[MigInstanceFacts] = []
    busy: list[MigInstanceFacts] = []
    mine = holds.on(card.uuid)
    for instance in card.mig_instances:
        if holds.protects(card.uuid) or any(_may_be(card, instance, each.reservation) for each in mine):
            kept.append(instance)
        elif used(instance, in_use):
            busy.append(instance)
        else:
            idle.append(instance)
    return Verdict(tuple(kept), tuple(idle), tuple(busy))


def used(instance: MigInstanceFacts, in_use: Collection[str]) -> bool:
    """Whether a process runs on one of the instance's MIG devices, whose UUIDs are `in_use`."""
    return any(each.uuid in in_use for each in instance.compute)


def overlapping(card: CardFacts, placement: MigPlacement) -> tuple[MigInstanceFacts, ...]:
    """Instances on the card that hold a memory slice of the place."""
    return tuple(each for each in card.mig_instances if each.placement.overlaps(placement))


def rival(holds: Holds, own: Sequence[MigAllocation], reservation: MigAllocation, pod_uid: str) -> Hold | None:
    """Another pod that holds a part of the place. The pod's own containers may share an instance, never overlap."""
    for hold in holds.on(reservation.gpu_uuid):
        if hold.pod_uid != pod_uid and hold.reservation.placement.overlaps(reservation.placement):
            return hold
    for each in own:
        same_place = each.placement == reservation.placement and each.profile == reservation.profile
        if each.gpu_uuid == reservation.gpu_uuid and not same_place and each.placement.overlaps(reservation.placement):
            return Hold("another container of the pod", pod_uid, each)
    return None


def _reservations(pod: Pod) -> tuple[MigAllocation, ...]:
    text = pod.annotations.get(MIG_ALLOCATIONS, "")
    return decode_mig_allocations(text, f"pod {pod.key} annotation {MIG_ALLOCATIONS}") if text else ()


def _may_be(card: CardFacts, instance: MigInstanceFacts, reservation: MigAllocation) -> bool:
    if any(each.uuid == reservation.mig_uuid for each in instance.compute):
        return True
    return fills(card, instance, reservation)
