"""Faults to order: a slow, refusing or forgetful API server, by request and for so many times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hami.core.errors import ConfigError
from hami.sim import errors
from hami.sim.objects import Obj

LATENCY: Final = "latency"
TOO_MANY: Final = "too-many-requests"
INTERNAL: Final = "internal-error"
GONE: Final = "gone"
LOST_ANSWER: Final = "lost-answer"
_LOOK_S: Final = 0.02
"""How often a request that waits looks whether it still has to."""
ACTIONS: Final = (LATENCY, TOO_MANY, INTERNAL, GONE, LOST_ANSWER)


@dataclass(slots=True)
class Fault:
    """One ordered fault.

    `action`: latency (wait `seconds`, then serve; fewer, set meanwhile, let the request go on), too-many-requests
    (429, Retry-After `seconds`), internal-error (500), gone (410), lost-answer (serve, then close the connection
    without an answer).
    `verb`: get, list, watch, create, update, patch, delete or empty for all. `resource`: `pods`, `pods/binding`,
    `nodes`, … or empty for all (`pods` does not mean its subresources). `times`: how many requests it hits,
    None for all until it is removed. `after` requests that match are let through first. `user_agent`: how the client's
    name begins, empty for all.
    """

    action: str
    verb: str = ""
    resource: str = ""
    name: str = ""
    seconds: float = 1.0
    times: int | None = None
    after: int = 0
    user_agent: str = ""
    hits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ConfigError(f"fault action {self.action!r}: allowed are {', '.join(ACTIONS)}")

    def matches(self, verb: str, resource: str, name: str, user_agent: str) -> bool:
        named = self.verb in ("", verb) and self.resource in ("", resource) and self.name in ("", name)
        return named and user_agent.startswith(self.user_agent)

    @property
    def spent(self) -> bool:
        return self.times is not None and self.hits >= self.times


class Faults:
    """What is ordered now. Watches are cut and history is forgotten through the functions given by the server."""

    def __init__(self, cut_watches: Callable[[str], int], forget_history: Callable[[], None]) -> None:
        self._ordered: list[Fault] = []
        self._cut_watches = cut_watches
        self._forget_history = forget_history

    def add(self, fault: Fault) -> Fault:
        """Order a fault; keep the value to `remove` it or to read `hits`."""
        self._ordered.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        self._ordered = [have for have in self._ordered if have is not fault]

    def clear(self) -> None:
        self._ordered.clear()

    def list(self) -> list[Obj]:
        return [
            {
                "action": fault.action,
                "verb": fault.verb,
                "resource": fault.resource,
                "name": fault.name,
                "seconds": fault.seconds,
                "times": fault.times,
                "user_agent": fault.user_agent,
                "hits": fault.hits,
            }
            for fault in self._ordered
        ]

    def cut_watches(self, resource: str = "") -> int:
        """End running watches (of one resource); returns how many."""
        return self._cut_watches(resource)

    def forget_history(self) -> None:
        """Every older resourceVersion answers 410 from now on."""
        self._forget_history()

    async def apply(self, verb: str, resource: str, name: str, user_agent: str) -> bool:
        """Suffer what is ordered for this request; true where its answer has to be lost. Raises StatusError."""
        lose_answer = False
        for fault in list(self._ordered):
            if fault.spent or not fault.matches(verb, resource, name, user_agent):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            fault.hits += 1
            if fault.action == LATENCY:
                await _wait(fault)
            elif fault.action == LOST_ANSWER:
                lose_answer = True
            elif fault.action == TOO_MANY:
                raise errors.too_many_requests(int(fault.seconds))
            elif fault.action == GONE:
                raise errors.expired("The resourceVersion for the provided watch is too old.")
            else:
                raise errors.internal("a fault was ordered")
        return lose_answer


async def _wait(fault: Fault) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while (left_s := began_s + fault.seconds - loop.time()) > 0:  # noqa: ASYNC110 - a plain field, set by anybody
        await asyncio.sleep(min(left_s, _LOOK_S))
