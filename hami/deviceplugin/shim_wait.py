"""The in-container library has to lie on the host before a container mounts it (spec/node 2.10; issue 7).

An installer puts it there by rename, each file whole. Where a file is missing, the runtime would make an empty folder
of its name on the host and start the container without limits.
"""

from __future__ import annotations

import asyncio
from os.path import isfile
from pathlib import Path
from typing import Final

from hami.deviceplugin.settings import PluginSettings
from hami.vendors.nvidia.folders import VGPU
from hami.vendors.nvidia.names import MODE_MIG

_POLL_S: Final = 0.05


async def wait_for_shim(settings: PluginSettings, until_s: float) -> None:
    """Waits until nothing is missing, at most until `until_s` of the loop's clock.

    Three looks at a local disk: a thread for them would take longer than they do.
    """
    loop = asyncio.get_running_loop()
    while shim_problem(settings):
        left_s = until_s - loop.time()
        if left_s <= 0:
            return
        await asyncio.sleep(min(_POLL_S, left_s))


def shim_problem(settings: PluginSettings) -> str:
    """What is not in place, and what to do; empty if containers can be limited."""
    if settings.mode == MODE_MIG or not settings.require_shim or _in_place(settings):
        return ""
    vgpu = settings.vgpu_dir
    library = library_file(settings)
    preload = vgpu / "ld.so.preload"
    wanted = f"{settings.container_hook_path or settings.hook_path}/{VGPU}/libvgpu.so"
    if not library.is_file():
        problem = f"{library} is {'no file' if library.exists() else 'missing'}"
    elif not preload.is_file():
        problem = f"{preload} is {'no file' if preload.exists() else 'missing'}"
    else:
        problem = _misnamed(preload, wanted)
    if not problem:
        return ""
    return (
        f"the limiting library is not in place on the host: {problem}."
        " Look at the container install-library of the device plugin's pod on this node, and at --hook-path"
    )


def _in_place(settings: PluginSettings) -> bool:
    """The same without words, in a tenth of the time: every Allocate asks twice."""
    vgpu = f"{settings.hook_path}/{VGPU}"
    wanted = f"{settings.container_hook_path or settings.hook_path}/{VGPU}/libvgpu.so"
    try:
        with open(f"{vgpu}/ld.so.preload", "rb") as file:  # noqa: PTH123 - pathlib takes longer than the disk
            named = wanted.encode() in file.read().split()
    except OSError:
        return False
    versioned = isfile(f"{vgpu}/libvgpu.so.{settings.version}")  # noqa: PTH113 - as above
    return named and (versioned or isfile(f"{vgpu}/libvgpu.so"))  # noqa: PTH113 - as above


def _misnamed(preload: Path, wanted: str) -> str:
    try:
        named = preload.read_text(encoding="utf-8", errors="replace").split()
    except OSError as error:
        return f"{preload} cannot be read: {error.strerror}"
    return "" if wanted in named else f"{preload} does not name {wanted}"


def library_file(settings: PluginSettings) -> Path:
    """The library of this plugin's version where there is one: an upgrade leaves running containers their own."""
    versioned = settings.vgpu_dir / f"libvgpu.so.{settings.version}"
    return versioned if versioned.is_file() else settings.vgpu_dir / "libvgpu.so"
