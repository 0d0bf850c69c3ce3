"""One admitted pod from its first container to its last, and how it is stopped.

Containers are not restarted, whatever restartPolicy says: a container that ends has ended.
"""

from __future__ import annotations

import asyncio

from hami.core.errors import HamiError
from hami.sim.kubelet.devices import DeviceManager
from hami.sim.kubelet.pod_api import PodApi
from hami.sim.kubelet.pod_status import PodProgress
from hami.sim.kubelet.runner import ContainerRunner, ContainerStart
from hami.sim.objects import Obj, dig
from hami.sim.pod_resources import is_sidecar

_KILLED = 137


class PodWorker:
    """`run` it as a task; `stop` ends its containers and lets `run` write the final status."""

    def __init__(self, pod: Obj, runner: ContainerRunner, devices: DeviceManager, api: PodApi) -> None:
        self.pod = pod
        self._runner, self._devices, self._api = runner, devices, api
        self._progress = PodProgress(pod)
        self._containers: list[asyncio.Task[int]] = []
        self._stopping = False

    async def run(self) -> None:
        """Init containers one after another, then all others; the pod ends when its app containers have."""
        try:
            succeeded = await self._run_init() and await self._run_apps()
        except HamiError as error:
            succeeded = False
            await self._api.event(self.pod, "Warning", "Failed", f"Error: {error}")
        except asyncio.CancelledError:
            # The node stopped: its containers die with it, and nobody is left to report that.
            await self._kill_containers()
            raise
        await self._end_containers(0)
        await self._report("Succeeded" if succeeded else "Failed")

    async def stop(self, grace_s: float) -> None:
        """Tell the containers to end, wait for at most the grace period, then kill what is left."""
        self._stopping = True
        await self._end_containers(grace_s)

    async def _end_containers(self, grace_s: float) -> None:
        running = [container for container in self._containers if not container.done()]
        for container in running:
            container.cancel()
        if running:
            _, late = await asyncio.wait(running, timeout=max(grace_s, 0.05))
            for container in late:
                container.cancel()
            if late:
                await asyncio.wait(late)

    async def _kill_containers(self) -> None:
        """The first cancellation asks a container to end, the second does not ask."""
        for _ in range(2):
            for container in self._containers:
                container.cancel()
            await asyncio.sleep(0)

    async def _run_init(self) -> bool:
        for container in dig(self.pod, "spec", "initContainers", default=[]):
            work = await self._start(container, is_init=True)
            await self._report("Pending")
            if not is_sidecar(container) and await self._exit_code(work) != 0:
                return False
        return not self._stopping

    async def _run_apps(self) -> bool:
        work = [await self._start(container, is_init=False) for container in self.pod["spec"]["containers"]]
        await self._report("Running")
        codes = [await self._exit_code(one) for one in work]
        return not any(codes)

    async def _exit_code(self, work: asyncio.Task[int]) -> int:
        await asyncio.wait([work])
        return _KILLED if work.cancelled() else work.result()

    async def _start(self, container: Obj, *, is_init: bool) -> asyncio.Task[int]:
        uid, name = self.pod["metadata"]["uid"], container["name"]
        await self._devices.pre_start(uid, name)
        given = tuple(one for one in self._devices.allocations(uid) if one.container == name)
        work = asyncio.create_task(self._runner.run(ContainerStart(self.pod, container, is_init, given)))
        self._progress.started(name)
        work.add_done_callback(lambda task: self._progress.ended(name, _KILLED if task.cancelled() else task.result()))
        self._containers.append(work)
        await self._api.event(self.pod, "Normal", "Started", f"Started container {name}")
        return work

    async def _report(self, phase: str) -> None:
        await self._api.patch_status(self.pod, self._progress.status(phase))
