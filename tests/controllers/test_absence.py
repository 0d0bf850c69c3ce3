"""That an object is not there is told once, and not where the watch knows better."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from hami.controllers.absence import Absence
from hami.controllers.watched import Watched, config_map
from hami.core.errors import ApiError
from hami.kube.client import ApiClient
from tests.tools.waiting import until

MAP = config_map("kube-system", "device")
FOUND: dict[str, Any] = {"metadata": {"name": "device"}}


def _nothing() -> None:
    pass


class Listing:
    """Answers of the API server to the list of one object; the last one stays."""

    def __init__(self, *answers: bytes | ApiError) -> None:
        self._answers = list(answers)
        self.asked = 0
        self.before_answer: Callable[[], None] = _nothing

    async def request(self, method: str, path: str, *, params: dict[str, str]) -> bytes:
        assert (method, path) == ("GET", "/api/v1/namespaces/kube-system/configmaps")
        assert params == {"fieldSelector": "metadata.name=device"}
        self.asked += 1
        self.before_answer()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer


NONE, ONE = b'{"items": []}', b'{"items": [{"metadata": {"name": "device"}}]}'
REFUSED = ApiError(403, "Forbidden", "configmaps is forbidden")


async def looked(listing: Listing, turns: int = 50) -> tuple[list[Any], Absence]:
    told: list[Any] = []
    watched: dict[Watched, Any] = {MAP: told.append}
    absence = Absence(cast(ApiClient, listing), watched, 0.0)
    task = asyncio.ensure_future(absence.look())
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return told, absence


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ((NONE,), [None]),
        ((ONE,), []),
        ((ONE, ONE, NONE), [None]),
        ((REFUSED,), []),
        ((REFUSED, b"<html>", NONE), [None]),
    ],
)
async def test_told_once_when_it_is_certain(answers: tuple[bytes | ApiError, ...], told: list[None]) -> None:
    assert (await looked(Listing(*answers)))[0] == told


async def test_what_the_watch_told_while_the_list_was_out_is_newer() -> None:
    told: list[Any] = []
    listing = Listing(NONE, ONE)
    absence = Absence(cast(ApiClient, listing), {MAP: told.append}, 0.0)
    listing.before_answer = lambda: absence.told(MAP, FOUND)
    task = asyncio.ensure_future(absence.look())
    await until(lambda: listing.asked >= 5, "five looks")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert told == []
