"""Fixtures of the shim's tests: what was built, and containers as Allocate would make them."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from tests.shim import harness
from tests.shim.container import Card, Container, Machine, card

ContainerFactory = Callable[..., Container]


CLIENTS = os.environ.get("HAMI_SHIM_CLIENTS", sys.executable)
"""The Python that has the packages of requirements/shim-clients.lock: `make test-shim` makes it."""


def absent(reason: str) -> NoReturn:
    """On a laptop a missing tool is a printed skip; in CI it must not hide the tests."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def fakes() -> Path:
    """Folder with the stand-in drivers and the test programs."""
    if harness.compiler() is None:
        absent("no C compiler: the shim cannot be built or tested here")
    return harness.build_fakes()


@pytest.fixture(scope="session")
def shim() -> Path:
    """Folder with libvgpu.so and vgpu-info."""
    if harness.compiler() is None:
        absent("no C compiler: the shim cannot be built or tested here")
    return harness.build_shim()


def make_container(
    folder: Path,
    fakes: Path,
    shim: Path,
    *,
    limit_mib: int | Sequence[int] | None = 1024,
    cards: Sequence[Card] | None = None,
    machine: Machine | None = None,
    cuda: str = "12.4",
    visible: Sequence[Card] | None = None,
    **env: str,
) -> Container:
    """A container with a share of each visible card. `machine` shares cards with another container."""
    name = uuid.uuid4().hex
    machine = machine or Machine(folder, fakes, tuple(cards or (card(0),)))
    seen = visible or machine.cards
    region_folder = folder / f"containers-{name}"
    region_folder.mkdir()
    region = region_folder / f"{name}.cache"
    settings = {
        "NVIDIA_VISIBLE_DEVICES": ",".join(card.uuid for card in seen),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
    }
    if limit_mib is not None:
        limits = [limit_mib] * len(seen) if isinstance(limit_mib, int) else limit_mib
        settings |= {f"CUDA_DEVICE_MEMORY_LIMIT_{i}": f"{limit}m" for i, limit in enumerate(limits)}
    return Container(machine, shim, region, settings | env, cuda)


@pytest.fixture
def container(tmp_path: Path, fakes: Path, shim: Path) -> Iterator[ContainerFactory]:
    """Makes containers: `container(limit_mib=…, cards=…, cuda=…, **environment)`."""
    made: list[Container] = []

    def make(**facts: object) -> Container:
        made.append(make_container(tmp_path, fakes, shim, **facts))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for box in made:  # 2 MB each: pytest would keep them for three sessions
        shutil.rmtree(box.region.parent)
