"""Whose Allocate is it? Kubelet names no pod (design 3, spec/scheduler 2.7, spec/node 2.6, reports B79, B80, B82, B83).

In order: the token's pod, if it has an unserved segment of the asked count; else exactly one Pending pod on this node
that has one; else nobody, and no pod is harmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from hami.core.codec import decode_shares, encode_shares
from hami.core.device_type import DeviceType
from hami.core.errors import DecodeError
from hami.core.keys import BIND_PHASE, BIND_TIME, PHASE_ALLOCATING
from hami.core.model import ContainerShares, VendorShares
from hami.core.objects import Container, Pod
from hami.core.token import Token

_TIME_DIGITS: Final = 12


class Call(msgspec.Struct, frozen=True):
    """An Allocate call that is understood.

    `container_index` counts init containers first; `rest_text` is the to-allocate annotation without what is served.
    """

    pod: Pod
    container_index: int
    shares: ContainerShares
    rest_text: str

    @property
    def container_name(self) -> str:
        """Name of the container; empty if the annotation has more segments than the pod has containers."""
        containers = self.pod.containers
        return containers[self.container_index].name if self.container_index < len(containers) else ""

    @property
    def complete(self) -> bool:
        """Whether nothing of this vendor remains to be served."""
        return not self.rest_text.strip(";")


class CallRefusal(msgspec.Struct, frozen=True):
    """Nobody can be served. `message` names every candidate and what it waits for."""

    message: str


class _Waiting(msgspec.Struct, frozen=True):
    """A pod on this node that kubelet may ask for."""

    pod: Pod
    segments: VendorShares
    problem: str = ""

    def segment_of(self, count: int) -> int | None:
        return next((at for at, shares in enumerate(self.segments) if shares and len(shares) == count), None)

    def described(self) -> str:
        waits_for = ", ".join(str(len(shares)) for shares in self.segments if shares)
        return f"{self.pod.key} ({self.problem or f'waits for {waits_for or 0}'})"


def whose_call(
    token: Token | None, pods: Sequence[Pod], node: str, requested_count: int, vendor: DeviceType
) -> Call | CallRefusal:
    """The pod, container and shares that an Allocate for `requested_count` device ids is for.

    `pods` are the pods on `node`; `token` is the node's hand-off token, None if there is none or it cannot be read.
    The CallRefusal names every candidate and what it waits for.
    """
    waiting = [_waiting(pod, vendor) for pod in pods if _expects_allocate(pod, node)]
    owner = next((each for each in waiting if token is not None and each.pod.key == token.key), None)
    if owner is not None and owner.problem:
        return _nobody(waiting, node, requested_count, vendor)
    if owner is not None:
        segment = owner.segment_of(requested_count)
        if segment is not None:
            return _call(owner, segment, vendor)
    segments = ((each, each.segment_of(requested_count)) for each in waiting)
    matching = [(each, segment) for each, segment in segments if segment is not None]
    if len(matching) != 1:
        return _nobody(waiting, node, requested_count, vendor)
    return _call(*matching[0], vendor)


def whose_calls(
    token: Token | None, pods: Sequence[Pod], node: str, counts: Sequence[int], vendor: DeviceType
) -> tuple[Call, ...] | CallRefusal:
    """One call for each container request of `counts` devices. After the first, only the pod that it found may go on,
    with its segment consumed."""
    calls: list[Call] = []
    for count in counts:
        answer = whose_call(token, pods, node, count, vendor)
        if isinstance(answer, CallRefusal):
            return answer
        calls.append(answer)
        pods = [with_rest(answer, vendor)]
    return tuple(calls)


def ahead_of(found: Pod, pods: Sequence[Pod], node: str, requested_count: int, vendor: DeviceType) -> Pod | None:
    """The pod whose call this may be though the token names `found`: bound before it and waiting for the same count.

    A token outlives its time and is given to the next pod while its first owner still waits for a plugin that does not
    answer (HAMi #3096). kubelet admits pods in the order in which it was given them, so the one ahead comes first,
    unless kubelet has rejected it, which shows in its phase a moment later. None where the token's word is enough.
    """
    ahead = []
    bound_at_s = _bound_at_s(found)
    for pod in pods:
        waits = pod.metadata.uid != found.metadata.uid and pod.metadata.deletion_timestamp is None
        if waits and _expects_allocate(pod, node) and 0 < _bound_at_s(pod) < bound_at_s:
            waiting = _waiting(pod, vendor)
            if not waiting.problem and waiting.segment_of(requested_count) is not None:
                ahead.append(pod)
    return min(ahead, key=lambda pod: (_bound_at_s(pod), pod.key), default=None)


def _bound_at_s(pod: Pod) -> int:
    """Unix seconds of the bind; 0 where nobody wrote it."""
    text = pod.annotations.get(BIND_TIME, "")
    return int(text) if text.isdecimal() and len(text) <= _TIME_DIGITS else 0


def with_rest(call: Call, vendor: DeviceType) -> Pod:
    """The pod as it will be when the call is committed."""
    pod = call.pod
    annotations = {**pod.annotations, vendor.to_allocate_key: call.rest_text}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations))


def _expects_allocate(pod: Pod, node: str) -> bool:
    """Bound here, not started, and handed over by the scheduler."""
    here = pod.spec.node_name == node and pod.status.phase in ("", "Pending")
    return here and pod.annotations.get(BIND_PHASE) == PHASE_ALLOCATING


def _waiting(pod: Pod, vendor: DeviceType) -> _Waiting:
    text = pod.annotations.get(vendor.to_allocate_key, "")
    try:
        return _Waiting(pod, decode_shares(text, f"pod {pod.key} annotation {vendor.to_allocate_key}"))
    except DecodeError as error:
        return _Waiting(pod, (), error.problem)


def _call(waiting: _Waiting, segment: int, vendor: DeviceType) -> Call:
    rest = encode_shares((*waiting.segments[:segment], (), *waiting.segments[segment + 1 :]))
    index = _container_index(waiting, segment, vendor)
    return Call(waiting.pod, index, waiting.segments[segment], rest)


def _container_index(waiting: _Waiting, segment: int, vendor: DeviceType) -> int:
    """The container that a segment is for.

    Releases up to 2.8, and 2.10 on cards named by model, leave segments of containers without devices out. The k-th
    segment with devices then belongs to the k-th container that asks for devices; the record that is never consumed
    tells which k it is.
    """
    containers = waiting.pod.containers
    if len(waiting.segments) >= len(containers):
        return segment
    try:
        record = decode_shares(waiting.pod.annotations.get(vendor.allocated_key, ""), vendor.allocated_key)
    except DecodeError:
        record = waiting.segments
    full = record if len(record) == len(waiting.segments) else waiting.segments
    rank = sum(1 for shares in full[:segment] if shares)
    asking = [at for at, container in enumerate(containers) if _asks(container, vendor)]
    return asking[rank] if rank < len(asking) else segment


def _asks(container: Container, vendor: DeviceType) -> bool:
    count = {**container.requests, **container.limits}.get(vendor.count_resource, 0)
    return str(count) != "0"


def _nobody(waiting: Sequence[_Waiting], node: str, count: int, vendor: DeviceType) -> CallRefusal:
    asked = f"an Allocate of {count} {vendor.count_resource}"
    if not waiting:
        hint = "it was scheduled without HAMi's webhook or scheduler"
        return CallRefusal(f"no binding pod found on node {node} for {asked}: {hint}")
    candidates = "; ".join(each.described() for each in sorted(waiting, key=lambda each: each.pod.key))
    return CallRefusal(f"device number not matched: on node {node} {asked} fits not exactly one of {candidates}")
