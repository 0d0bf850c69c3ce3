"""What is short on this machine is said before the demo starts."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from hami.core.errors import ConfigError
from hami.ctl.demo import ground

FOLDER = Path("/a/demo")
NODES = ("node-a100", "node-t4", "node-rtx3090")


class _Usage(NamedTuple):
    free: int


def test_enough_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of those below."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(48 * ground.MIB))
    ground.check(FOLDER, NODES)


def test_a_long_folder_is_told(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 90)
    with pytest.raises(ConfigError, match="set TMPDIR to a shorter folder"):
        ground.check(folder, NODES)


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(48 * ground.MIB - 1))
    with pytest.raises(ConfigError, match="47 MiB free, and 3 nodes need 48 MiB"):
        ground.check(FOLDER, NODES)


@pytest.mark.parametrize(
    ("limits", "becomes"), [((64, 4096), (256, 4096)), ((256, 256), None), ((resource.RLIM_INFINITY,) * 2, None)]
)
def test_the_limit_of_open_files_is_raised_where_it_may(
    limits: tuple[int, int], becomes: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(2**40))
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: told.append(to))
    ground.check(FOLDER, NODES)
    assert told == ([] if becomes is None else [becomes])


def test_too_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(2**40))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(ConfigError, match="ulimit -n: 64 open files are allowed, and the demo's nodes need 256"):
        ground.check(FOLDER, NODES)
