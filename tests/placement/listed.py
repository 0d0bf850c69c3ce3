"""A list of pods as an audit reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from hami.core.errors import NotFoundError
from hami.core.objects import Pod


class Listed:
    """The API server's pods; `on_read` happens at each live read, as the watch may catch up meanwhile."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = {pod.metadata.name: pod for pod in pods}
        self.on_read: Callable[[], object] = lambda: None

    async def pod_pages(self) -> AsyncIterator[list[Pod]]:
        for pod in list(self.pods.values()):
            yield [pod]

    async def get_pod(self, namespace: str, name: str) -> Pod:
        self.on_read()
        if name not in self.pods:
            raise NotFoundError(404, "NotFound", name)
        return self.pods[name]
