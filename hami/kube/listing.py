"""Consistent lists in pages, decoded item by item into typed views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from hami.core import lenient
from hami.core.objects import ObjectMeta
from hami.kube.client import ApiClient
from hami.kube.ratelimit import Lane

PAGE_SIZE: Final = 200
"""Objects per page: one page is decoded in about a millisecond (design 6)."""


class ApiObject(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T")


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


_list_decoder: Final = msgspec.json.Decoder(_List)
decode_answer: Final = lenient.decode_answer


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. `problems` holds a text for each item that could not be decoded."""

    objects: list[T]
    problems: list[str]
    resource_version: str


async def pages(
    client: ApiClient,
    path: str,
    decoder: msgspec.json.Decoder[T],
    params: Mapping[str, str] | None = None,
    *,
    page_size: int = PAGE_SIZE,
    lane: Lane = Lane.DEFAULT,
) -> AsyncGenerator[Page[T], None]:
    """Pages of a consistent read (no resourceVersion, so the server does honour `limit`).

    Raises GoneError when the server dropped the continuation (list again), and the other errors of `ApiClient`.
    """
    query = {**(params or {}), "limit": str(page_size)}
    coming: asyncio.Future[bytes] | None = asyncio.ensure_future(client.request("GET", path, params=query, lane=lane))
    try:
        while coming is not None:
            listed = decode_answer(await coming, _list_decoder, path)
            coming = None
            if token := listed.metadata.continue_token:
                # The server makes the next page while this one is taken.
                more = {**query, "continue": token}
                coming = asyncio.ensure_future(client.request("GET", path, params=more, lane=Lane.PAGES))
            # Finding the items, decoding them and taking them are work each: not in one slice.
            await asyncio.sleep(0)
            objects, problems = decode_items(listed.items or (), decoder)
            await asyncio.sleep(0)
            yield Page(objects, problems, listed.metadata.resource_version)
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


def decode_items(
    items: list[msgspec.Raw] | tuple[msgspec.Raw, ...], decoder: msgspec.json.Decoder[T]
) -> tuple[list[T], list[str]]:
    """Decodes each item; one that does not fit the view becomes a text, not the end of the list."""
    objects: list[T] = []
    problems: list[str] = []
    for item in items:
        try:
            objects.append(lenient.lenient(decoder, item))
        except msgspec.DecodeError as error:
            problems.append(str(error))
    return objects, problems
