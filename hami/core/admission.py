"""Admission of a pod: what the webhook changes and what it refuses (spec/scheduler 3.1, 3.2, design 5).

Upstream's decisions come in upstream's order with upstream's words; what only we refuse comes between them where it
must hold for every pod (forged keys), and after them otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

import msgspec

from hami.core import keys
from hami.core.device_type import ContainerChange, DeviceType, Refusal, Registry
from hami.core.objects import Container, Pod, Quantity, ResourceRequirements
from hami.core.pod_patch import PatchOp, container_paths, set_env, set_resources, spec_field
from hami.core.policies import check_policies

__all__ = ["Admission", "AdmissionSettings", "PatchOp", "admitted", "review"]

DEFAULT_SCHEDULER: Final = "default-scheduler"
_ALLOCATION_KEY: Final = re.compile(r"hami\.io/.+-(devices-to-allocate|allocated)")
"""Lists of other vendors' shares (spec/contract 3.3): their device plugins, too, hand out what such a list says."""
_FORBIDDEN: Final = 403
_ALLOWED: Final = 200


class AdmissionSettings(msgspec.Struct, frozen=True):
    """How this cluster admits pods."""

    scheduler_name: str = "hami-scheduler"
    """Written to spec.schedulerName; empty leaves the field alone."""
    force_overwrite_default_scheduler: bool = True
    allow_disable_control: bool = False
    """CUDA_DISABLE_CONTROL may opt a container out of its limits."""
    warn_only: bool = False
    """What upstream accepts and we refuse is a warning."""


class Admission(msgspec.Struct, frozen=True):
    """The webhook's answer. `code` is the HTTP code of a refusal; `patch` is empty if nothing changes."""

    allowed: bool
    message: str = ""
    code: int = _ALLOWED
    patch: tuple[PatchOp, ...] = ()
    warnings: tuple[str, ...] = ()


class _Change(msgspec.Struct, frozen=True):
    """What one vendor changes in one container."""

    path: str
    container: Container
    vendor: DeviceType
    change: ContainerChange


QuotaAdvice = Callable[[str, Pod], Refusal | None]
"""Whether a namespace's quota has room for the pod, as far as admission can know (spec/scheduler 3.4). The pod has the
limits that admission adds, so that memory or cores without a card count do count (report B16)."""


def review(
    pod: Pod, namespace: str, registry: Registry, settings: AdmissionSettings, quota: QuotaAdvice | None = None
) -> Admission:
    """Decides about a pod on CREATE. A pod that went through before is not changed again.

    `namespace` is the review's namespace: the object's own may be empty (spec/scheduler 3.1).
    """
    if not pod.spec.containers:
        return _denied("pod has no containers")
    warnings: list[str] = []
    forged = _forged(pod, registry)
    if forged is not None:
        if not settings.warn_only:
            return _refused(forged)
        warnings.append(forged.message)
    if _of_other_scheduler(pod, settings):
        words = "pod already has different scheduler assigned"
        return Admission(True, words, patch=_hiding(pod, registry), warnings=tuple(warnings))
    changes = _changes(pod, registry, settings, warnings)
    if isinstance(changes, Refusal):
        return _refused(changes)
    if any(each.change.found for each in changes):
        refusal = _upstream_refusal(pod, settings)
        refusal = refusal or (quota(namespace, _with_defaults(pod, changes)) if quota is not None else None)
        refusal = refusal or _own_refusal(pod, changes, settings, warnings)
        if refusal is not None:
            return _refused(refusal)
    warnings += chain.from_iterable(each.change.warnings for each in changes)
    return Admission(True, patch=_patch(pod, changes, settings), warnings=tuple(warnings))


def admitted(pod: Pod, namespace: str, registry: Registry, settings: AdmissionSettings) -> Pod | Refusal:
    """The pod as far as its requests are read, after admission; what `review` refuses is a Refusal."""
    answer = review(pod, namespace, registry, settings)
    if not answer.allowed:
        return Refusal(answer.message, answer.code)
    changes = _changes(pod, registry, settings, [])
    return pod if isinstance(changes, Refusal) else _with_defaults(pod, changes)


def _of_other_scheduler(pod: Pod, settings: AdmissionSettings) -> bool:
    name = pod.spec.scheduler_name
    taken_over = name == DEFAULT_SCHEDULER and settings.force_overwrite_default_scheduler
    return bool(name) and not taken_over and name != settings.scheduler_name


def _hiding(pod: Pod, registry: Registry) -> tuple[PatchOp, ...]:
    """What keeps containers of a pod that is not ours from cards that nobody gave them (report B22)."""
    ops: list[PatchOp] = []
    for path, container in container_paths(pod):
        env = chain.from_iterable(vendor.hiding_env(container, foreign=True) for vendor in registry)
        ops += set_env(path, container, tuple(env), ())
    return tuple(ops)


