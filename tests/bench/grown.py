"""Objects at the size that real ones have, with fields that nobody here reads: about 4 KB a pod, 9 KB a node."""

from __future__ import annotations

from tests.reference.model import Object

MANAGED = [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}]


def grown_pod(pod: Object) -> Object:
    """The pod with variables and mounts."""
    pod["metadata"]["managedFields"] = MANAGED
    container = pod["spec"]["containers"][0]
    container["env"] = [{"name": f"VARIABLE_{i}", "value": "x" * 30} for i in range(40)]
    container["volumeMounts"] = [{"name": f"v{i}", "mountPath": f"/mnt/{i}"} for i in range(10)]
    return pod


def grown_node(node: Object) -> Object:
    """The node with conditions, addresses and images."""
    node["metadata"]["managedFields"] = MANAGED
    node["metadata"]["labels"] = {f"feature.example.com/label-{i}": "true" for i in range(20)}
    now = "2026-01-01T00:00:00Z"
    node["status"] |= {
        "conditions": [
            {"type": f"Condition{i}", "status": "False", "lastHeartbeatTime": now, "lastTransitionTime": now}
            for i in range(5)
        ],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "images": [
            {"names": [f"images.example/image-{i}@sha256:{'0' * 64}", f"images.example/image-{i}:v1"], "sizeBytes": 1}
            for i in range(10)
        ],
    }
    return node
