"""From a pod to the shape of its request: what the evaluator needs, hashable.

Source: spec/scheduler 2.1 (annotations), 4.1 (requests), 4.5 (policies).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hami.core.allocation import container_kinds
from hami.core.device_type import Refusal, Registry
from hami.core.keys import DEVICE_SCORING_WEIGHTS, GPU_SCHEDULER_POLICY, NODE_SCHEDULER_POLICY
from hami.core.model import ContainerRequest, DeviceRequest, PodRequest, Policies, Weights
from hami.core.objects import Container, Pod
from hami.core.policy_words import DEVICE_POLICIES, NODE_POLICIES

_WEIGHT_NAMES: Final = ("slot", "core", "memory")


def pod_request(pod: Pod, registry: Registry, defaults: Policies) -> PodRequest | Refusal:
    """The pod's request; a Refusal names the container and the number, or the annotation, that cannot be read.

    Admission refuses unknown policy words; a pod that missed it is scheduled by the process's policies.
    """
    containers: list[ContainerRequest] = []
    for kind, container in zip(container_kinds(pod), pod.containers, strict=True):
        devices = _container_devices(container, registry)
        if isinstance(devices, Refusal):
            return devices
        containers.append(ContainerRequest(kind, devices))
    if not any(container.devices for container in containers):
        return PodRequest(tuple(containers))
    policies = read_policies(pod.annotations, defaults)
    if isinstance(policies, Refusal):
        return policies
    words = {request.vendor for container in containers for request in container.devices}
    selectors = tuple((vendor.word, vendor.selectors(pod.annotations)) for vendor in registry if vendor.word in words)
    return PodRequest(tuple(containers), selectors, policies)


def read_policies(annotations: Mapping[str, str], defaults: Policies) -> Policies | Refusal:
    """Policies of a pod's annotations over the process's defaults; Refusal for weights that cannot be read.

    An annotation with a word that is no policy is as none: upstream 2.10 quietly takes spread for it (HAMi #2767).
    """
    weights = read_weights(annotations, defaults.weights)
    if isinstance(weights, Refusal):
        return weights
    node = annotations.get(NODE_SCHEDULER_POLICY, "").strip()
    device = split_words(annotations.get(GPU_SCHEDULER_POLICY, ""))
    known = device and all(word in DEVICE_POLICIES for word in device)
    return Policies(
        node=node if node in NODE_POLICIES else defaults.node,
        device=device if known else defaults.device,
        weights=weights,
    )


def read_weights(annotations: Mapping[str, str], default: Weights) -> Weights | Refusal:
    """`slot=…,core=…,memory=…`: each exactly once, whole numbers from 0, at least one above 0."""
    text = annotations.get(DEVICE_SCORING_WEIGHTS)
    if text is None:
        return default
    weights: dict[str, int] = {}
    for item in text.split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        known = name in _WEIGHT_NAMES and name not in weights
        if not known or not re.fullmatch("[0-9]{1,9}", value, re.ASCII):
            return _bad_weights(text)
        weights[name] = int(value)
    if len(weights) != len(_WEIGHT_NAMES) or not any(weights.values()):
        return _bad_weights(text)
    return Weights(**weights)


def split_words(text: str) -> tuple[str, ...]:
    """Items of a comma list without blanks around them; empty items are skipped."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _bad_weights(text: str) -> Refusal:
    allowed = "slot=<n>,core=<n>,memory=<n>, each once, whole numbers from 0 to 999999999, at least one above 0"
    return Refusal(f"invalid {DEVICE_SCORING_WEIGHTS} value '{text[:100]}': must be {allowed}")


def _container_devices(container: Container, registry: Registry) -> tuple[DeviceRequest, ...] | Refusal:
    devices: list[DeviceRequest] = []
    for vendor in registry:
        request = vendor.request(container)
        if isinstance(request, Refusal):
            return request
        if request is not None:
            devices.append(request)
    return tuple(devices)
