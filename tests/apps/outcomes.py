"""What a running scheduler did, seen at the API server."""

from __future__ import annotations

from hami.sim.client import Informer
from tests.apps.rig import Rig


def bound(pods: Informer) -> int:
    return sum(bool(found["spec"].get("nodeName")) for found in pods.objects.values())


def ours(rig: Rig, verb: str, resource: str) -> int:
    """Requests of `hami scheduler`."""
    return sum(
        seen.verb == verb and resource in ("", seen.resource) and seen.user_agent.startswith("hami/")
        for seen in rig.api.seen
    )
