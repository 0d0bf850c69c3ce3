"""Drivers that are changed under a running plugin, found by hunting (NVIDIA/k8s-device-plugin#221)."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from hami.core.errors import DriverReplacedError, NvmlError
from hami.deviceplugin import event_reasons
from hami.nvml.simulated import SimulatedProbe
from tests.deviceplugin.bench import CARDS, A, Bench
from tests.deviceplugin.process_life import Life, living


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


async def test_error_events_that_cannot_be_heard_are_said_once(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers without events (WSL, unified memory): cards stay in service and are still asked whether they answer
    (NVIDIA/k8s-device-plugin#1640, #2037)."""
    tries = [0]

    async def unheard(*_: object) -> NoReturn:
        tries[0] += 1
        raise NvmlError("event registration: Not Supported")

    monkeypatch.setattr(SimulatedProbe, "events", unheard)
    monkeypatch.setattr("hami.deviceplugin.card_watch._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("hami.deviceplugin.card_watch._MAX_PAUSE_S", 0.01)
    await node.start_plugin()
    await node.until(lambda: tries[0] >= 5, "tries")
    said = [text for _, reason, text in node.events.on_nodes if reason == event_reasons.CARD_SILENT]
    assert said == [
        "error events cannot be heard: event registration: Not Supported. Only cards that do not answer are noticed"
    ]
    assert set(node.kubelet.devices.values()) == {"Healthy"}
    node.profile.write_text(CARDS + "faults: {lost: [0]}\n")
    await node.until(lambda: node.kubelet.devices[f"{A}-0"] == "Unhealthy", "the lost card")
