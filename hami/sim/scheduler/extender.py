"""Calls to a scheduler extender, as kube-scheduler's HTTPExtender makes them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from hami.core.errors import HamiError
from hami.sim.objects import Obj, clone, dig
from hami.sim.scheduler.config import ExtenderConfig


class ExtenderError(HamiError):
    """The extender answered with an error, with something else than 200, or not at all."""


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """Node names that passed, in the extender's order, and the reasons of the others."""

    names: tuple[str, ...]
    failed: dict[str, str]
    unresolvable: dict[str, str]


def _typed(pod: Obj) -> Obj:
    """The pod as Go marshals it from the informer's cache: without kind and apiVersion."""
    return {key: value for key, value in clone(pod).items() if key not in ("kind", "apiVersion")}


class Extender:
    """One configured extender over HTTP or HTTPS."""

    def __init__(self, config: ExtenderConfig) -> None:
        self.config = config
        context: ssl.SSLContext | bool = True
        if not config.verify_tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context), timeout=aiohttp.ClientTimeout(total=config.http_timeout_s)
        )

    async def close(self) -> None:
        await self._session.close()

    def interested(self, pod: Obj) -> bool:
        """Whether a container asks for a managed resource, or none is configured."""
        if not self.config.managed:
            return True
        for container in [*dig(pod, "spec", "containers", default=[]), *dig(pod, "spec", "initContainers", default=[])]:
            for part in ("requests", "limits"):
                if self.config.managed & set(dig(container, "resources", part, default={})):
                    return True
        return False

    async def filter(self, pod: Obj, names: list[str]) -> FilterAnswer:
        """Ask with node names only. Raises ExtenderError."""
        if not self.config.filter_verb:
            return FilterAnswer(tuple(names), {}, {})
        body = {"Pod": _typed(pod), "Nodes": None, "NodeNames": names}
        answer = await self._send(self.config.filter_verb, body)
        if answer.get("Error"):
            raise ExtenderError(answer["Error"])
        passed = tuple(answer.get("NodeNames") or ())
        for name in passed:
            if name not in names:
                raise ExtenderError(
                    f'extender "{self.config.url_prefix}" claims a filtered node "{name}" which is not found in the '
                    f"input node list"
                )
        return FilterAnswer(passed, answer.get("FailedNodes") or {}, answer.get("FailedAndUnresolvableNodes") or {})

    async def bind(self, pod: Obj, node_name: str) -> None:
        """Raises ExtenderError."""
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node_name}
        answer = await self._send(self.config.bind_verb, body)
        if answer.get("Error"):
            raise ExtenderError(answer["Error"])

    async def _send(self, verb: str, body: Obj) -> Obj:
        url = f"{self.config.url_prefix.rstrip('/')}/{verb}"
        try:
            async with self._session.post(
                url, data=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
            ) as response:
                content = await response.read()
                if response.status != 200:
                    raise ExtenderError(f"failed {verb} with extender at URL {url}, code {response.status}")
        except TimeoutError as error:
            raise ExtenderError(
                f'Post "{url}": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'
            ) from error
        except aiohttp.ClientConnectorError as error:
            raise ExtenderError(
                f'Post "{url}": dial tcp {error.host}:{error.port}: connect: {error.os_error}'
            ) from error
        except aiohttp.ClientError as error:
            raise ExtenderError(f'Post "{url}": EOF') from error
        try:
            answer: Any = msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            raise ExtenderError(f"invalid answer of extender at URL {url}: {error}") from error
        return _go_names(answer) if isinstance(answer, dict) else {}


_NAMES = ("Error", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Nodes")


def _go_names(answer: Obj) -> Obj:
    """Go matches keys without regard to case."""
    known = {name.lower(): name for name in _NAMES}
    return {known.get(key.lower(), key): value for key, value in answer.items()}
