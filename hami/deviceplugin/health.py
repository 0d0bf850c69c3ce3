"""Which cards are in service: error events and silence take a card out, quiet and an answer bring it back.

Pure: time is passed in. Source: spec/node 4; reports B88 (recovery), B89 (application errors), B107 (lost cards).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hami.deviceplugin.settings import HealthSettings
from hami.nvml.probe import CRITICAL_ERROR, HealthEvent

NO_REASON: Final = ""
_XID_SEPARATOR: Final = ","


def ignored_xids(disabled: str, enabled: str, always: frozenset[int] = HealthSettings().ignored_xids) -> HealthSettings:
    """Health settings from the texts of DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS, as NVIDIA's plugin.

    `all` or `xids` in the first turns checks off; numbers in it are ignored; the second wins over ignored numbers.
    """
    off = {word.strip().lower() for word in disabled.split(_XID_SEPARATOR)}
    on = {word.strip().lower() for word in enabled.split(_XID_SEPARATOR)}
    ignored = frozenset() if "all" in on else (always | _numbers(off)) - _numbers(on)
    return HealthSettings(enabled=not off & {"all", "xids"}, ignored_xids=ignored)


class HealthTracker:
    """Remembers why each card is out of service."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._errors: dict[str, tuple[float, str]] = {}
        self._lost: dict[str, str] = {}

    def events(self, events: Iterable[HealthEvent], known: Iterable[str], now_s: float) -> None:
        """Takes error events. One that names no known card concerns all cards (spec/node 4)."""
        cards = set(known)
        for event in events:
            if event.kind != CRITICAL_ERROR or event.code in self._settings.ignored_xids:
                continue
            for uuid in {event.uuid} & cards or cards:
                self._errors[uuid] = (now_s, f"XID {event.code}")

    def lost(self, lost: Mapping[str, str]) -> None:
        """Takes the complete set of cards that do not answer now."""
        self._lost = dict(lost)

    def unhealthy(self, now_s: float) -> dict[str, str]:
        """Cards out of service now, each with the reason."""
        quiet_s = self._settings.xid_quiet_s
        if quiet_s > 0:
            self._errors = {
                uuid: (seen_s, why)
                for uuid, (seen_s, why) in self._errors.items()
                if now_s - seen_s < quiet_s or uuid in self._lost
            }
        reasons = {uuid: why for uuid, (_, why) in self._errors.items()}
        reasons.update({uuid: f"does not answer: {why}" for uuid, why in self._lost.items()})
        return reasons


def _numbers(words: Iterable[str]) -> frozenset[int]:
    return frozenset(int(word) for word in words if word.isascii() and word.isdigit())
