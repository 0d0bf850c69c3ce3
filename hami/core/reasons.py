"""Reason codes of refusals, as users see them in events, answers, metrics and the command line.

Codes are upstream's (spec/contract 3.5, spec/scheduler 4.7); new ones may be added, none may be renamed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class Reason(enum.StrEnum):
    """Why a card or a node was refused."""

    CARD_TYPE_MISMATCH = "CardTypeMismatch"
    CARD_UUID_MISMATCH = "CardUuidMismatch"
    CARD_TIME_SLICING_EXHAUSTED = "CardTimeSlicingExhausted"
    CARD_COMPUTE_UNITS_EXHAUSTED = "CardComputeUnitsExhausted"
    CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
    CARD_INSUFFICIENT_CORE = "CardInsufficientCore"
    CARD_NOT_HEALTH = "CardNotHealth"
    CARD_CORDONED = "CardCordoned"
    NUMA_NOT_FIT = "NumaNotFit"
    EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT = "ExclusiveDeviceAllocateConflict"
    CARD_NOT_FOUND_CUSTOM_FILTER_RULE = "CardNotFoundCustomFilterRule"
    CARD_MIG_TOPOLOGY_INFEASIBLE = "CardMigTopologyInfeasible"
    NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"
    ALLOCATED_CARDS_INSUFFICIENT_REQUEST = "AllocatedCardsInsufficientRequest"
    NODE_UNFIT_POD = "NodeUnfitPod"
    NODE_FIT_POD = "NodeFitPod"
    RESOURCE_QUOTA_NOT_FIT = "ResourceQuotaNotFit"
    MODE_NOT_FIT = "ModeNotFit"


NODE_UNREGISTERED = "node unregistered"
"""Per-node text for a node that has no usable registration (spec/contract 3.5)."""


class Rejection(msgspec.Struct, frozen=True):
    """Why one node does not take the pod.

    `counts` maps a code to the number of cards it refused (0 for codes that speak of the node); `candidates` is the
    number of cards of the requested vendor. `text` is the per-node text that kube-scheduler receives.
    """

    text: str
    counts: tuple[tuple[Reason, int], ...] = ()
    candidates: int = 0


def rejection(counts: Mapping[Reason, int], candidates: int) -> Rejection:
    """A Rejection with upstream's text: `<refused>/<candidates> <code>` for each code, sorted (spec/scheduler 4.7)."""
    refused = sorted((str(count) + f"/{candidates} {code}", code, count) for code, count in counts.items() if count)
    text = ", ".join(words for words, _, _ in refused)
    return Rejection(text, tuple((code, count) for _, code, count in refused), candidates)