def _forged(pod: Pod, registry: Registry) -> Refusal | None:
    """Keys that only the scheduler and the plugin write, on a pod that neither has seen (report B08)."""
    own = {keys.VGPU_NODE, keys.VGPU_TIME, keys.BIND_PHASE, keys.BIND_TIME, keys.MIG_ALLOCATIONS}
    own |= set(chain.from_iterable((vendor.to_allocate_key, vendor.allocated_key) for vendor in registry))
    found = [key for key in sorted(pod.annotations) if key in own or _ALLOCATION_KEY.fullmatch(key)]
    if not found:
        return None
    return Refusal(f"annotation {', '.join(found)} is written by HAMi's scheduler only: remove it from the pod")


def _changes(pod: Pod, registry: Registry, settings: AdmissionSettings, warnings: list[str]) -> list[_Change] | Refusal:
    changes: list[_Change] = []
    for path, container in container_paths(pod):
        for vendor in registry:
            change = vendor.admit(container)
            if isinstance(change, Refusal):
                if not settings.warn_only or change.code != _FORBIDDEN:
                    return change
                warnings.append(change.message)
                change = ContainerChange(found=True)
            changes.append(_Change(path, container, vendor, change))
    return changes


def _upstream_refusal(pod: Pod, settings: AdmissionSettings) -> Refusal | None:
    for container in pod.containers:
        if container.security_context is not None and container.security_context.privileged:
            return Refusal(f"container {container.name} is privileged")
    if settings.scheduler_name and pod.spec.node_name:
        wanted = "leave spec.nodeName out, HAMi's scheduler chooses node and cards together; a nodeSelector narrows it"
        return Refusal(f"pod has node assigned ({pod.spec.node_name}): {wanted}")
    return None


def _own_refusal(
    pod: Pod, changes: Sequence[_Change], settings: AdmissionSettings, warnings: list[str]
) -> Refusal | None:
    """The first of our own objections; with `warn_only` all of them become warnings."""
    found = [each for each in changes if each.change.found]
    allow = settings.allow_disable_control
    objections = [each.vendor.check_env(each.container, allow_disable_control=allow) for each in found]
    vendors = {each.vendor.word: each.vendor for each in found}
    objections += [vendor.check_annotations(pod.annotations) for vendor in vendors.values()]
    objections.append(check_policies(pod.annotations))
    refusals = [objection for objection in objections if objection is not None]
    if settings.warn_only:
        warnings += [refusal.message for refusal in refusals]
        return None
    return refusals[0] if refusals else None


def _with_defaults(pod: Pod, changes: Sequence[_Change]) -> Pod:
    """The pod with the limits that the vendors add; only for what reads limits."""
    added: dict[str, dict[str, Quantity]] = {}
    for each in changes:
        added.setdefault(each.path, {}).update(each.change.limits)
    if not any(added.values()):
        return pod
    lists: dict[str, list[Container]] = {"initContainers": [], "containers": []}
    for path, container in container_paths(pod):
        limits = {**container.limits, **added.get(path, {})}
        resources = msgspec.structs.replace(container.resources or ResourceRequirements(), limits=limits)
        lists[path.split("/")[2]].append(msgspec.structs.replace(container, resources=resources))
    spec = msgspec.structs.replace(
        pod.spec,
        init_containers=tuple(lists["initContainers"]) or None,
        containers=tuple(lists["containers"]),
    )
    return msgspec.structs.replace(pod, spec=spec)


def _patch(pod: Pod, changes: Sequence[_Change], settings: AdmissionSettings) -> tuple[PatchOp, ...]:
    ops: list[PatchOp] = []
    if settings.scheduler_name and any(each.change.found for each in changes):
        ops += spec_field("schedulerName", pod.spec.scheduler_name, settings.scheduler_name)
    runtime = next((each.change.runtime_class_name for each in changes if each.change.runtime_class_name), "")
    if runtime and not pod.spec.runtime_class_name:
        ops += spec_field("runtimeClassName", pod.spec.runtime_class_name, runtime)
    for path, container in container_paths(pod):
        here = [each.change for each in changes if each.path == path]
        limits = dict(chain.from_iterable(change.limits for change in here))
        env = tuple(chain.from_iterable(change.env for change in here))
        dropped = tuple(chain.from_iterable(change.drop_env for change in here))
        ops += set_resources(path, container, limits)
        ops += set_env(path, container, env, dropped)
    return tuple(ops)


def _denied(message: str) -> Admission:
    return Admission(False, message, _FORBIDDEN)


def _refused(refusal: Refusal) -> Admission:
    return Admission(False, refusal.message, refusal.code)
