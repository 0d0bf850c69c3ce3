"""A device configuration that changes while everything runs: the newest good one is in force, and a bad one is told.

It comes from a file, looked at every few seconds, or from the ConfigMap that the chart makes, told by
`controllers`: then the mounted file is late by up to a minute and only read at start.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

from hami.config import device_config, reading
from hami.config.device_config import DeviceConfig
from hami.core.device_type import Registry
from hami.core.errors import ConfigError
from hami.core.keys import EVENT_INVALID_CONFIGURATION
from hami.obs import metrics
from hami.vendors.nvidia.device import Nvidia

POLL_S: Final = 2.0
KEY: Final = "device-config.yaml"
"""Key of the ConfigMap, upstream's name."""

_MOST_KEYS_CHARS: Final = 200

log = structlog.get_logger("hami.config")


def registry_of(config: DeviceConfig) -> Registry:
    """The vendors that are served, under this configuration."""
    return (Nvidia(config.nvidia),)


class Events(Protocol):
    """Where a bad configuration is told; `kube.events.EventRecorder` has it."""

    def object_event(self, about: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None: ...


class _Offer(msgspec.Struct, frozen=True):
    """A configuration that came. `problem` says why there is no text."""

    source: str
    text: str = ""
    problem: str = ""


class DeviceConfigReload:
    """Holds the configuration in force and lets better ones in."""

    def __init__(
        self,
        current: DeviceConfig,
        apply: Callable[[Registry], None],
        events: Events,
        *,
        config_map: str = "",
        poll_s: float = POLL_S,
    ) -> None:
        """`apply` is called on the event loop, in one tick, with the vendors of each new good configuration.
        `config_map`: namespace/name of the ConfigMap, where it comes from one."""
        self.current = current
        self._apply = apply
        self._events = events
        self._title = f"ConfigMap {config_map}"
        self._poll_s = poll_s
        self._newest: _Offer | None = None
        self._judged: _Offer | None = None
        self._about: Mapping[str, Any] | None = None
        """The ConfigMap as it was seen last, which a deletion is told about."""
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
        """The ConfigMap as it is now, None when it was deleted or is not there."""
        if found is None:
            return self._offer(_Offer(self._title, problem="it does not exist"))
        self._about = found
        try:
            return self._offer(_Offer(f"{self._title} {KEY}", _text_of(found)))
        except ConfigError as error:
            return self._offer(_Offer(self._title, problem=str(error)))

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
        if offer == self._judged:
            # Told again, as each new list does, or with other labels.
            return None
        self._judged = offer
        try:
            if offer.problem:
                raise ConfigError(f"{offer.source}: {offer.problem}")
            # YAML takes its time (design 6).
            fresh = await asyncio.to_thread(device_config.parse, offer.text, offer.source)
        except ConfigError as error:
            return self._refuse(error)
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

    def _refuse(self, error: ConfigError) -> None:
        metrics.device_config_current.set(0)
        metrics.device_config_reloads.labels("refused").inc()
        log.error("device configuration not taken, the last good one stays in force", why=str(error))
        if self._about is not None:
            message = f"not taken, the last good configuration stays in force: {error}"
            self._events.object_event(self._about, warning=True, reason=EVENT_INVALID_CONFIGURATION, message=message)


def _text_of(config_map: Mapping[str, Any]) -> str:
    """The configuration's text, also where kubectl put it under `binaryData`. Raises ConfigError."""
    data, binary = config_map.get("data") or {}, config_map.get("binaryData") or {}
    if KEY in data:
        return str(data[KEY])
    if KEY in binary:
        try:
            return base64.b64decode(binary[KEY], validate=True).decode()
        except ValueError as error:
            raise ConfigError(f"binaryData.{KEY} is no UTF-8 text: {error}") from error
    keys = ", ".join(sorted({*data, *binary})) or "none"
    raise ConfigError(f"it has no key {KEY}; its keys are {keys[:_MOST_KEYS_CHARS]}")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> _Offer:
    try:
        return _Offer(str(path), reading.read_bytes(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        return _Offer(str(path), problem=f"cannot be read: {error}")
