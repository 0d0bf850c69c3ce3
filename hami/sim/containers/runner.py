"""The container runtime of the embedded kubelet: each container is a process in namespaces of its own.

It starts with exactly the variables and mounts that the device plugins answered, and its own variables over them. It
runs `guest/gpu_fill.c` whatever its image and command are: nothing of a stranger's pod is carried out here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from hami.sim.containers import rootfs
from hami.sim.containers.host import NodeHost
from hami.sim.containers.rootfs import Bind
from hami.sim.containers.toolkit import Toolkit, enter_command
from hami.sim.kubelet.runner import EXIT_CODE, INIT_SECONDS, RUN_SECONDS, ContainerStart
from hami.sim.objects import dig

STEP_MIB: Final = 256


class CardReport(msgspec.Struct, frozen=True):
    """What the guest found on one card; `refusal` is the driver's code for the step beyond (2: out of memory)."""

    card: int
    limit_mib: int
    free_mib: int
    taken_mib: int
    left_mib: int
    refusal: int


class GuestReport(msgspec.Struct, frozen=True):
    """What one container's guest said so far. `holding`: it has taken all that it was given."""

    cards: tuple[CardReport, ...] = ()
    holding: bool = False
    pid: int = 0
    """Of the process that started it, on this machine."""
    raw: str = ""
    """All that it wrote, errors included."""


def guest_command(start: ContainerStart) -> list[str]:
    """`gpu-fill` with the times of the pod's annotations (hami.sim.kubelet.runner)."""
    annotations = dig(start.pod, "metadata", "annotations", default={})
    hold_s = annotations.get(INIT_SECONDS, "0") if start.is_init else annotations.get(RUN_SECONDS, "-1")
    code = "0" if start.is_init else annotations.get(EXIT_CODE, "0")
    return [rootfs.GUEST, str(STEP_MIB), hold_s, code]


class ProcessRunner:
    """Runs the containers of one node. `command` says what a container runs, as a path in it and arguments."""

    def __init__(
        self, toolkit: Toolkit, host: NodeHost, command: Callable[[ContainerStart], Sequence[str]] = guest_command
    ) -> None:
        self._toolkit, self._host, self._command = toolkit, host, command
        self._numbers = itertools.count()
        self._pids: dict[tuple[str, str], int] = {}

    def report(self, pod_uid: str, container: str) -> GuestReport:
        """What the container has said so far; nothing for one that is not known."""
        log = self._log(pod_uid, container)
        text = log.read_text(errors="replace") if log.exists() else ""
        lines = [line for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
        cards = tuple(msgspec.json.decode(line, type=CardReport) for line in lines if line.startswith('{"card"'))
        holding = any(line.startswith('{"holding"') for line in lines)
        return GuestReport(cards, holding, self._pids.get((pod_uid, container), 0), text)

    async def run(self, start: ContainerStart) -> int:
        """One container to its end; a first cancellation asks it to end, a second kills it. Returns its exit code."""
        uid, name = start.pod["metadata"]["uid"], start.container["name"]
        root = self._host.folder / "roots" / f"{next(self._numbers)}-{name}"
        root.mkdir()
        try:
            command = await asyncio.to_thread(self._prepare, start, root)
            with self._log(uid, name).open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env={}
                )
            self._pids[(uid, name)] = process.pid
            return await _to_the_end(process)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _log(self, pod_uid: str, container: str) -> Path:
        return self._host.folder / "logs" / f"{pod_uid}_{container}.log"

    def _prepare(self, start: ContainerStart, root: Path) -> list[str]:
        """The root folder, and the command that starts the container in it."""
        toolkit = self._toolkit
        given = [mount for allocation in start.allocations for mount in allocation.mounts]
        binds = rootfs.prepare(root, toolkit.driver if start.allocations else None, toolkit.programs)
        binds.append(Bind(str(self._host.cards), rootfs.CARDS_FOLDER, read_only=False))
        # Runtimes mount outer folders first, whatever order the plugin's answer has.
        given.sort(key=lambda mount: mount.container_path.rstrip("/").count("/"))
        binds += [Bind(mount.host_path, mount.container_path, mount.read_only) for mount in given]
        return enter_command(toolkit.programs, toolkit.isolation, root, binds, start.env, list(self._command(start)))


async def _to_the_end(process: asyncio.subprocess.Process) -> int:
    try:
        return await process.wait()
    except asyncio.CancelledError:
        _signal(process.terminate)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        _signal(process.kill)
        raise


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):
        send()
