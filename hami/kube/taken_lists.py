"""How a reflector hands a complete list over: page by page as it comes, or whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from hami.kube.listing import ApiObject

T = TypeVar("T", bound=ApiObject)
T_contra = TypeVar("T_contra", bound=ApiObject, contravariant=True)

OnReplaced = Callable[[list[T]], Awaitable[None] | None]


class Listing(Protocol[T_contra]):
    """Takes one complete list page by page: what no page had is gone when it is complete.

    A list that breaks off is never completed, and the next one starts anew.
    """

    async def take(self, objects: Sequence[T_contra]) -> None: ...

    async def complete(self) -> None: ...


class WholeList(Generic[T]):
    """A listing that hands over the whole list at once."""

    def __init__(self, on_replaced: OnReplaced[T]) -> None:
        self._on_replaced = on_replaced
        self._objects: list[T] = []

    async def take(self, objects: Sequence[T]) -> None:
        self._objects.extend(objects)

    async def complete(self) -> None:
        told = self._on_replaced(self._objects)
        if told is not None:
            await told
