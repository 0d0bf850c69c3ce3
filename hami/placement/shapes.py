"""Request shapes: what a pod asks for, worked out once for all pods that ask the same (design 6)."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from hami.core.device_type import Refusal, Registry
from hami.core.model import PodRequest, Policies
from hami.core.objects import Container, Pod
from hami.core.request import pod_request

_MOST_SHAPES: Final = 4096
_KEY_BYTES: Final = 32
_encoder = msgspec.json.Encoder()


class Shapes:
    """Memo of `core.request.pod_request` by the fields that it reads: resources, container kinds, annotations."""

    def __init__(self, registry: Registry, defaults: Policies) -> None:
        self._registry = registry
        self._defaults = defaults
        self._memo: dict[bytes, PodRequest | Refusal] = {}

    def forget(self) -> None:
        """The rules have changed."""
        self._memo.clear()

    def of(self, pod: Pod) -> PodRequest | Refusal:
        asked = (_asked(pod.spec.init_containers), _asked(pod.spec.containers), pod.metadata.annotations)
        # Annotations may have 256 KiB a pod: thousands of them are not kept.
        key = hashlib.blake2b(_encoder.encode(asked), digest_size=_KEY_BYTES).digest()
        shape = self._memo.get(key)
        if shape is None:
            if len(self._memo) >= _MOST_SHAPES:
                self._memo.clear()
            shape = self._memo[key] = pod_request(pod, self._registry, self._defaults)
        return shape


def _asked(containers: tuple[Container, ...] | None) -> list[tuple[object, ...]]:
    return [(container.name, container.resources, container.restart_policy) for container in containers or ()]
