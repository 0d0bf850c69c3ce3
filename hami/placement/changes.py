"""A change that would make a pod fit: less of something, a selector dropped, a card or a pod gone, a larger quota."""

from __future__ import annotations

import enum

import msgspec

from hami.core.keys import DEVICE_CORDON
from hami.core.model import NO_USE
from hami.core.objects import Pod
from hami.placement.claims import Claim, flat_charges, words_of
from hami.placement.namespace_use import summed
from hami.placement.quotas import Raise
from hami.placement.what_if import Amount, Scene, Stage
from hami.placement.world import World


class ChangeKind(enum.StrEnum):
    """What is changed."""

    MEMORY = "memory"
    CORES = "cores"
    CARDS = "cards"
    ANNOTATION = "annotation"
    UNCORDON = "uncordon"
    WAIT = "wait"
    QUOTA = "quota"


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change and the `node` that would then take the pod. Which fields are set depends on the kind."""

    kind: ChangeKind
    text: str
    node: str
    container: str = ""
    resource: str = ""
    value: int = 0
    annotation: str = ""
    card: str = ""
    card_node: str = ""
    """The node that the card is on."""
    pod: str = ""
    raises: tuple[Raise, ...] = ()
    part: float = 1.0
    """How much of the amount has to go, 0 to 1, to compare changes of amounts."""


def amount_change(kind: ChangeKind, pod: Pod, amount: Amount, value: int, node: str) -> Change:
    """Less of a resource in one container."""
    name = pod.containers[amount.index].name
    before = amount.instead_of or str(amount.amount)
    text = f"ask for {amount.resource}: {value} instead of {before} in container {name}"
    part = (amount.amount - value) / amount.amount
    return Change(kind, text, node, container=name, resource=amount.resource, value=value, part=part)


def annotation_change(pod: Pod, key: str, node: str) -> Change:
    """The pod fits on `node` without its annotation `key`."""
    text = f"drop the annotation {key}: {pod.annotations[key]}"
    return Change(ChangeKind.ANNOTATION, text, node, annotation=key)


def uncordon_change(card_node: str, card: str, node: str) -> Change:
    """The pod fits on `node` once a card takes new shares again."""
    text = f"take card {card} of node {card_node} out of the annotation {DEVICE_CORDON}"
    return Change(ChangeKind.UNCORDON, text, node, card=card, card_node=card_node)


def wait_change(claim: Claim, node: str) -> Change:
    """The pod fits on `node` once another pod ends."""
    memory_mib, core_percent = held(claim)
    text = f"wait until pod {claim.key} ends, which holds {memory_mib} MiB and {core_percent} % cores"
    return Change(ChangeKind.WAIT, f"{text} on node {claim.node}", node, pod=claim.key)


def quota_change(world: World, stage: Stage, scene: Scene, node: str) -> Change:
    """Larger numbers in ResourceQuota objects: what the pod of the scene would get on the node has to fit in."""
    namespace, found = scene.pod.metadata.namespace, stage.fit(scene, node)
    taken = summed(words_of(found.charge, found.allocation), flat_charges(found.charge)) if found is not None else {}
    raises = world.quotas.raises(namespace, taken, *stage.gone(scene))
    words = [f"{each.key} of resource quota {each.quota} from {each.old} to {each.new}" for each in raises]
    text = f"raise {' and '.join(words)} in namespace {namespace}"
    return Change(ChangeKind.QUOTA, text, node, raises=raises)


def held(claim: Claim) -> tuple[int, int]:
    """MiB and percent of cores."""
    total = sum((use for _, use in claim.charges), start=NO_USE)
    return total.memory_mib, total.core_percent
