"""What one pod holds: the flat record that the ledger keeps per pod (spec/performance 2.5), and how it is read."""

from __future__ import annotations

import datetime
import enum
import functools
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from hami.core import allocation as allocations
from hami.core import keys
from hami.core.codec import MigAllocation, decode_mig_allocations, physical_id
from hami.core.device_type import Registry
from hami.core.errors import DecodeError
from hami.core.fit import Fit
from hami.core.model import Allocation, Charge, Device, MigPlacement, Use
from hami.core.objects import Pod

BACKSTOP_S: Final = 1200.0
"""A reservation ends by fact; only one that no fact ever ends is dropped after this time (design 3)."""


PLAIN: Final = "plain"
"""Stage of a bound pod without init containers: it holds the sum of its segments."""
SHRUNK: Final = "shrunk"
"""Stage of a bound pod whose init containers have ended; empty before, and for unbound pods."""


class ClaimState(enum.Enum):
    """How firm a claim is."""

    RESERVED = "reserved"
    """Chosen by our filter, held in memory."""
    ANNOTATED = "annotated"
    """An unbound pod that carries an allocation: upstream's scheduler, or `--patch-in-filter`."""
    BOUND = "bound"
    """The pod is on its node."""


class Claim(msgspec.Struct, gc=False):
    """Cards of one pod on one node. `charges`: device id and effective use. `problem`: the allocation is unreadable."""

    uid: str
    namespace: str
    name: str
    node: str
    state: ClaimState
    charges: tuple[tuple[str, Use], ...] = ()
    words: tuple[str, ...] = ()
    """The vendor of each charge."""
    slices: tuple[tuple[str, MigPlacement], ...] = ()
    """MIG slices: card id and placement."""
    problem: str = ""
    source: tuple[str, ...] = ()
    """Node, stage, MIG reservations and allocated texts that the charges were read from, to recognise an event that
    changes nothing; empty until the watch has shown them."""
    phase: str = ""
    resource_version: str = ""
    fit: Fit | None = None
    """The evaluator's decision; only while a binding still has to write it."""
    devices: tuple[Device, ...] = ()
    """The node's cards as the decision saw them; as long as `fit`."""
    since_unix_s: float = 0.0
    deadline_s: float = 0.0
    """Monotonic seconds at which a claim is dropped that is not known to be bound."""
    unscheduled: tuple[str, ...] = ()
    """The PodScheduled=False condition that the pod had when it was filtered."""
    pinned: bool = False
    """A binding has begun to write: only its outcome ends the claim."""
    given_up: bool = False
    """Something has ended the claim while it was pinned."""
    announced: bool = False
    """Written to the unbound pod's annotations, or about to be (`--patch-in-filter`)."""
    seen: bool = False
    """The watch has shown this pod."""
    unlisted: bool = False
    """Bound by us, not seen yet, and not in a complete list."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def allocated_texts(pod: Pod, registry: Registry) -> tuple[str, ...]:
    """The allocated annotations of every vendor, empty tuple if the pod has none."""
    annotations = pod.metadata.annotations
    if not annotations:
        return ()
    texts = tuple(annotations.get(vendor.allocated_key, "") for vendor in registry)
    return texts if any(texts) else ()


def flat_charges(charge: Charge) -> tuple[tuple[str, Use], ...]:
    """A charge as pairs, its texts and sums shared by all that are equal: 50,000 pods are kept."""
    return tuple((sys.intern(device), _shared(use)) for device, use in charge.items())


@functools.lru_cache(maxsize=4096)
def _shared(use: Use) -> Use:
    """One value for all cards of which the same is taken: most pods ask for one of a few sizes."""
    return use


def words_of(charge: Charge, allocation: Allocation) -> tuple[str, ...]:
    """The vendor of each card of `charge`, in its order."""
    if len(allocation) == 1:
        return _repeated(next(iter(allocation)), len(charge))
    shares = ((word, share) for word, containers in allocation.items() for each in containers for share in each)
    word_of = {physical_id(share.device_id): word for word, share in shares}
    return tuple(word_of.get(device, "") for device in charge)


@functools.lru_cache(maxsize=256)
def _repeated(word: str, count: int) -> tuple[str, ...]:
    """One tuple for all pods alike."""
    return (word,) * count


class Holdings(msgspec.Struct, frozen=True):
    """What a pod's annotations say it holds; `problem` if they cannot be read."""

    charges: tuple[tuple[str, Use], ...] = ()
    slices: tuple[tuple[str, MigPlacement], ...] = ()
    problem: str = ""
    words: tuple[str, ...] = ()


def read_holdings(pod: Pod, registry: Registry, *, init_finished: bool) -> Holdings:
    """Reads the allocated annotations and the MIG reservations of a pod."""
    subject = f"pod {pod.key}"
    try:
        allocation = allocations.read_allocation(pod.annotations, registry, subject)
        kinds = allocations.container_kinds(pod)
        whole = allocations.charge(allocation, kinds, registry)
        smaller = init_finished and pod.spec.init_containers
        charge = allocations.charge(allocation, kinds, registry, init_finished=True) if smaller else whole
        text = pod.annotations.get(keys.MIG_ALLOCATIONS, "")
        mig = decode_mig_allocations(text, f"{subject} annotation {keys.MIG_ALLOCATIONS}") if text else ()
    except DecodeError as error:
        return Holdings(problem=str(error))
    # The plugin keeps the instances of init containers for the pod's life.
    return Holdings(flat_charges(charge), flat_slices(mig, whole), words=words_of(charge, allocation))


def flat_slices(mig: Sequence[MigAllocation], charge: Charge) -> tuple[tuple[str, MigPlacement], ...]:
    """Each slice once; those of cards that the pod does not hold (left from an earlier decision) are not its own."""
    if not mig:
        return ()
    return tuple(dict.fromkeys((each.gpu_uuid, each.placement) for each in mig if each.gpu_uuid in charge))


def unscheduled_condition(pod: Pod) -> tuple[str, ...]:
    """The PodScheduled=False condition as comparable texts, the time of its transition first; empty if none."""
    for each in pod.status.conditions or ():
        if each.type == "PodScheduled" and each.status == "False":
            return (each.last_transition_time or "", each.reason or "", each.message or "", each.last_probe_time or "")
    return ()


def newer_unscheduled(pod: Pod, known: tuple[str, ...], since_unix_s: float) -> bool:
    """Whether kube-scheduler gave the pod up after `since_unix_s`, when its condition was `known`.

    Stamps have whole seconds, and a second failure in a row keeps the stamp of the first: then the text tells.
    """
    condition = unscheduled_condition(pod)
    if not condition or condition == known:
        return False
    if known and condition[0] == known[0]:
        return True
    try:
        stamp_unix_s = datetime.datetime.fromisoformat(condition[0]).timestamp()
    except (ValueError, OverflowError):
        return False
    return stamp_unix_s >= int(since_unix_s)


def annotated_at(pod: Pod, fallback: float) -> float:
    """Unix seconds of `hami.io/vgpu-time`; `fallback` if it is missing or unreadable."""
    text = pod.annotations.get(keys.VGPU_TIME, "")
    return float(text) if text.isdecimal() and len(text) <= 12 else fallback
