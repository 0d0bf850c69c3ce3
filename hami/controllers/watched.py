"""Which single objects are watched, and what is told about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from hami.core.errors import ConfigError

ADMISSION_GROUP: Final = "admissionregistration.k8s.io"


class Watched(msgspec.Struct, frozen=True):
    """One object by name. An empty `namespace` is a cluster-wide kind, an empty `group` the core group."""

    plural: str
    name: str
    namespace: str = ""
    group: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def title(self) -> str:
        """As `kubectl get` has it: `configmaps/hami-device`."""
        return f"{self.plural}/{self.name}"

    @property
    def path(self) -> str:
        """Where the kind is listed."""
        root = f"/apis/{self.api_version}" if self.group else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{self.plural}" if self.namespace else f"{root}/{self.plural}"


Told = Callable[[Mapping[str, Any] | None], None]
"""Called on the event loop of the process with the object as the API server has it; None when it is not there."""


def config_map(namespace: str, name: str) -> Watched:
    """One ConfigMap by name."""
    return Watched("configmaps", name, namespace)


def secret(namespace: str, name: str) -> Watched:
    """One Secret by name."""
    return Watched("secrets", name, namespace)


def webhook_configuration(name: str) -> Watched:
    """One MutatingWebhookConfiguration by name."""
    return Watched("mutatingwebhookconfigurations", name, group=ADMISSION_GROUP)


def namespace_of(watched: Mapping[Watched, Told]) -> str:
    """The one namespace of all namespaced objects, empty if there are none. Raises ConfigError for two."""
    namespaces = sorted({each.namespace for each in watched if each.namespace})
    if len(namespaces) > 1:
        # One kopf operator watches each kind in each of its namespaces: rights on one object would not be enough.
        raise ConfigError(f"objects to follow must be in one namespace, found {' and '.join(namespaces)}")
    return namespaces[0] if namespaces else ""
