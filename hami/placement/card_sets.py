"""Numbers for sets of cards: nodes with one number differ in card ids only, so that they share reasons."""

from __future__ import annotations

from typing import Final

import msgspec

from hami.core.model import Device

_MOST_REMEMBERED: Final = 4096


class CardSets:
    """Gives each set of cards a number. No number is given twice for different sets."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Device, ...], int] = {}
        self._last = 0

    def number_of(self, devices: tuple[Device, ...]) -> int:
        """The set's number."""
        key = tuple(msgspec.structs.replace(device, id="") for device in devices)
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= _MOST_REMEMBERED:
                # Cards that change for ever (health, memory): later nodes only do not share reasons with earlier ones.
                self._numbers.clear()
            self._last += 1
            number = self._numbers[key] = self._last
        return number
