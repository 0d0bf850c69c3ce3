"""Small changes of a pod, for questions of the kind "what if it asked for less"."""

from __future__ import annotations

import msgspec

from hami.core.objects import Container, Pod, ResourceRequirements


def with_amount(pod: Pod, index: int, resource: str, amount: int) -> Pod:
    """The pod whose container `index` (init containers first) asks for this amount, in limits and in requests."""
    inits, apps = pod.spec.init_containers or (), pod.spec.containers or ()
    changed = list(inits + apps)
    changed[index] = _asking(changed[index], resource, str(amount))
    spec = msgspec.structs.replace(
        pod.spec, init_containers=tuple(changed[: len(inits)]) or None, containers=tuple(changed[len(inits) :])
    )
    return msgspec.structs.replace(pod, spec=spec)


def without_annotation(pod: Pod, key: str) -> Pod:
    """The pod as if the annotation `key` had not been written."""
    kept = {name: value for name, value in pod.annotations.items() if name != key}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=kept))


def _asking(container: Container, resource: str, amount: str) -> Container:
    limits = {**container.limits, resource: amount}
    requests = container.requests
    if resource in requests:
        requests = {**requests, resource: amount}
    resources = ResourceRequirements(limits=limits, requests=requests or None)
    return msgspec.structs.replace(container, resources=resources)
