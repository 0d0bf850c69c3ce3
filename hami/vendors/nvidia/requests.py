"""What a container asks of NVIDIA, read exactly (spec/scheduler 4.1, reports B10, B11, B13, B14, B22).

Limits count, then requests. Numbers that cannot be meant are refused with the one that probably was.
"""

from __future__ import annotations

from typing import Final

from hami.core.device_type import Refusal
from hami.core.model import INT32_MAX, DeviceRequest
from hami.core.objects import Container, Quantity
from hami.core.units import Whole, read_whole
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.names import WORD

WHOLE_CARD_PERCENT: Final = 100
MIB: Final = 1024 * 1024
_SUFFIXED_SIZE_LIMIT_MIB: Final = 16 * MIB
"""A size with a suffix that reads as more than 16 TiB was meant in bytes."""
_UPSTREAM_ERROR_CODE: Final = 500


def resource(container: Container, name: str) -> Quantity | None:
    """The quantity of a resource: from limits, else from requests; None if neither has it."""
    value = container.limits.get(name)
    return value if value is not None else container.requests.get(name)


def read_count(container: Container, config: NvidiaConfig) -> int | Refusal:
    """Number of cards; 0 when the container asks for none."""
    return _bounded(container, config.resource_count_name, 0, INT32_MAX) or 0


def read_cores(container: Container, config: NvidiaConfig) -> int | Refusal | None:
    """Percent of each card's compute, 0 to 100; None if the container does not say."""
    return _bounded(container, config.resource_core_name, 0, 100)


def read_priority(container: Container, config: NvidiaConfig) -> int | Refusal | None:
    """Task priority (0 high, 1 low); None if the container does not say."""
    return _bounded(container, config.resource_priority_name, 0, INT32_MAX)


def read_percentage(container: Container, config: NvidiaConfig) -> int | Refusal | None:
    """Percent of each card's memory; None if the container does not say. 0 is allowed and means unset."""
    percent = _bounded(container, config.resource_memory_percentage_name, 0, 100)
    if isinstance(percent, Refusal):
        # Upstream words and code of the message (spec/scheduler 3.2, no. 1).
        written = resource(container, config.resource_memory_percentage_name)
        name = config.resource_memory_percentage_name
        words = f"invalid {name} value {written} in container {container.name}: must be an integer between 0 and 100"
        return Refusal(words, _UPSTREAM_ERROR_CODE)
    return percent


def read_memory_mib(container: Container, config: NvidiaConfig) -> int | Refusal | None:
    """MiB of each card, after the memory factor; None if the container does not say."""
    name = config.resource_memory_name
    quantity = resource(container, name)
    if quantity is None:
        return None
    factor = max(config.memory_factor, 1)
    highest = INT32_MAX // factor
    try:
        whole = read_whole(quantity)
    except ValueError as error:
        return _refusal(container, name, quantity, f"{error}; {_unit(name, factor)}")
    if _meant_in_bytes(whole, highest, factor):
        return _refusal(container, name, quantity, _meant(name, whole, factor))
    if not 0 <= whole.value <= highest:
        return _refusal(container, name, quantity, f"must be between 0 and {highest}; {_unit(name, factor)}")
    return whole.value * factor


def read_request(container: Container, config: NvidiaConfig) -> DeviceRequest | Refusal | None:
    """The container's request after defaults; None if it asks for no card."""
    count = read_count(container, config)
    if isinstance(count, Refusal):
        return count
    if count == 0:
        return None
    memory_mib = read_memory_mib(container, config)
    if isinstance(memory_mib, Refusal):
        return memory_mib
    percent = read_percentage(container, config)
    if isinstance(percent, Refusal):
        return percent
    cores = read_cores(container, config)
    if isinstance(cores, Refusal):
        return cores
    if not memory_mib and not percent:
        memory_mib = config.default_memory
    return DeviceRequest(
        vendor=WORD,
        count=count,
        memory_mib=memory_mib or 0,
        memory_percent=percent or (0 if memory_mib else WHOLE_CARD_PERCENT),
        core_percent=config.default_cores if cores is None else cores,
    )


def _bounded(container: Container, name: str, lowest: int, highest: int) -> int | Refusal | None:
    quantity = resource(container, name)
    if quantity is None:
        return None
    try:
        value = read_whole(quantity).value
    except ValueError as error:
        return _refusal(container, name, quantity, f"{error}; must be an integer between {lowest} and {highest}")
    if not lowest <= value <= highest:
        return _refusal(container, name, quantity, f"must be an integer between {lowest} and {highest}")
    return value


def _refusal(container: Container, name: str, quantity: Quantity, problem: str) -> Refusal:
    return Refusal(f"invalid {name} value {str(quantity)[:64]} in container {container.name}: {problem}")


def _unit(name: str, factor: int) -> str:
    return f"{name} counts MiB" if factor == 1 else f"{name} counts units of {factor} MiB"


def _meant_in_bytes(whole: Whole, highest: int, factor: int) -> bool:
    if whole.value <= 0:
        return False
    too_large = whole.value > highest or whole.value * factor > _SUFFIXED_SIZE_LIMIT_MIB
    return whole.binary_suffix or (whole.suffix != "" and too_large)


def _meant(name: str, whole: Whole, factor: int) -> str:
    units = whole.value // (MIB * factor)
    hint = f"write {units}" if units else "write the number without a suffix"
    return f"{_unit(name, factor)}: {hint}"
