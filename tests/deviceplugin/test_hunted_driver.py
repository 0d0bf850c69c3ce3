"""Drivers that are changed under a running plugin, found by hunting (NVIDIA/k8s-device-plugin#221)."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from hami.core.errors import DriverReplacedError
from hami.deviceplugin import event_reasons
from hami.nvml.simulated import SimulatedProbe
from tests.deviceplugin.bench import Bench
from tests.deviceplugin.test_process_life import Life, living


async def _exchanged(*_: object) -> NoReturn:
    raise DriverReplacedError("cards: the driver was exchanged, its library here is the old one")


def _exchange_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cards", "events"):
        monkeypatch.setattr(SimulatedProbe, name, _exchanged)


async def test_the_process_ends_for_kubelet_to_start_another(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that this process has loaded is the old one for good; a new start in place would have it too."""
    async with living(node) as life:
        _exchange_driver(monkeypatch)
        with pytest.raises(DriverReplacedError):
            await asyncio.wait_for(life.task, 60)
        assert event_reasons.DRIVER_UNAVAILABLE in [reason for reason, _ in await life.events()]
        assert len(node.kubelet.requests) == 1


async def test_at_the_start_too(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    _exchange_driver(monkeypatch)
    life = Life(node)
    life.start()
    with pytest.raises(DriverReplacedError):
        await asyncio.wait_for(life.task, 60)
    assert not node.kubelet.requests
