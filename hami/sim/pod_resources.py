"""What a pod asks of a node: the sum that kube-scheduler and kubelet both count (resourcehelper.PodRequests)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from hami.sim import quantity
from hami.sim.objects import Obj, dig

CPU: Final = "cpu"


def amounts(resources: Mapping[str, str | int | float] | None) -> Counter[str]:
    """Quantities as integers: CPU in thousandths, everything else whole."""
    found: Counter[str] = Counter()
    for name, value in (resources or {}).items():
        found[name] = quantity.milli(value) if name == CPU else quantity.whole(value)
    return found


def is_sidecar(container: Obj) -> bool:
    """A restartable init container (native sidecar)."""
    return container.get("restartPolicy") == "Always"


def pod_requests(pod: Obj) -> Counter[str]:
    """App containers and sidecars together, or the largest init container with the sidecars before it."""
    spec = pod.get("spec") or {}
    running: Counter[str] = Counter()
    for container in spec.get("containers") or []:
        running += amounts(dig(container, "resources", "requests"))
    sidecars: Counter[str] = Counter()
    starting: Counter[str] = Counter()
    for container in spec.get("initContainers") or []:
        asked = amounts(dig(container, "resources", "requests"))
        if is_sidecar(container):
            sidecars += asked
            starting |= sidecars
        else:
            starting |= asked + sidecars
    return ((running + sidecars) | starting) + amounts(spec.get("overhead"))
