"""Where the objects that we touch live under the API server's root (Kubernetes API conventions, core/v1)."""

from __future__ import annotations

from urllib.parse import quote

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
RESOURCE_QUOTAS = "/api/v1/resourcequotas"
DISRUPTION_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"


def node(name: str) -> str:
    return f"{NODES}/{quote(name, safe='')}"


def pods_in(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"


def pod(namespace: str, name: str) -> str:
    return f"{pods_in(namespace)}/{quote(name, safe='')}"


def binding(namespace: str, name: str) -> str:
    return f"{pod(namespace, name)}/binding"


def events_in(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/events"


def leases_in(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"


def lease(namespace: str, name: str) -> str:
    return f"{leases_in(namespace)}/{quote(name, safe='')}"


def event(namespace: str, name: str) -> str:
    return f"{events_in(namespace)}/{quote(name, safe='')}"
