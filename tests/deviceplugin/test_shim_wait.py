"""Allocate and the library on the host: waited for, and where it does not come, said with what to do."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from hami.core.keys import PHASE_FAILED, PHASE_SUCCESS
from hami.deviceplugin import allocate
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.shim_wait import library_file, shim_problem
from tests.deviceplugin.bench import A, Bench
from tests.deviceplugin.calls import ONE, refused, writes


async def test_a_library_that_comes_late_is_waited_for(node: Bench) -> None:
    shutil.rmtree(node.folder / "hook/vgpu")
    await node.start_plugin(allocate_timeout_s=60.0)
    await node.bound_pod("p1", ONE)
    before = writes(node, "pods")
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await asyncio.wait({call}, timeout=0.2)
    assert not call.done()
    assert writes(node, "pods") == before
    node.install_shim()
    await asyncio.wait_for(call, 60)
    assert await node.phase("p1") == PHASE_SUCCESS
    await node.token_free()


async def test_calls_wait_together_not_one_after_another(node: Bench) -> None:
    shutil.rmtree(node.folder / "hook/vgpu")
    await node.start_plugin(allocate_timeout_s=60.0)
    await node.bound_pod("p1", f"{A},NVIDIA,1000,0:;{A},NVIDIA,2000,0:;", containers=("a", "b"))
    calls = [asyncio.create_task(node.kubelet.allocate([f"{A}-{number}"])) for number in range(2)]
    await asyncio.wait(calls, timeout=0.2)
    node.install_shim()
    await asyncio.wait_for(asyncio.gather(*calls), 60)
    assert await node.phase("p1") == PHASE_SUCCESS


async def test_a_library_that_does_not_come_fails_the_pod_with_what_to_do(
    node: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(node.folder / "hook/vgpu")
    # A wait of 0.6 s for the host that leaves a minute to the API server, however slow this machine is.
    monkeypatch.setattr(allocate, "_RESERVED_FOR_THE_REST", 0.99)
    await node.start_plugin(allocate_timeout_s=60.0)
    await node.bound_pod("p1", ONE)
    text = await refused(node.kubelet.allocate([f"{A}-0"]))
    for word in ("libvgpu.so is missing", "install-library", "--hook-path", "Delete the pod"):
        assert word in text
    assert await node.phase("p1") == PHASE_FAILED
    await node.token_free()
    assert node.events.on_pods == [("p1", "AllocateFailed", text)]
    assert not (node.folder / "hook/vgpu/containers").exists()
    node.install_shim()
    await node.bound_pod("p2", ONE)
    await node.kubelet.allocate([f"{A}-0"])
    assert await node.phase("p2") == PHASE_SUCCESS


def _settings(folder: Path) -> PluginSettings:
    return PluginSettings("n1", hook_path=folder, version="1.2")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "libvgpu.so is missing"),
        ({"libvgpu.so": "x"}, "ld.so.preload is missing"),
        ({"libvgpu.so": "x", "ld.so.preload": "/elsewhere/libvgpu.so"}, "ld.so.preload does not name {0}/vgpu/libv"),
        ({"libvgpu.so/": "", "ld.so.preload": "x"}, "libvgpu.so is no file"),
        ({"libvgpu.so": "x", "ld.so.preload/": ""}, "ld.so.preload is no file"),
        ({"libvgpu.so": "x", "ld.so.preload": "{0}/vgpu/libvgpu.so"}, ""),
        ({"libvgpu.so.1.2": "x", "ld.so.preload": "/other.so\n{0}/vgpu/libvgpu.so\n"}, ""),
    ],
)
def test_what_is_missing(tmp_path: Path, files: dict[str, str], problem: str) -> None:
    (tmp_path / "vgpu").mkdir()
    for name, content in files.items():
        path = tmp_path / "vgpu" / name
        if name.endswith("/"):
            path.mkdir()
        else:
            path.write_text(content.format(tmp_path))
    found = shim_problem(_settings(tmp_path))
    assert problem.format(tmp_path) in found
    assert bool(found) == bool(problem)


def test_the_library_of_this_version_comes_first(tmp_path: Path) -> None:
    (tmp_path / "vgpu").mkdir()
    assert library_file(_settings(tmp_path)).name == "libvgpu.so"
    (tmp_path / "vgpu/libvgpu.so.1.2").touch()
    assert library_file(_settings(tmp_path)).name == "libvgpu.so.1.2"
