"""Every question of the driver has a time limit: each method of the protocol, with a driver that never answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pynvml
import pytest

from hami.core.errors import NvmlError
from hami.core.model import MigPlacement
from hami.nvml import real
from hami.nvml.probe import DeviceProbe
from hami.nvml.real import RealProbe

QUESTIONS: Final[dict[str, Callable[[RealProbe], Awaitable[Any]]]] = {
    "cards": RealProbe.cards,
    "pairs": RealProbe.pairs,
    "lost": RealProbe.lost,
    "damaged": RealProbe.damaged,
    "events": lambda probe: probe.events(0.01),
    "processes": RealProbe.processes,
    "set_mig_mode": lambda probe: probe.set_mig_mode("GPU-a", enabled=True),
    "create_mig": lambda probe: probe.create_mig("GPU-a", 19, MigPlacement(0, 1)),
    "destroy_mig": lambda probe: probe.destroy_mig("GPU-a", 1),
    "loads": RealProbe.loads,
}
FAR_MORE_S: Final = 30.0


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """Set at the end, so that the threads that were left behind can go."""
    made = threading.Event()
    yield made
    made.set()


def test_no_question_is_left_out() -> None:
    asked = {name for name, what in vars(DeviceProbe).items() if callable(what) and not name.startswith("_")}
    assert asked - {"close"} == set(QUESTIONS)


@pytest.mark.parametrize("name", QUESTIONS)
async def test_it_ends_at_its_limit(name: str, hang: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", hang.wait)
    probe = RealProbe(timeout_s=0.05)
    began = time.monotonic()
    with pytest.raises(NvmlError, match=r"no answer of the driver within 0\.05 s"):
        await QUESTIONS[name](probe)
    assert time.monotonic() - began < FAR_MORE_S
    await probe.close()


async def test_the_wait_for_events_ends_a_little_after_what_it_was_given(
    hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf:
        silent = ()

        def wait(self, _: int) -> bool:
            return hang.wait()

    probe = RealProbe(timeout_s=0.05)
    monkeypatch.setattr(real, "_EVENT_GRACE_S", 0.05)
    monkeypatch.setattr(probe, "_events", Deaf())
    with pytest.raises(NvmlError, match=r"event wait: no answer of the driver within 0\.06"):
        await probe.events(0.01)
    await probe.close()


async def test_a_driver_that_hangs_at_the_end_does_not_hold_up_the_process(
    hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = RealProbe(timeout_s=0.05)
    monkeypatch.setattr(probe, "_open", True)
    monkeypatch.setattr(pynvml, "nvmlShutdown", hang.wait)
    began = time.monotonic()
    await probe.close()
    assert time.monotonic() - began < FAR_MORE_S
