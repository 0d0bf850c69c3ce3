"""kill -9 at any moment: the others go on, and what the dead process held is allocatable again within a second."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.shim.conftest import ContainerFactory
from tests.shim.container import Container, kill
from tests.shim.harness import SOAK

ROUNDS = 5000 if SOAK else 500
LIMIT_MIB = 1024
pytestmark = pytest.mark.timeout(1800 if SOAK else 300)


class Prober:
    """A process of the container that lives through all rounds and must always get the whole share back."""

    def __init__(self, box: Container) -> None:
        self.process = box.start("prober")
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def milliseconds_until_free(self, mib: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{mib}\n")
        self.process.stdin.flush()
        answer = self._read()
        assert answer, "the prober died"
        return float(answer)


@pytest.fixture
def box(container: ContainerFactory) -> Container:
    return container(limit_mib=LIMIT_MIB)


@pytest.fixture
def prober(box: Container) -> Iterator[Prober]:
    prober = Prober(box)
    yield prober
    kill([prober.process])


def _kill_after(processes: list[subprocess.Popen[str]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.0002)
    kill(processes)


def _assert_all_given_back(prober: Prober) -> None:
    waited_ms = prober.milliseconds_until_free(LIMIT_MIB)
    assert 0 <= waited_ms < 1000


def test_killed_at_work(box: Container, prober: Prober) -> None:
    chance = random.Random(1)
    for round_number in range(ROUNDS):
        victims = [box.start("churn", 1 + round_number % 3, chance.randrange(1000)) for _ in range(2)]
        try:
            for victim in victims:
                assert victim.stdout is not None
                assert victim.stdout.readline() == "at work\n"
        finally:
            _kill_after(victims, chance.uniform(0, 0.004))
        _assert_all_given_back(prober)


def test_killed_while_starting(box: Container, prober: Prober) -> None:
    chance = random.Random(2)
    for _ in range(ROUNDS):
        _kill_after([box.start("churn", 1, 1), box.start("test_alloc", 8)], chance.uniform(0, 0.008))
        _assert_all_given_back(prober)
        assert box.run("test_alloc", 8, timeout_s=120).returncode == 0


def test_killed_while_starting_alone(container: ContainerFactory) -> None:
    """Nobody else is a member: what the dead process left of a half-made region must not stop the next one."""
    chance = random.Random(3)
    box = container(limit_mib=LIMIT_MIB)
    for _ in range(ROUNDS):
        box.region.unlink(missing_ok=True)
        _kill_after([box.start("churn", 1, 1)], chance.uniform(0, 0.005))
        assert box.run("test_alloc", LIMIT_MIB, timeout_s=120).returncode == 0


INSIDE = [("cuInit", 1), ("cuDevicePrimaryCtxRetain", 1)]
INSIDE += [
    (name, nth) for name in ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemCreate", "cuMemRelease") for nth in (1, 2, 7)
]
INSIDE += [(name, nth) for name in ("cuMemAllocAsync", "cuMemFreeAsync") for nth in (1, 5)]


@pytest.mark.parametrize(("function", "nth"), INSIDE)
def test_killed_inside_a_driver_call(box: Container, prober: Prober, function: str, nth: int) -> None:
    done = box.run("churn", 1, nth, extra={"FAKE_GPU_KILL": f"{function}:{nth}"}, timeout_s=120)
    assert done.returncode == -signal.SIGKILL
    _assert_all_given_back(prober)


def test_dead_but_not_yet_waited_for(box: Container, prober: Prober) -> None:
    """A zombie holds nothing: its parent may take its time."""
    victim = box.start("test_alloc_hold", 900)
    assert victim.stdout is not None
    assert victim.stdout.readline().startswith("held")
    victim.send_signal(signal.SIGKILL)
    _assert_all_given_back(prober)
    kill([victim])


def test_no_ghosts_without_the_shim_either(container: ContainerFactory) -> None:
    """The stand-in driver itself gives memory back: what the tests above find is the shim's doing."""
    box = container(limit_mib=LIMIT_MIB)
    holder = box.start("test_alloc_hold", 16000, shim=False)
    assert holder.stdout is not None
    assert holder.stdout.readline().startswith("held")
    assert box.run("test_alloc", 1000, shim=False).returncode == 2
    kill([holder])
    assert box.run("test_alloc", 16000, shim=False).returncode == 0
