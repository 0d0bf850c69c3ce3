"""The kinds that the stand-in serves, one row each, and how a URL path names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hami.sim.errors import unknown_path


@dataclass(frozen=True, slots=True)
class Kind:
    """One served resource. `store` names the collection: both event groups share one."""

    group: str
    plural: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    status: bool = False
    create_on_update: bool = False
    """PUT of a missing object makes it (events, leases)."""
    unconditional_update: bool = True
    """PUT without resourceVersion is accepted; leases refuse it."""
    store: str = ""

    @property
    def version(self) -> str:
        return "v1"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def collection(self) -> str:
        return self.store or self.plural


ADMISSION_GROUP: Final = "admissionregistration.k8s.io"

PODS = Kind("", "pods", "Pod", True, ("po",), status=True)
NODES = Kind("", "nodes", "Node", False, ("no",), status=True)
NAMESPACES = Kind("", "namespaces", "Namespace", False, ("ns",), status=True)
EVENTS = Kind("", "events", "Event", True, ("ev",), create_on_update=True)
NEW_EVENTS = Kind("events.k8s.io", "events", "Event", True, create_on_update=True)
LEASES = Kind("coordination.k8s.io", "leases", "Lease", True, (), create_on_update=True, unconditional_update=False)
QUOTAS = Kind("", "resourcequotas", "ResourceQuota", True, ("quota",), status=True)
MUTATING = Kind(ADMISSION_GROUP, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False)
SECRETS = Kind("", "secrets", "Secret", True)

ALL: Final[tuple[Kind, ...]] = (
    PODS,
    NODES,
    NAMESPACES,
    EVENTS,
    QUOTAS,
    SECRETS,
    Kind("", "configmaps", "ConfigMap", True, ("cm",)),
    Kind("", "serviceaccounts", "ServiceAccount", True, ("sa",)),
    Kind("", "services", "Service", True, ("svc",), status=True),
    Kind("", "limitranges", "LimitRange", True, ("limits",)),
    Kind("policy", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), status=True),
    LEASES,
    NEW_EVENTS,
    MUTATING,
    Kind(ADMISSION_GROUP, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False),
    Kind(ADMISSION_GROUP, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False),
    Kind(ADMISSION_GROUP, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False),
)

GROUPS: Final[tuple[str, ...]] = tuple(dict.fromkeys(kind.group for kind in ALL if kind.group))

_BY_PATH: Final = {(kind.group, kind.plural): kind for kind in ALL}


@dataclass(frozen=True, slots=True)
class Target:
    """What a request's path names: a collection (no name), an object, or a subresource of it."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> Target:
    """`/api/v1/…` and `/apis/<group>/v1/…`. Raises StatusError 404 for anything not served."""
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["api", "v1"]:
        group, rest = "", parts[2:]
    elif len(parts) > 3 and parts[0] == "apis" and parts[2] == "v1":
        group, rest = parts[1], parts[3:]
    else:
        raise unknown_path()
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    kind = _BY_PATH.get((group, rest[0])) if rest else None
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise unknown_path()
    name = rest[1] if len(rest) > 1 else ""
    if name and kind.namespaced and not namespace:
        raise unknown_path()
    return Target(kind, namespace, name, rest[2] if len(rest) > 2 else "")
