"""A configuration's path may be a pipe, a device, a folder: it is read whole or told, and nothing hangs."""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path

import pytest

from hami.config import device_config, node_config, reading
from hami.core.errors import ConfigError
from hami.vendors.nvidia.config import NvidiaConfig

TEXT = "nvidia: {deviceSplitCount: 7}\n"


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(TEXT)
    assert reading.read_bytes(file) == TEXT.encode()
    assert reading.read_bytes(file, most_bytes=len(TEXT)) == TEXT.encode()


def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path: Path) -> None:
    """As `--device-config-file <(helm template …)`, in more than one piece."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = TEXT + "#" * 1_000_000
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert reading.read_bytes(pipe, pipe_limit_s=60) == text.encode()
    writer.join(60)


def test_a_pipe_without_a_writer_is_told(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a pipe that nobody wrote to within"):
        reading.read_bytes(pipe, pipe_limit_s=0.01)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
def test_what_does_not_end_is_told() -> None:
    with pytest.raises(OSError, match="more than 1000 bytes"):
        reading.read_bytes(Path("/dev/zero"), most_bytes=1000)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
@pytest.mark.parametrize("name", ["zero", "pipe", "folder"])
def test_both_files_are_read_so(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    quick = functools.partial(reading.read_bytes, pipe_limit_s=0.01, most_bytes=1000)
    monkeypatch.setattr(reading, "read_bytes", quick)
    with pytest.raises(ConfigError, match="cannot be read"):
        device_config.read(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read"):
        node_config.read(tmp_path / name, "n", NvidiaConfig())
