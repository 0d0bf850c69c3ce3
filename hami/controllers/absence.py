"""Notices that an object is not there: never was, or went while its watch was cut. kopf tells neither."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import structlog

from hami.controllers.watched import Told, Watched
from hami.core.errors import HamiError
from hami.kube.client import ApiClient
from hami.kube.listing import decode_answer


class _Listed(msgspec.Struct):
    items: list[msgspec.Raw]


_decoder: Final = msgspec.json.Decoder(_Listed)

log = structlog.get_logger("hami.controllers")


class Absence:
    """Lists each object by name now and then, which needs no other right than its watch does."""

    def __init__(self, client: ApiClient, watched: Mapping[Watched, Told], period_s: float) -> None:
        self._client = client
        self._watched = watched
        self._period_s = period_s
        self._news = dict.fromkeys(watched, 0)
        self._missing: set[Watched] = set()

    def told(self, each: Watched, found: Mapping[str, Any] | None) -> None:
        """The watch has told of the object; None: that it was deleted."""
        self._news[each] += 1
        if found is None:
            self._missing.add(each)
        else:
            self._missing.discard(each)

    async def look(self) -> None:
        """Looks until cancelled. What fails is the watches' to tell, which ask for the same."""
        while True:
            for each in self._watched:
                if each not in self._missing:
                    await self._look_at(each)
            await asyncio.sleep(self._period_s)

    async def _look_at(self, each: Watched) -> None:
        news = self._news[each]
        try:
            missing = await self._is_missing(each)
        except HamiError as error:
            log.debug("absence not looked at", what=each.title, why=str(error))
            return
        # What the watch told meanwhile is newer.
        if missing and self._news[each] == news:
            log.warning("not found", what=each.title, namespace=each.namespace)
            self._missing.add(each)
            self._watched[each](None)

    async def _is_missing(self, each: Watched) -> bool:
        query = {"fieldSelector": f"metadata.name={each.name}"}
        answer = await self._client.request("GET", each.path, params=query)
        return not decode_answer(answer, _decoder, each.path).items
