"""POST pods/{name}/binding, as registry/core/pod/storage assignPod does it: one write, annotations included."""

from __future__ import annotations

from hami.sim import errors
from hami.sim.apiserver.kinds import PODS
from hami.sim.apiserver.store import Store, Stored
from hami.sim.errors import FieldFault
from hami.sim.objects import Obj, clone, dig, set_condition


def _precondition(stored: Stored, label: str, wanted: str, have: str) -> None:
    if wanted and wanted != have:
        raise errors.precondition("", "pods", stored.obj["metadata"], label, wanted, have)


def _refusal(pod: Obj) -> str:
    name = pod["metadata"]["name"]
    if "deletionTimestamp" in pod["metadata"]:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if dig(pod, "spec", "nodeName"):
        return f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
    if dig(pod, "spec", "schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def bind(store: Store, namespace: str, name: str, binding: Obj) -> Obj:
    """Assign the pod and answer Success. Raises StatusError 400, 404, 409, 422.

    The Binding's annotations (and labels) are copied onto the pod in the write that sets nodeName. Whether the node
    exists is not checked: the real server does not either.
    """
    meta, target = binding.get("metadata") or {}, binding.get("target") or {}
    if meta.get("name") != name:
        raise errors.bad_request("name in URL does not match name in Binding object")
    if target.get("kind") not in (None, "", "Node"):
        raise errors.invalid("", "Binding", name, [FieldFault.invalid("target.kind", target["kind"], 'must be "Node"')])
    if not target.get("name"):
        raise errors.invalid("", "Binding", name, [FieldFault.required("target.name")])
    stored = store.get(PODS, namespace, name)
    have = stored.obj["metadata"]
    _precondition(stored, "UID", meta.get("uid") or "", have["uid"])
    _precondition(stored, "ResourceVersion", meta.get("resourceVersion") or "", have["resourceVersion"])
    refusal = _refusal(stored.obj)
    if refusal:
        raise errors.conflict("", "pods/binding", name, refusal)
    pod = clone(stored.obj)
    pod["spec"]["nodeName"] = target["name"]
    for part in ("annotations", "labels"):
        if meta.get(part):
            pod["metadata"][part] = {**(pod["metadata"].get(part) or {}), **meta[part]}
    set_condition(pod, {"type": "PodScheduled", "status": "True"})
    pod["status"].pop("nominatedNodeName", None)
    store.update(PODS, stored, pod)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
