"""Every route to device memory, by every way to the driver, on four driver versions.

Each case: a request that fits is charged to the byte, one over the limit gets CUDA's out-of-memory code and leaves no
trace, a free gives back. The same program without the shim exceeds the limit (negative control).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.shim import harness
from tests.shim.conftest import make_container
from tests.shim.container import card as stand_in_card
from tests.shim.container import json_lines
from tests.shim.route_names import ROUTES, WAYS

LIMIT_MIB = 1024
REQUEST_MIB = 64
OUT_OF_MEMORY = 2


_SINCE = {symbol: since for _, symbol, since, _ in harness.exports()}


def _ways(cuda: str) -> Iterator[str]:
    for way in WAYS:
        if way == "dlvsym" and cuda not in harness.VERSIONED:
            continue
        if way == "proc2" and harness.CUDA_VERSIONS[cuda] < _SINCE["cuGetProcAddress_v2"]:
            continue
        yield way


def _cases() -> Iterator[tuple[str, str, str, bool]]:
    for cuda, version in harness.CUDA_VERSIONS.items():
        for way in _ways(cuda):
            for name, charged, needs in ROUTES:
                if all(_SINCE[symbol] <= version for symbol in needs):
                    yield cuda, way, name, charged


CASES = tuple(_cases())


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory, fakes: Path, shim: Path) -> Any:
    """(driver version, with the shim?) → {(way, route): its line}; one process walks them all."""

    @cache
    def walk(cuda: str, with_shim: bool) -> dict[tuple[str, str], dict[str, Any]]:
        card = stand_in_card(0, context_kib=REQUEST_MIB * 1024, module_kib=REQUEST_MIB * 1024)
        folder = tmp_path_factory.mktemp("routes")
        container = make_container(folder, fakes, shim, limit_mib=LIMIT_MIB, cards=[card], cuda=cuda)
        done = container.run("route_driver", LIMIT_MIB, REQUEST_MIB, shim=with_shim)
        return {(row["way"], row["route"]): row for row in json_lines(done)}

    return walk


@pytest.mark.parametrize(("cuda", "way", "route", "charged"), CASES, ids=lambda value: str(value).replace(" ", "_"))
def test_route(walked: Any, cuda: str, way: str, route: str, charged: bool) -> None:
    row = walked(cuda, True)[way, route]
    assert "absent" not in row
    code, share, card = row["fit"]
    assert code == 0
    assert share == card
    assert (share > 0) is charged
    assert row["free"] == [0, 0, 0]
    assert row["over"] == ([OUT_OF_MEMORY, 0, 0] if charged else [0, 0, 0])
    assert row["left"] == [0, 0, 0]


@pytest.mark.parametrize("cuda", harness.CUDA_VERSIONS)
def test_without_the_shim_every_charged_route_exceeds_the_limit(walked: Any, cuda: str) -> None:
    rows = walked(cuda, False)
    for case_cuda, way, route, charged in CASES:
        if case_cuda == cuda:
            code, share, card = rows[way, route]["over"]
            assert (code, share, card > 0) == (0, card, charged), (way, route)


def test_there_are_several_hundred_cases() -> None:
    assert len(CASES) > 1000
    assert {way for _, way, _, _ in CASES} == set(WAYS)
