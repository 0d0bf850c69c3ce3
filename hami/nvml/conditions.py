"""What is wrong with cards, through pynvml: error events, silence, memory that cannot be repaired (spec/node 4)."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pynvml

from hami.nvml.offered import NOT_OFFERED, offered, words
from hami.nvml.probe import CRITICAL_ERROR, ECC_DOUBLE_BIT, ECC_SINGLE_BIT, NO_EVENTS, HealthEvent

_KINDS: Final = {
    pynvml.nvmlEventTypeXidCriticalError: CRITICAL_ERROR,
    pynvml.nvmlEventTypeDoubleBitEccError: ECC_DOUBLE_BIT,
    pynvml.nvmlEventTypeSingleBitEccError: ECC_SINGLE_BIT,
}


@dataclass(slots=True)
class EventWatch:
    """A set of events that the driver fills. Cards without error events are in `silent`, as events of that kind."""

    events: Any
    uuids: dict[int | None, str]
    """By the handle's address: a lost card cannot be asked for its name any more."""
    silent: tuple[HealthEvent, ...] = ()

    def wait(self, timeout_ms: int) -> tuple[HealthEvent, ...]:
        """The next event, if one comes. Raises NVMLError."""
        try:
            data = pynvml.nvmlEventSetWait_v2(self.events, timeout_ms)
        except pynvml.NVMLError_Timeout:
            return ()
        kind = _KINDS.get(data.eventType, "")
        uuid = self.uuids.get(_address(data.device)) or _name(data.device)
        return (HealthEvent(uuid, kind, int(data.eventData) if kind == CRITICAL_ERROR else 0),)

    def free(self) -> None:
        """Gives the set back; it is gone with the session in any case."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self.events)


def watch_events() -> EventWatch:
    """Asks for the errors of every card that offers them. Raises NVMLError where the driver has no events at all."""
    wanted = 0
    for kind in _KINDS:
        wanted |= kind
    watch = EventWatch(pynvml.nvmlEventSetCreate(), {})
    silent = []
    for handle, uuid in _handles():
        watch.uuids[_address(handle)] = uuid
        try:
            supported = wanted & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            if supported:
                pynvml.nvmlDeviceRegisterEvents(handle, supported, watch.events)
        except pynvml.NVMLError:
            supported = 0
        if not supported:
            silent.append(HealthEvent(uuid, NO_EVENTS))
    watch.silent = tuple(silent)
    return watch


def read_lost() -> dict[str, str]:
    """Cards that do not answer, by uuid, each with what the driver said. Raises NVMLError if none can be asked."""
    lost = {}
    for handle, uuid in _handles():
        try:
            pynvml.nvmlDeviceGetMemoryInfo(handle)
        except NOT_OFFERED:
            continue
        except pynvml.NVMLError as error:
            lost[uuid] = str(error)
    return lost


def read_damaged() -> dict[str, str]:
    """Cards with memory rows that could not be replaced by spare ones, by uuid. Raises NVMLError."""
    damaged = {}
    for handle, uuid in _handles():
        try:
            rows = offered(lambda handle=handle: pynvml.nvmlDeviceGetRemappedRows(handle), None)  # type: ignore[misc]
        except pynvml.NVMLError:
            # It does not answer: `read_lost` says so.
            continue
        if rows is not None and rows[3]:
            damaged[uuid] = "a memory row could not be remapped"
    return damaged


def _handles() -> Iterator[tuple[Any, str]]:
    """Each card that has a name. One without is a problem in `cards`, and missing there."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = words(partial(pynvml.nvmlDeviceGetUUID, handle))
        except pynvml.NVMLError:
            continue
        yield handle, uuid


def _name(handle: Any) -> str:
    try:
        return words(partial(pynvml.nvmlDeviceGetUUID, handle))
    except pynvml.NVMLError:
        return ""


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
