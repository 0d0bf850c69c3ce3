"""What each reason code means and what to do about it, for people: `docs/reference/reason-codes.md` is made of it."""

from __future__ import annotations

from typing import Final

import msgspec

from hami.core.reasons import Reason


class ReasonText(msgspec.Struct, frozen=True):
    """One code in words. `check`: what the evaluator compares; empty for codes that it never gives."""

    meaning: str
    what_to_do: str
    check: str = ""


REASON_TEXTS: Final = {
    Reason.CARD_NOT_HEALTH: ReasonText(
        "The device plugin reports the card as unhealthy, or it is a MIG card that serves pods of an older release"
        " whose slices nobody wrote down.",
        "Look at the node's device plugin log and at `nvidia-smi` for XID errors; the card comes back by itself once"
        " NVML answers well again. For a MIG card: let the old pods end.",
        "the card's `health` in the register annotation",
    ),
    Reason.CARD_CORDONED: ReasonText(
        "An operator took the card out of use with the node annotation `hami.io/device-cordon`. Running pods stay.",
        "Remove the card's id from the annotation when it may serve again; it counts at once.",
        "the card's id against the annotation",
    ),
    Reason.CARD_TYPE_MISMATCH: ReasonText(
        "The pod's annotations `nvidia.com/use-gputype`, `nvidia.com/nouse-gputype` or `nvidia.com/vgpu-mode` exclude"
        " this model or its mode (hami-core, mig, mps).",
        "Compare the annotation with the card's type: words are parts of the model name, upper or lower case. Drop the"
        " annotation if any card will do.",
        "type lists and mode against the registered type and mode",
    ),
    Reason.CARD_UUID_MISMATCH: ReasonText(
        "The pod's annotations `nvidia.com/use-gpuuuid` or `nvidia.com/nouse-gpuuuid` exclude this card.",
        "Correct the ids or drop the annotation; ids change when a card is replaced.",
        "id lists against the card's id",
    ),
    Reason.CARD_TIME_SLICING_EXHAUSTED: ReasonText(
        "As many tasks share the card as its split count allows.",
        "Wait for a pod to end, or raise `deviceSplitCount` (a larger count divides nothing by itself: memory and"
        " cores are what is asked for).",
        "tasks on the card against its split count",
    ),
    Reason.CARD_INSUFFICIENT_MEMORY: ReasonText(
        "Less device memory is unclaimed on the card than the pod asks for. A pod that names no size asks for a"
        " whole card.",
        "Ask for less (`nvidia.com/gpumem`, in MiB), wait for a pod to end, or raise `deviceMemoryScaling` if swapping"
        " device memory to the host is acceptable.",
        "registered memory minus what pods claim, against the request",
    ),
    Reason.CARD_INSUFFICIENT_CORE: ReasonText(
        "Less compute is unclaimed on the card than the pod asks for.",
        "Ask for less (`nvidia.com/gpucores`, in percent of one card) or wait for a pod to end.",
        "registered cores minus what pods claim, against the request",
    ),
    Reason.CARD_COMPUTE_UNITS_EXHAUSTED: ReasonText(
        "All of the card's compute is claimed, often by one exclusive pod, so that a task without a share would get"
        " none.",
        "Wait for the exclusive pod to end, or use another card. Asking for cores does not help: none are left.",
        "a request without cores against a card whose cores are all claimed",
    ),
    Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT: ReasonText(
        "The pod wants the card for itself (100 cores, or the policy `mutex`) and others use it.",
        "Ask for fewer cores to share, or wait until the card is idle. A pod that asks for a whole card's memory gets"
        " 100 cores by default: name a size to share.",
        "tasks on the card, for 100 cores on a card of 100, and for the policy `mutex`",
    ),
    Reason.NUMA_NOT_FIT: ReasonText(
        "With `nvidia.com/numa-bind: true` all cards of a container must lie on one NUMA node; no NUMA node has enough"
        " cards that pass. The number counts cards that were taken and given up.",
        "Ask for fewer cards, drop `numa-bind`, or free cards of one NUMA node.",
        "cards that pass, NUMA node by NUMA node",
    ),
    Reason.RESOURCE_QUOTA_NOT_FIT: ReasonText(
        "With this card the pod would exceed a ResourceQuota of its namespace (`limits.<memory resource>` or"
        " `limits.<cores resource>`). An event says used, requested, limit and the quota's name.",
        "Ask for less, end other pods of the namespace, or have the quota raised. A size in percent, or none, counts"
        " with the card's real size.",
        "use of the namespace's live pods plus this pod, against the smallest limit",
    ),
    Reason.CARD_MIG_TOPOLOGY_INFEASIBLE: ReasonText(
        "No allowed MIG profile of at least the size asked for has a free place on the card, or slices of the pod's"
        " own containers would overlap.",
        "Ask for a smaller size, wait for slices to become free, or allow more profiles for the model"
        " (`migProfileAllowlist`).",
        "profiles and placements against slices in use",
    ),
    Reason.CARD_NOT_FOUND_CUSTOM_FILTER_RULE: ReasonText(
        "A vendor's own rule found no card that suits.",
        "See the vendor's section of the device configuration.",
    ),
    Reason.NODE_INSUFFICIENT_DEVICE: ReasonText(
        "A container asks for more cards than the node has. The count means different cards, not shares of one; cards"
        " whose registered type has no NVIDIA in it are not counted.",
        "Ask for fewer cards. Ten shares of a card are for ten containers, not for one container with a count of ten.",
        "cards of the vendor on the node against the container's count",
    ),
    Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST: ReasonText(
        "Some cards of the node pass every check, but fewer than the container asks for. The number says how many.",
        "See the other reasons of the same node for the cards that did not pass; ask for fewer cards.",
        "cards that pass against the container's count",
    ),
    Reason.NODE_UNFIT_POD: ReasonText(
        "The node does not suit the pod. Upstream's word; hami names the reason instead.", "See the other reasons."
    ),
    Reason.NODE_FIT_POD: ReasonText("The node suits the pod. Upstream's word for logs.", "Nothing."),
    Reason.MODE_NOT_FIT: ReasonText(
        "The card's mode does not suit the request. Upstream's word; hami counts it as CardTypeMismatch.",
        "Compare `nvidia.com/vgpu-mode` with the mode of the node's cards.",
    ),
}

NODE_TEXTS: Final = (
    (
        "node unregistered",
        "The node registers no usable card: it has no GPU, its device plugin has not registered yet or is silent, or"
        " its annotation cannot be read. What follows the colon says which.",
        "Is the device plugin's pod running there (label `gpu=on`)? Its log says what it registers.",
    ),
    (
        "takes no new shares",
        "The allocation of a pod on the node cannot be read, so nobody knows what is free there.",
        "The text names the pod and what is wrong with its annotation: correct it or delete the pod.",
    ),
    (
        "invalid … value",
        "A number or annotation of the pod cannot be read: it did not pass the webhook, which refuses such pods.",
        "The text names the resource, the container and what is allowed: make the pod anew, and see why the webhook"
        " did not see it (`hami doctor`).",
    ),
    (
        "Device type not found",
        "The pod asks for a vendor that this scheduler is not configured for.",
        "Add the vendor to the device configuration.",
    ),
)
"""Per-node texts that are no codes: text, meaning, what to do."""
