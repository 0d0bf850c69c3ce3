"""Which cards are in service: errors, damage and silence take a card out; quiet, a reset or the operator bring it back.

Pure: time is passed in. Source: spec/node 4; reports B88 (recovery), B89 (application errors), B107 (lost cards).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hami.deviceplugin.settings import HealthSettings, Recovery
from hami.nvml.probe import CRITICAL_ERROR, ECC_DOUBLE_BIT, HealthEvent

DOUBLE_BIT_XID: Final = 48
"""The driver reports a double-bit error as this XID too, so that the lists of XIDs hold for the event as well."""
_SEPARATOR: Final = ","


def ignored_xids(disabled: str, enabled: str, always: frozenset[int] = HealthSettings().ignored_xids) -> HealthSettings:
    """Health settings from the texts of DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS, as NVIDIA's plugin.

    `all` or `xids` in the first turns checks off; numbers in it are ignored; the second wins over ignored numbers.
    """
    off = {word.strip().lower() for word in disabled.split(_SEPARATOR)}
    on = {word.strip().lower() for word in enabled.split(_SEPARATOR)}
    ignored = frozenset() if "all" in on else (always | _numbers(off)) - _numbers(on)
    return HealthSettings(enabled=not off & {"all", "xids"}, ignored_xids=ignored)


class HealthTracker:
    """Remembers why each card is out of service."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._errors: dict[str, tuple[float, str]] = {}
        self._lost: dict[str, str] = {}
        self._damaged: dict[str, str] = {}
        self._all_lost = False

    def events(self, events: Iterable[HealthEvent], known: Iterable[str], now_s: float) -> None:
        """Takes error events. One that names no known card concerns all cards (spec/node 4)."""
        cards = set(known)
        for event in events:
            why = self._counts(event)
            for uuid in ({event.uuid} & cards or cards) if why else ():
                self._errors[uuid] = (now_s, why)

    def lost(self, lost: Mapping[str, str]) -> None:
        """Takes the complete set of cards that do not answer now. One that answers again was reset."""
        if Recovery.RESET in self._settings.recovery and not self._all_lost:
            for uuid in self._lost.keys() - lost.keys():
                self._errors.pop(uuid, None)
        self._lost = dict(lost)
        self._all_lost = False

    @property
    def answered(self) -> bool:
        """Whether the driver did when it was asked last."""
        return not self._all_lost

    def silent_driver(self, known: Iterable[str], why: str) -> None:
        """The driver itself does not answer: no card can be used, and nothing says that one was reset."""
        self._lost = dict.fromkeys(known, why)
        self._all_lost = True

    def damaged(self, damaged: Mapping[str, str]) -> None:
        """Takes the complete set of cards that answer and must not be used."""
        self._damaged = dict(damaged)

    def forgive(self, uuids: Iterable[str]) -> frozenset[str]:
        """Forgets the errors of these cards, by the operator's word; which of them had any."""
        had = frozenset(uuids) & self._errors.keys()
        for uuid in had:
            del self._errors[uuid]
        return had

    def unhealthy(self, now_s: float) -> dict[str, str]:
        """Cards out of service now, each with the reason."""
        quiet_s = self._settings.xid_quiet_s
        if Recovery.QUIET in self._settings.recovery and quiet_s > 0:
            self._errors = {
                uuid: (seen_s, why)
                for uuid, (seen_s, why) in self._errors.items()
                if now_s - seen_s < quiet_s or uuid in self._lost
            }
        reasons = {uuid: why for uuid, (_, why) in self._errors.items()}
        reasons.update(self._damaged)
        reasons.update({uuid: f"does not answer: {why}" for uuid, why in self._lost.items()})
        return reasons

    def _counts(self, event: HealthEvent) -> str:
        """What the event is called where it takes a card out; empty where it does not."""
        if event.kind == CRITICAL_ERROR and event.code not in self._settings.ignored_xids:
            return f"XID {event.code}"
        if event.kind == ECC_DOUBLE_BIT and DOUBLE_BIT_XID not in self._settings.ignored_xids:
            return "double-bit memory error"
        return ""


def _numbers(words: Iterable[str]) -> frozenset[int]:
    return frozenset(int(word) for word in words if word.isascii() and word.isdigit())
