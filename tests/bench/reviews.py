"""AdmissionReview bodies of a given size."""

from __future__ import annotations

import json

from tests.reference.model import Object


def review_body(size_bytes: int) -> bytes:
    """A v1 review of a pod that asks for a share, padded with environment variables to about `size_bytes`."""
    limits = {"nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"}
    container: Object = {"name": "main", "image": "cuda:12", "resources": {"limits": limits}, "env": []}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"schedulerName": "default-scheduler", "containers": [container]},
    }
    missing = size_bytes - len(json.dumps(pod))
    container["env"] = [{"name": f"VARIABLE_{i:04d}", "value": "x" * 60} for i in range(max(0, missing // 98))]
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "bench", "namespace": "default", "operation": "CREATE", "object": pod},
    }
    return json.dumps(review, separators=(",", ":")).encode()
