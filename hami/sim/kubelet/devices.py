"""kubelet's device manager: which devices are there, which container has which, and how they are chosen.

Source: pkg/kubelet/cm/devicemanager/manager.go without topology manager (its policy is `none`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami.core.errors import HamiError
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.sim import quantity
from hami.sim.kubelet import checkpoint
from hami.sim.kubelet.allocation import Allocation
from hami.sim.kubelet.plugins import PluginClient, PluginEvents, RegistrationServer
from hami.sim.objects import Obj, dig
from hami.sim.pod_resources import is_sidecar

_HEALTHY: Final = "Healthy"
_ENDPOINT_GRACE_S: Final = 300.0


class DeviceError(HamiError):
    """Devices cannot be given; the text is kubelet's."""


@dataclass(slots=True)
class _Resource:
    devices: dict[str, pb.Device] = field(default_factory=dict)
    healthy: set[str] = field(default_factory=set)
    stopped_at: float | None = None
    pre_start_required: bool = False
    """What the plugin said at its latest registration: kubelet remembers it when the plugin is gone."""


class DeviceManager(PluginEvents):
    """Registered devices and allocations of one node. Allocations outlive plugin restarts, through the checkpoint.

    `active` says which pod uids still hold their devices; `changed` is called when allocatable may differ. Where the
    plugin has no preference the choice among free devices is random, as kubelet's map order is.
    """

    def __init__(self, directory: Path, active: Callable[[], set[str]], changed: Callable[[], None]) -> None:
        self._directory, self._active, self._changed = directory, active, changed
        self._resources: dict[str, _Resource] = {}
        self._held: dict[tuple[str, str, str], Allocation] = {}
        self._random = random.Random()  # noqa: S311 - a choice among devices, not a secret
        self.server = RegistrationServer(directory, self, frozenset({checkpoint.FILE_NAME}))

    async def start(self) -> None:
        """Read the checkpoint and listen for plugins. Raises OSError."""
        held, resources = checkpoint.read(self._directory)
        self._held = {(one.pod_uid, one.container, one.resource): one for one in held}
        self._resources = {name: _Resource(stopped_at=time.monotonic()) for name in resources}
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()

    def connected(self, client: PluginClient) -> None:
        resource = self._resources.setdefault(client.resource, _Resource())
        resource.stopped_at, resource.pre_start_required = None, client.options.pre_start_required

    def listed(self, client: PluginClient, devices: Sequence[pb.Device]) -> None:
        resource = self._resources[client.resource]
        resource.devices = {device.ID: device for device in devices}
        resource.healthy = {device.ID for device in devices if device.health == _HEALTHY}
        self._write()
        self._changed()

    def disconnected(self, client: PluginClient) -> None:
        resource = self._resources[client.resource]
        resource.healthy, resource.stopped_at = set(), time.monotonic()
        self._changed()

    def capacity(self) -> dict[str, tuple[int, int]]:
        """Capacity and allocatable by resource; 0 of both once a plugin has been away for five minutes."""
        found = {}
        for name, resource in self._resources.items():
            gone = resource.stopped_at is not None and time.monotonic() - resource.stopped_at > _ENDPOINT_GRACE_S
            found[name] = (0, 0) if gone else (len(resource.devices), len(resource.healthy))
        return found

    def allocations(self, pod_uid: str = "") -> list[Allocation]:
        """What is held (by one pod)."""
        return [one for one in self._held.values() if pod_uid in ("", one.pod_uid)]

    async def allocate_pod(self, pod: Obj) -> None:
        """Allocate for every container in order, init containers first. Raises DeviceError, PluginCallError.

        Devices of an init container that ends are used again by the containers after it; those of a sidecar are not.
        """
        reusable: dict[str, set[str]] = {}
        init = dig(pod, "spec", "initContainers", default=[])
        for container in [*init, *pod["spec"]["containers"]]:
            await self._allocate_container(pod, container, reusable)
            ends = container in init and not is_sidecar(container)
            for one in self.allocations(pod["metadata"]["uid"]):
                if one.container != container["name"]:
                    continue
                pool = reusable.setdefault(one.resource, set())
                if ends:
                    pool |= set(one.device_ids)
                else:
                    pool -= set(one.device_ids)

    async def _allocate_container(self, pod: Obj, container: Obj, reusable: dict[str, set[str]]) -> None:
        wrote = False
        for name, value in dig(container, "resources", "limits", default={}).items():
            if name not in self._resources:
                continue
            self._collect()
            chosen = await self._choose(pod, container, name, quantity.whole(value), reusable.get(name, set()))
            if not chosen:
                continue
            client = self.server.clients.get(name)
            if client is None:
                raise DeviceError(f"unknown Device Plugin {name}")
            response = await client.allocate(chosen)
            self._hold(pod, container, name, chosen, response)
            wrote = True
        if wrote:
            self._write()

    def _hold(
        self, pod: Obj, container: Obj, name: str, chosen: list[str], response: pb.ContainerAllocateResponse
    ) -> None:
        meta, numa = pod["metadata"], dict[str, tuple[str, ...]]()
        for one in chosen:
            device = self._resources[name].devices.get(one)
            for node in [node.ID for node in device.topology.nodes] if device and device.topology.nodes else [-1]:
                numa[str(node)] = (*numa.get(str(node), ()), one)
        self._held[(meta["uid"], container["name"], name)] = Allocation(
            meta["uid"],
            meta["namespace"],
            meta["name"],
            container["name"],
            name,
            tuple(chosen),
            numa,
            response.SerializeToString(),
        )

    async def _choose(self, pod: Obj, container: Obj, name: str, required: int, reusable: set[str]) -> list[str]:
        """Device ids to ask for; none where the container holds them already (a restart)."""
        resource = self._resources[name]
        key = (pod["metadata"]["uid"], container["name"], name)
        if not resource.healthy:
            raise DeviceError(f"no healthy devices present; cannot allocate unhealthy devices {name}")
        if key in self._held:
            if not resource.healthy.issuperset(self._held[key].device_ids):
                raise DeviceError(
                    f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {name}"
                )
            return []
        chosen = self._shuffled(reusable)[:required]
        needed = required - len(chosen)
        if needed == 0:
            return chosen
        used = {device for one in self._held.values() if one.resource == name for device in one.device_ids}
        available = resource.healthy - used
        if len(available) < needed:
            raise DeviceError(
                f"requested number of devices unavailable for {name}. Requested: {needed}, Available: {len(available)}"
            )
        client = self.server.clients.get(name)
        if client is None:
            raise DeviceError(f"endpoint not found in cache for a registered resource: {name}")
        preferred = await client.preferred(self._shuffled(available | set(chosen)), chosen, required)
        ranked = [one for one in preferred if one in available and one not in chosen]
        ranked += [one for one in self._shuffled(available) if one not in ranked]
        return [*chosen, *ranked[:needed]]

    def _shuffled(self, ids: set[str]) -> list[str]:
        ordered = sorted(ids)
        self._random.shuffle(ordered)
        return ordered

    async def pre_start(self, pod_uid: str, container: str) -> None:
        """PreStartContainer for each resource of the container whose plugin wants it. Raises DeviceError,
        PluginCallError: a plugin that has gone since Allocate is missed only where it wanted to be asked."""
        for one in self.allocations(pod_uid):
            if one.container != container or not self._resources[one.resource].pre_start_required:
                continue
            client = self.server.clients.get(one.resource)
            if client is None:
                raise DeviceError(f"endpoint not found in cache for a registered resource: {one.resource}")
            await client.pre_start(list(one.device_ids))

    def _collect(self) -> None:
        """UpdateAllocatedDevices: devices of pods that ended are free again, noticed at the next allocation."""
        active = self._active()
        self._held = {key: one for key, one in self._held.items() if one.pod_uid in active}

    def _write(self) -> None:
        registered = {name: resource.healthy for name, resource in self._resources.items()}
        checkpoint.write(self._directory, self._held.values(), registered)
