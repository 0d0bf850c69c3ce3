"""The pods of this node by uid, as the watch tells them (field-selected: spec.nodeName; traps T-35, T-36)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hami.core.objects import Pod


class PodBook:
    """Handlers for a reflector, and what they heard."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}

    def replaced(self, pods: list[Pod]) -> None:
        """All pods of the node."""
        self._pods = {pod.metadata.uid: pod for pod in pods}

    def changed(self, pod: Pod, *, deleted: bool) -> None:
        """One pod."""
        if deleted:
            self._pods.pop(pod.metadata.uid, None)
        else:
            self._pods[pod.metadata.uid] = pod

    def by_uid(self) -> Mapping[str, Pod]:
        """The pods now, for a thread: later changes do not show."""
        return MappingProxyType(dict(self._pods))
