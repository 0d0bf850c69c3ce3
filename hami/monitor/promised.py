"""What a container was promised, for as long as it has used none of it (HAMi issues 1794, 1814).

The in-container library fills the region at the first call of CUDA or NVML, which may come hours after the start. The
plugin's file with the limits says the same before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hami.shim.layout import CardState, RegionState
from hami.vendors.nvidia.names import ENV_MEMORY_LIMIT, ENV_SM_LIMIT, ENV_VISIBLE_DEVICES

_MIB: Final = 1024 * 1024
_LONGEST_NUMBER: Final = 18
"""Python converts no text of thousands of digits."""
_UNRANKED: Final = -1
"""Nobody waits for a container that runs nothing, and it waits for nobody."""


def promised(limits: Mapping[str, str]) -> RegionState | None:
    """The state of an idle container with these limits; None where they name no card."""
    cards = [uuid for uuid in limits.get(ENV_VISIBLE_DEVICES, "").split(",") if uuid]
    core_percent = _number(limits.get(ENV_SM_LIMIT, ""))
    states = tuple(
        CardState(
            index, uuid, _number(limits.get(f"{ENV_MEMORY_LIMIT}_{index}", "").removesuffix("m")) * _MIB, core_percent
        )
        for index, uuid in enumerate(cards)
    )
    if not states:
        return None
    return RegionState(
        minor_version=0,
        ours=False,
        cards=states,
        processes=(),
        priority=_UNRANKED,
        utilization_switch=0,
        recent_kernel=0,
        last_kernel_time_s=0,
        recent_kernel_offset=0,
        utilization_switch_offset=0,
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER else 0
