"""What the API server does to a pod: defaults, canonical quantities, validation, what an update may change."""

from __future__ import annotations

from typing import Final

from hami.sim import quantity
from hami.sim.apiserver.names import label_faults
from hami.sim.errors import FieldFault
from hami.sim.objects import Obj, clone, dig, timestamp

_SPEC_DEFAULTS: Final[Obj] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
    "securityContext": {},
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
}
_CONTAINER_DEFAULTS: Final[Obj] = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}
_DEFAULT_TOLERATIONS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_UPDATABLE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def containers_of(spec: Obj) -> list[Obj]:
    """Init containers, then app containers."""
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _default_container(container: Obj) -> None:
    for key, value in _CONTAINER_DEFAULTS.items():
        if container.get(key) is None:
            container[key] = clone(value)
    image = str(container.get("image", ""))
    tag = image.rsplit("/", 1)[-1]
    latest = "@" not in tag and (":" not in tag or tag.endswith(":latest"))
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    resources = container["resources"]
    for part in ("limits", "requests"):
        if resources.get(part):
            resources[part] = {name: quantity.canonical(value) for name, value in resources[part].items()}
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def set_defaults(pod: Obj) -> None:
    """SetDefaults_Pod and _PodSpec, in place. Raises ValueError where a quantity cannot be read.

    Runs before and after the webhooks, so that a limit which a webhook adds gets its request too.
    """
    spec = pod.setdefault("spec", {})
    for key, value in _SPEC_DEFAULTS.items():
        if spec.get(key) is None:
            spec[key] = clone(value)
    for container in containers_of(spec):
        _default_container(container)


def add_tolerations(pod: Obj) -> None:
    """The admission plugin DefaultTolerationSeconds, in place."""
    tolerations = pod["spec"].setdefault("tolerations", [])
    for key in _DEFAULT_TOLERATIONS:
        if any(have.get("key") in (key, None) and have.get("effect") in ("NoExecute", None) for have in tolerations):
            continue
        tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def qos_class(pod: Obj) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory alone."""
    requests: list[Obj] = []
    for container in containers_of(pod["spec"]):
        resources = container.get("resources") or {}
        limits, asked = resources.get("limits") or {}, resources.get("requests") or {}
        requests.append({name: (asked.get(name), limits.get(name)) for name in ("cpu", "memory")})
    if all(value == (None, None) for entry in requests for value in entry.values()):
        return "BestEffort"
    guaranteed = all(asked is not None and asked == limit for entry in requests for asked, limit in entry.values())
    return "Guaranteed" if guaranteed else "Burstable"


def prepare_create(pod: Obj) -> None:
    """Status of a new pod, in place: nothing that the client sent stays."""
    pod["metadata"]["generation"] = 1
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(pod)}
    if pod["spec"].get("schedulingGates"):
        pod["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastTransitionTime": timestamp(),
            }
        ]


def _extended_faults(container: Obj, path: str) -> list[FieldFault]:
    faults = []
    limits, requests = dig(container, "resources", "limits", default={}), dig(container, "resources", "requests")
    for part, amounts in (("limits", limits), ("requests", requests or {})):
        for name, value in amounts.items():
            where = f"{path}.resources.{part}[{name}]"
            amount = quantity.parse(value)
            if amount < 0:
                faults.append(FieldFault.invalid(where, value, "must be greater than or equal to 0"))
            if "/" not in name and name not in _NATIVE and not name.startswith("hugepages-"):
                faults.append(FieldFault.invalid(where, name, "must be a standard resource for containers"))
            elif "/" in name and amount.denominator != 1:
                faults.append(FieldFault.invalid(where, value, "must be an integer"))
    return faults + _request_faults(limits, requests or {}, path)


def _request_faults(limits: Obj, requests: Obj, path: str) -> list[FieldFault]:
    faults = []
    for name, value in requests.items():
        where, overcommit = f"{path}.resources.requests", name in _NATIVE
        if name not in limits:
            if not overcommit:
                text = "Limit must be set for non overcommitable resources"
                faults.append(FieldFault.required(f"{path}.resources.limits", text))
        elif not overcommit and quantity.parse(value) != quantity.parse(limits[name]):
            faults.append(FieldFault.invalid(where, value, f"must be equal to {name} limit of {limits[name]}"))
        elif quantity.parse(value) > quantity.parse(limits[name]):
            text = f"must be less than or equal to {name} limit of {limits[name]}"
            faults.append(FieldFault.invalid(where, value, text))
    return faults


def _container_faults(containers: list[Obj], path: str, seen: set[str]) -> list[FieldFault]:
    faults = []
    for index, container in enumerate(containers):
        where, name = f"{path}[{index}]", str(container.get("name") or "")
        if not name:
            faults.append(FieldFault.required(f"{where}.name"))
        else:
            faults += label_faults(f"{where}.name", name)
        if name and name in seen:
            faults.append(FieldFault.duplicate(f"{where}.name", name))
        seen.add(name)
        if not container.get("image"):
            faults.append(FieldFault.required(f"{where}.image"))
        faults += _extended_faults(container, where)
    return faults


def validate(pod: Obj) -> list[FieldFault]:
    """The part of ValidatePod that users of shares can run into: containers, names, resources."""
    spec = pod["spec"]
    if not spec.get("containers"):
        return [FieldFault.required("spec.containers")]
    seen: set[str] = set()
    faults = _container_faults(spec["containers"], "spec.containers", seen)
    return faults + _container_faults(spec.get("initContainers") or [], "spec.initContainers", seen)


def _comparable(spec: Obj, images_from: Obj) -> Obj:
    """`spec` without what an update may change (images are taken from the other side)."""
    result = {k: v for k, v in spec.items() if k not in ("activeDeadlineSeconds", "schedulingGates", "tolerations")}
    for part in ("containers", "initContainers"):
        old = images_from.get(part) or []
        result[part] = [
            {**container, "image": old[index].get("image") if index < len(old) else None}
            for index, container in enumerate(spec.get(part) or [])
        ]
    return result


def validate_update(pod: Obj, old: Obj) -> list[FieldFault]:
    """ValidatePodUpdate: the spec is fixed but for images, deadline, more tolerations and fewer scheduling gates."""
    new_spec, old_spec = pod["spec"], old["spec"]
    if _comparable(new_spec, old_spec) != _comparable(old_spec, old_spec):
        return [FieldFault.forbidden("spec", _UPDATABLE)]
    have = new_spec.get("tolerations") or []
    if any(toleration not in have for toleration in old_spec.get("tolerations") or []):
        text = "existing toleration can not be modified except its tolerationSeconds"
        return [FieldFault.forbidden("spec.tolerations", text)]
    gates = old_spec.get("schedulingGates") or []
    if any(gate not in gates for gate in new_spec.get("schedulingGates") or []):
        return [FieldFault.forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate")]
    return []
