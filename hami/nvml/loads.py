"""How full and how busy cards are, through pynvml."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pynvml

from hami.nvml.offered import offered, words
from hami.nvml.probe import CardLoad

R = TypeVar("R")


def read_loads() -> tuple[CardLoad, ...]:
    """Each card, ordered by index; what fails of one hides nothing else. Raises NVMLError if none can be asked."""
    return tuple(_read_load(index) for index in range(pynvml.nvmlDeviceGetCount()))


def _read_load(index: int) -> CardLoad:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = words(partial(pynvml.nvmlDeviceGetUUID, handle))
        name = words(partial(pynvml.nvmlDeviceGetName, handle))
    except pynvml.NVMLError as error:
        return CardLoad(uuid="", index=index, name="", problems=(f"card {index}: {error}",))
    problems: list[str] = []

    def tried(what: str, read: Callable[[], R]) -> R | None:
        try:
            return offered(read, None)
        except pynvml.NVMLError as error:
            problems.append(f"{what} of card {uuid}: {error}")
            return None

    rates = tried("utilisation", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    used_bytes = tried("memory", lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used))
    return CardLoad(
        uuid=uuid,
        index=index,
        name=name,
        memory_used_bytes=used_bytes,
        gpu_percent=None if rates is None else int(rates.gpu),
        memory_controller_percent=None if rates is None else int(rates.memory),
        problems=tuple(problems),
    )
