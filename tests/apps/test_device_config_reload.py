"""Which ConfigMaps are taken, which are refused and how that is told, without a scheduler around it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from hami.apps.device_config_reload import KEY, DeviceConfigReload
from hami.config.device_config import DeviceConfig
from hami.core.device_type import Registry
from hami.obs import metrics
from hami.vendors.nvidia.config import NvidiaConfig
from tests.tools.waiting import until

Obj = dict[str, Any]


class Heard:
    """Events, as texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def object_event(self, about: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None:
        assert warning
        self.texts.append(f"{reason} {about['metadata']['name']}: {message}")


def a_map(data: Obj | None = None, binary: Obj | None = None, **labels: str) -> Obj:
    return {"metadata": {"name": "device", "labels": labels}, "data": data, "binaryData": binary}


def split(count: int) -> str:
    return f"nvidia: {{deviceSplitCount: {count}}}"


def in_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


BAD: dict[str, tuple[Obj | None, str]] = {
    "deleted": (None, "it does not exist"),
    "no data": (a_map(), f"it has no key {KEY}; its keys are none"),
    "key renamed": (
        a_map({"config.yaml": split(3)}, {"more": ""}),
        f"it has no key {KEY}; its keys are config.yaml, more",
    ),
    "bytes": (a_map(binary={KEY: in_base64(b"\xff\xfe")}), f"binaryData.{KEY} is no UTF-8 text"),
    "bytes of nothing": (a_map(binary={KEY: "***"}), f"binaryData.{KEY} is no UTF-8 text"),
    "no YAML": (a_map({KEY: "nvidia: ["}), "is no YAML"),
    "a tag that does not fit": (a_map({KEY: "nvidia: {overwriteEnv: !!bool maybe}"}), "is no YAML"),
    "empty": (a_map({KEY: ""}), "all configurations are empty"),
    "a key of nobody": (a_map({KEY: "nvidia: {deviceSplitCuont: 3}"}), "did you mean deviceSplitCount"),
    "huge": (a_map({KEY: "nvidia: {runtimeClassName: " + "x" * 900_000 + "}"}), "nvidia.runtimeClassName"),
}


class Told:
    """A reload that runs, and what came of it."""

    def __init__(self) -> None:
        self.events = Heard()
        self.applied: list[Registry] = []
        self.reload = DeviceConfigReload(
            DeviceConfig(NvidiaConfig(device_split_count=10)),
            self.applied.append,
            self.events,
            config_map="kube-system/device",
        )

    async def take(self, found: Obj | None, judged: int) -> None:
        """Tells of the object and waits until it was judged: `judged` objects since the process began."""
        self.reload.on_config_map(found)
        await until(lambda: judgements() >= judged, f"{judged} judgements")


def value(outcome: str) -> float:
    return metrics.registry.get_sample_value("hami_scheduler_device_config_reloads_total", {"outcome": outcome}) or 0.0


def judgements() -> int:
    return int(value("applied") + value("refused"))


def current() -> float | None:
    return metrics.registry.get_sample_value("hami_scheduler_device_config_current")


@contextlib.asynccontextmanager
async def running() -> Any:
    told = Told()
    task = asyncio.ensure_future(told.reload.run())
    try:
        yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_one_is_told_and_the_last_good_one_stays(name: str) -> None:
    bad, words = BAD[name]
    began, refused = judgements(), value("refused")
    async with running() as told:
        await told.take(a_map({KEY: split(5)}), began + 1)
        await told.take(bad, began + 2)
        assert current() == 0
        assert value("refused") == refused + 1
        assert told.reload.current.nvidia.device_split_count == 5
        (event,) = told.events.texts
        assert words in event
        assert event.startswith("InvalidConfiguration device: ")
        assert len(event) < 5000
        await told.take(a_map({KEY: split(6)}), began + 3)
        assert current() == 1
        assert told.reload.current.nvidia.device_split_count == 6
        assert len(told.applied) == 2


async def test_kubectls_binary_data_is_text_all_the_same() -> None:
    began = judgements()
    async with running() as told:
        await told.take(a_map(binary={KEY: in_base64(split(7).encode())}), began + 1)
        assert told.reload.current.nvidia.device_split_count == 7
        assert current() == 1


async def test_the_same_again_is_no_news() -> None:
    """As each new list brings it, and whoever sets a label."""
    began, refused = judgements(), value("refused")
    async with running() as told:
        await told.take(a_map({KEY: "nvidia: ["}), began + 1)
        for label in "ab":
            told.reload.on_config_map(a_map({KEY: "nvidia: ["}, label=label))
            await asyncio.sleep(0)
        await told.take(a_map({KEY: split(8)}), began + 2)
        assert value("refused") == refused + 1
        assert len(told.events.texts) == 1


async def test_one_that_never_was_is_told() -> None:
    """There is no object that an event could be about."""
    began = judgements()
    async with running() as told:
        await told.take(None, began + 1)
        assert current() == 0
        assert told.events.texts == []
