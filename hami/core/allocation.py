"""A pod's allocation: between annotations and values, and what it takes from each card.

Source: spec/scheduler 2.3 (one segment per container, init containers first), 4.10 (max rule).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from hami.core.codec import decode_shares, encode_shares, physical_id
from hami.core.device_type import Registry
from hami.core.model import NO_USE, Allocation, Charge, ContainerKind, ContainerShares, DeviceShare, Use, VendorShares
from hami.core.objects import Container, Pod


def container_kinds(pod: Pod) -> tuple[ContainerKind, ...]:
    """The kind of every container in annotation order."""
    if not pod.spec.init_containers:
        return (ContainerKind.APP,) * len(pod.spec.containers or ())
    return (
        *(ContainerKind.SIDECAR if _is_sidecar(container) else ContainerKind.INIT for container in _inits(pod)),
        *(ContainerKind.APP for _ in pod.spec.containers or ()),
    )


def init_done(pod: Pod) -> bool:
    """Whether every ordinary init container has ended with exit code 0, so that only the others still hold cards.

    Sidecars do not count: they run for the pod's life (report B32). True for a pod without ordinary init containers.
    """
    if not pod.spec.init_containers:
        return True
    ended = ended_inits(pod)
    return all(container.name in ended for container in _inits(pod) if not _is_sidecar(container))


def ended_inits(pod: Pod) -> frozenset[str]:
    """Names of ordinary init containers that have ended with exit code 0: they do not run again in this sandbox."""
    if not pod.spec.init_containers:
        return frozenset()
    ended = set()
    for status in pod.status.init_container_statuses or ():
        terminated = status.state.terminated if status.state else None
        if terminated is not None and terminated.exit_code == 0:
            ended.add(status.name)
    return frozenset(ended.difference(container.name for container in _inits(pod) if _is_sidecar(container)))


def read_allocation(annotations: Mapping[str, str], registry: Registry, subject: str) -> Allocation:
    """What the `…-devices-allocated` annotations of a pod say; empty if there are none. Raises DecodeError."""
    allocation: Allocation = {}
    for vendor in registry:
        text = annotations.get(vendor.allocated_key)
        if text:
            shares = decode_shares(text, f"{subject} annotation {vendor.allocated_key}")
            if any(shares):
                allocation[vendor.word] = shares
    return allocation


def encode_allocation(allocation: Mapping[str, VendorShares], registry: Registry) -> dict[str, str]:
    """Annotations that carry an allocation: for each vendor the plugin's work list and the lasting record."""
    annotations: dict[str, str] = {}
    for vendor in registry:
        if vendor.word in allocation:
            text = encode_shares(allocation[vendor.word])
            annotations[vendor.to_allocate_key] = text
            annotations[vendor.allocated_key] = text
    return annotations


def charge(
    allocation: Mapping[str, VendorShares],
    kinds: Sequence[ContainerKind],
    registry: Registry,
    *,
    init_finished: bool = False,
) -> Charge:
    """Effective use per card: sidecars + max(app containers, largest init container), for slots, memory and cores.

    With `init_finished` the init containers hold nothing any more. Lists with fewer segments than the pod has
    containers come from releases that left empty containers out; which container is meant is then unknown and every
    segment counts as an app container, which never counts too little. Ids are those of the cards (slice suffixes gone).
    """
    total: Charge = {}
    uses_by_word = {vendor.word: vendor.use_of for vendor in registry}
    apps_only = all(kind is ContainerKind.APP for kind in kinds)
    for word, containers in allocation.items():
        use_of = uses_by_word.get(word, _plain_use)
        if apps_only:
            # Most pods: everything counts, whichever container it is of.
            for share in chain.from_iterable(containers):
                card, use = physical_id(share.device_id), use_of(share)
                total[card] = total[card].plus(use) if card in total else use
            continue
        uses = [uses_by_card(shares, use_of) for shares in containers]
        for card, use in effective_use(uses, kinds, init_finished=init_finished).items():
            total[card] = total.get(card, NO_USE).plus(use)
    return total


def uses_by_card(shares: ContainerShares, use_of: Callable[[DeviceShare], Use]) -> Charge:
    """What one container takes from each card."""
    return _by_card((physical_id(share.device_id), use_of(share)) for share in shares)


def effective_use(uses: Sequence[Charge], kinds: Sequence[ContainerKind], *, init_finished: bool = False) -> Charge:
    """The max rule over containers in annotation order; see `charge`."""
    known = len(uses) >= len(kinds)
    apps: list[Charge] = []
    inits: list[Charge] = []
    sidecars: list[Charge] = []
    for position, use in enumerate(uses):
        kind = kinds[position] if known and position < len(kinds) else ContainerKind.APP
        (apps if kind is ContainerKind.APP else inits if kind is ContainerKind.INIT else sidecars).append(use)
    effective = _by_card(chain.from_iterable(use.items() for use in apps))
    for init in () if init_finished else inits:
        for card, peak in init.items():
            effective[card] = larger(effective.get(card, NO_USE), peak)
    return _by_card(chain(effective.items(), *(use.items() for use in sidecars))) if sidecars else effective


def _inits(pod: Pod) -> tuple[Container, ...]:
    return pod.spec.init_containers or ()


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _plain_use(share: DeviceShare) -> Use:
    return Use(1, share.memory_mib, share.core_percent)


def _by_card(uses: Iterable[tuple[str, Use]]) -> Charge:
    total: Charge = {}
    for card, use in uses:
        total[card] = total[card].plus(use) if card in total else use
    return total


def larger(left: Use, right: Use) -> Use:
    """The larger of two uses, field by field."""
    return Use(
        max(left.slots, right.slots),
        max(left.memory_mib, right.memory_mib),
        max(left.core_percent, right.core_percent),
    )
