"""Keeps the CDI specifications on this host true: written before a name of theirs is answered (spec/node 2.9).

Written whole and by rename, because runtimes read the folder at any time. One file per kind, under the name that other
generators of the same vendor use, so that two of them cannot describe one name twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog

from hami.deviceplugin.host_devices import card_node, feature, host_driver
from hami.deviceplugin.host_files import write_atomically
from hami.deviceplugin.registration import SocketIdentity, identity
from hami.deviceplugin.settings import PluginSettings
from hami.nvml.probe import CardFacts
from hami.vendors.nvidia.cdi import CdiClass, CdiDevice, document, file_name
from hami.vendors.nvidia.edits import DeviceListStrategy
from hami.vendors.nvidia.names import ENV_GDRCOPY, ENV_GDS, ENV_MOFED

_MODE: Final = 0o644
_STRATEGIES: Final = frozenset({DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI})
_FEATURES: Final = {
    ENV_GDRCOPY: CdiClass.GDRCOPY,
    ENV_GDS: CdiClass.GDS,
    ENV_MOFED: CdiClass.MOFED,
}
"""Which kind belongs to a feature's variable."""

log = structlog.get_logger(__name__)


def wanted(settings: PluginSettings) -> bool:
    """Whether any strategy hands out CDI names."""
    return not _STRATEGIES.isdisjoint(settings.device_list_strategies)


class CdiFiles:
    """Writes them when the cards, or the files on the disk, are others than last time. `ensure` and `restore` block."""

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self._cards: tuple[CardFacts, ...] = ()
        self._more: tuple[CdiDevice, ...] = ()
        self._written: dict[Path, SocketIdentity] = {}
        self._features: tuple[CdiClass, ...] = ()
        self._lock = threading.Lock()

    async def keep(self) -> None:
        """Puts back what somebody removed or changed, until cancelled: a container that starts anew asks nobody."""
        while wanted(self._settings):
            await asyncio.sleep(self._settings.cdi_interval_s)
            try:
                await asyncio.to_thread(self.restore)
            except OSError as error:
                log.warning("CDI specifications not written", why=str(error))

    def ensure(self, cards: Sequence[CardFacts], more: Sequence[CdiDevice] = ()) -> tuple[CdiClass, ...]:
        """Makes the files describe `cards` and `more` (MIG devices); which features there are. Raises OSError."""
        if not wanted(self._settings):
            return ()
        with self._lock:
            if (tuple(cards), tuple(more)) != (self._cards, self._more) or not self._unchanged():
                self._write(tuple(cards), tuple(more))
            return self._features

    def restore(self) -> None:
        """Writes the files again as they were last, where they are not so any more. Raises OSError."""
        with self._lock:
            if self._cards and not self._unchanged():
                self._write(self._cards, self._more)

    def _unchanged(self) -> bool:
        return bool(self._written) and all(identity(path) == seen for path, seen in self._written.items())

    def _write(self, cards: tuple[CardFacts, ...], more: tuple[CdiDevice, ...]) -> None:
        settings = self._settings
        driver = host_driver(settings.driver_root_here, settings.driver_root, settings.dev_root, settings.cdi_hook_path)
        if not driver.library_folders:
            log.warning("no driver libraries for CDI", root=str(settings.driver_root_here), flag="driver-root-ctr-path")
        devices = [*(_device(settings.dev_root, card) for card in cards), *more]
        found = [(kind, feature(kind, settings.dev_root)) for kind in self._asked()]
        documents = {CdiClass.GPU: document(CdiClass.GPU, devices, driver)}
        documents |= {kind: document(kind, [device]) for kind, device in found if device is not None}
        self._written = {}
        for kind, content in documents.items():
            path = settings.cdi_root / file_name(kind)
            write_atomically(path, content, _MODE)
            self._written[path] = identity(path)
        self._cards, self._more = cards, more
        self._features = tuple(kind for kind in documents if kind is not CdiClass.GPU)
        log.info("CDI specifications written", files=[str(path) for path in self._written])

    def _asked(self) -> Iterable[CdiClass]:
        return (_FEATURES[name] for name, _ in self._settings.feature_envs if name in _FEATURES)


def remove_cdi_files(cdi_root: Path) -> list[Path]:
    """Takes the specifications back; which there were. Raises OSError."""
    found = [path for kind in CdiClass if (path := cdi_root / file_name(kind)).exists()]
    for path in found:
        path.unlink(missing_ok=True)
    return found


def _device(dev_root: Path, card: CardFacts) -> CdiDevice:
    return CdiDevice((card.uuid, str(card.index)), (card_node(dev_root, card),))
