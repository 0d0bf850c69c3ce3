"""Cards whose MIG mode this plugin looks after, remembered on the host: those it may switch back (report B97)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import structlog

from hami.deviceplugin.host_files import write_atomically

_FILE: Final = "mig-cards.json"
_MODE: Final = 0o644

log = structlog.get_logger(__name__)


class OwnedCards:
    """Ids of cards. Reading never fails: a file that cannot be read owns nothing, so that nothing is taken away."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE

    def read(self) -> frozenset[str]:
        try:
            return frozenset(msgspec.json.decode(self._path.read_bytes(), type=list[str]))
        except FileNotFoundError:
            return frozenset()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("MIG cards not remembered", file=str(self._path), why=str(error))
            return frozenset()

    def add(self, card: str) -> None:
        """Remembers a card, before anything is changed on it. Raises OSError."""
        owned = self.read()
        if card not in owned:
            self._write(owned | {card})

    def remove(self, card: str) -> None:
        """Forgets a card, after its MIG mode is off. Raises OSError."""
        owned = self.read()
        if card in owned:
            self._write(owned - {card})

    def _write(self, cards: frozenset[str]) -> None:
        write_atomically(self._path, msgspec.json.encode(sorted(cards)), _MODE)
