"""How full and how busy cards are, through pynvml."""

from __future__ import annotations

import pynvml

from hami.nvml.offered import offered, text
from hami.nvml.probe import CardLoad


def read_loads() -> tuple[CardLoad, ...]:
    """Each card that answers, ordered by index. Raises NVMLError if none can be asked."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found.append(_read_load(index))
        except pynvml.NVMLError:
            # A card that fails is missing here; `lost` says why.
            continue
    return tuple(found)


def _read_load(index: int) -> CardLoad:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    rates = offered(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle), None)
    return CardLoad(
        uuid=text(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=text(pynvml.nvmlDeviceGetName(handle)),
        memory_used_bytes=offered(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used), None),
        gpu_percent=None if rates is None else int(rates.gpu),
        memory_controller_percent=None if rates is None else int(rates.memory),
    )
