"""A device configuration that changes while everything runs: the newest good one is in force, and a bad one is told.

It comes from a file, looked at every few seconds, or from the ConfigMap that the chart makes, told by
`controllers`: then the mounted file is late by up to a minute and only read at start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

from hami.config import device_config
from hami.config.device_config import DeviceConfig
from hami.core.device_type import Registry
from hami.core.errors import ConfigError
from hami.core.keys import EVENT_INVALID_CONFIGURATION
from hami.obs import metrics
from hami.vendors.nvidia.device import Nvidia

POLL_S: Final = 2.0
KEY: Final = "device-config.yaml"
"""Key of the ConfigMap, upstream's name."""

log = structlog.get_logger("hami.config")


def registry_of(config: DeviceConfig) -> Registry:
    """The vendors that are served, under this configuration."""
    return (Nvidia(config.nvidia),)


class Events(Protocol):
    """Where a bad configuration is told; `kube.events.EventRecorder` has it."""

    def object_event(self, about: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None: ...


class _Offer(msgspec.Struct, frozen=True):
    """A configuration that came. `problem` says why there is no text; `about` is the object that it came from."""

    source: str
    text: str = ""
    problem: str = ""
    about: Mapping[str, Any] | None = None


class DeviceConfigReload:
    """Holds the configuration in force and lets better ones in."""

    def __init__(
        self, current: DeviceConfig, apply: Callable[[Registry], None], events: Events, *, poll_s: float = POLL_S
    ) -> None:
        """`apply` is called on the event loop, in one tick, with the vendors of each new good configuration."""
        self.current = current
        self._apply = apply
        self._events = events
        self._poll_s = poll_s
        self._newest: _Offer | None = None
        self._news = asyncio.Event()
        metrics.device_config_current.set(1)

    async def run(self) -> None:
        """Takes what comes, until cancelled; of several that came together the newest."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._newest is not None:
                await self._take(self._newest)

    def on_config_map(self, found: Mapping[str, Any] | None) -> None:
        """The ConfigMap as it is now, None when it was deleted."""
        if found is None:
            return self._offer(_Offer("ConfigMap", problem="the ConfigMap was deleted"))
        meta = found["metadata"]
        source = f"ConfigMap {meta.get('namespace', '')}/{meta['name']}"
        text = (found.get("data") or {}).get(KEY)
        if text is None:
            return self._offer(_Offer(source, problem=f"it has no key {KEY}", about=found))
        return self._offer(_Offer(f"{source} {KEY}", text, about=found))

    async def follow_file(self, path: Path) -> None:
        """Looks at the file's time and size, until cancelled."""
        seen = await asyncio.to_thread(_stamp, path)
        while True:
            await asyncio.sleep(self._poll_s)
            stamp = await asyncio.to_thread(_stamp, path)
            if stamp != seen:
                seen = stamp
                self._offer(await asyncio.to_thread(_read, path))

    def _offer(self, offer: _Offer) -> None:
        self._newest = offer
        self._news.set()

    async def _take(self, offer: _Offer) -> None:
        try:
            if offer.problem:
                raise ConfigError(f"{offer.source}: {offer.problem}")
            # YAML takes its time (design 6).
            fresh = await asyncio.to_thread(device_config.parse, offer.text, offer.source)
        except ConfigError as error:
            return self._refuse(offer, error)
        metrics.device_config_current.set(1)
        changed = [
            name
            for name in fresh.nvidia.__struct_fields__
            if getattr(fresh.nvidia, name) != getattr(self.current.nvidia, name)
        ]
        self.current = fresh
        if changed:
            self._apply(registry_of(fresh))
            metrics.device_config_reloads.labels("applied").inc()
            log.info("device configuration reloaded", source=offer.source, changed=changed)
        for note in fresh.notes:
            log.warning("device configuration", note=note)
        return None

    def _refuse(self, offer: _Offer, error: ConfigError) -> None:
        metrics.device_config_current.set(0)
        metrics.device_config_reloads.labels("refused").inc()
        log.error("device configuration not taken, the last good one stays in force", why=str(error))
        if offer.about is not None:
            message = f"not taken, the last good configuration stays in force: {error}"
            self._events.object_event(offer.about, warning=True, reason=EVENT_INVALID_CONFIGURATION, message=message)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> _Offer:
    try:
        return _Offer(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return _Offer(str(path), problem=f"cannot be read: {error}")
