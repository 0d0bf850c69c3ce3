"""CDI specifications that somebody removed or changed come back without any call of kubelet's."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami.deviceplugin.cdi_files import CdiFiles
from hami.deviceplugin.settings import PluginSettings
from tests.deviceplugin.bench import A, Bench
from tests.deviceplugin.cdi_cards import CARDS, GPU_FILE


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_text("{")], ids=["removed", "changed"])
async def test_a_harmed_specification_comes_back(node: Bench, harm: object) -> None:
    await node.start_plugin(device_list_strategies=("cdi-cri",), cdi_interval_s=0.01)
    path = node.folder / "cdi" / GPU_FILE
    before = path.read_bytes()
    assert callable(harm)
    harm(path)
    await node.until(lambda: path.exists() and path.read_bytes() == before, "the specification is back")
    assert A.encode() in before


async def test_a_folder_that_cannot_be_written_is_tried_again(node: Bench) -> None:
    await node.start_plugin(device_list_strategies=("cdi-cri",), cdi_interval_s=0.01)
    path = node.folder / "cdi" / GPU_FILE
    path.unlink()
    path.mkdir()
    (path / "in-the-way").touch()
    with capture_logs() as logs:
        await node.until(lambda: any(each["event"] == "CDI specifications not written" for each in logs), "a warning")
    (path / "in-the-way").unlink()
    path.rmdir()
    await node.until(path.is_file, "the specification is back")


def test_restore_writes_what_was_last_said_and_nothing_before(tmp_path: Path) -> None:
    files = CdiFiles(PluginSettings("n1", cdi_root=tmp_path, dev_root=tmp_path, device_list_strategies=("cdi-cri",)))
    files.restore()
    assert list(tmp_path.iterdir()) == []
    files.ensure(CARDS)
    files.ensure(CARDS[:1])
    text = (tmp_path / GPU_FILE).read_bytes()
    (tmp_path / GPU_FILE).unlink()
    files.restore()
    assert (tmp_path / GPU_FILE).read_bytes() == text
    assert b"GPU-b" not in text
