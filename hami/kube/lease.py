"""A Lease as an observer sees it: who holds it, and until when by our clock (Kubernetes coordination.k8s.io/v1)."""

from __future__ import annotations

from typing import Final

import msgspec

from hami.core.objects import ObjectMeta
from hami.core.versions import is_older

_DEFAULT_DURATION_S: Final = 15
"""kube-scheduler's `leaderElection.leaseDuration`, where a Lease names none."""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Lease(msgspec.Struct, frozen=True):
    """A Lease, as far as hami reads it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


lease_decoder: Final = msgspec.json.Decoder(Lease)


class ObservedLease:
    """The newest state of one Lease and when it was last seen to be renewed.

    Stamps in the Lease are another machine's clock and only compared for being different (as client-go does).
    """

    def __init__(self) -> None:
        self._uid = ""
        self._version = ""
        self._spec = LeaseSpec()
        self._renewed_at_s = 0.0

    @property
    def holder(self) -> str:
        """The holder's identity; empty where nobody holds the Lease."""
        return self._spec.holder_identity or ""

    @property
    def holder_host(self) -> str:
        """The part of the identity that client-go takes from the host's name: `<hostname>_<uuid>`."""
        host, _, rest = self.holder.rpartition("_")
        return host or rest

    @property
    def valid_until_s(self) -> float:
        """Monotonic seconds at which the Lease ends unless it is renewed; 0 where nobody holds it."""
        duration_s = self._spec.lease_duration_seconds or _DEFAULT_DURATION_S
        return self._renewed_at_s + duration_s if self.holder else 0.0

    @property
    def version(self) -> str:
        """The resource version of the newest state."""
        return self._version

    def forget_version(self) -> None:
        """The API server's history has gone back: whatever it shows next is the newest state."""
        self._version = ""

    def take(self, lease: Lease, now_s: float) -> None:
        """The Lease as read or watched; one that is older than what we know is ignored."""
        meta = lease.metadata
        if meta.uid == self._uid and is_older(meta.resource_version, self._version):
            return
        if lease.spec != self._spec or meta.uid != self._uid:
            self._renewed_at_s = now_s
        self._uid, self._version, self._spec = meta.uid, meta.resource_version, lease.spec

    def lose(self) -> None:
        """The Lease does not exist."""
        self._uid = self._version = ""
        self._spec = LeaseSpec()
