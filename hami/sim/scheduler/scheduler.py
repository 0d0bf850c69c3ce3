"""The scheduling cycle: one pod at a time through node checks and extenders; binding runs beside it."""

from __future__ import annotations

from typing import Final

from hami.core.errors import HamiError, TransportError
from hami.sim.client import ApiClient, Informer
from hami.sim.errors import StatusError
from hami.sim.objects import Obj, dig
from hami.sim.pod_resources import pod_requests
from hami.sim.scheduler.config import SchedulerConfig
from hami.sim.scheduler.extender import Extender, ExtenderError
from hami.sim.scheduler.nodes import NodeInfo, Refusal, Search, Snapshot, least_allocated
from hami.sim.scheduler.queue import Queued, SchedulingQueue
from hami.sim.scheduler.report import NO_NODES, Reporter, fit_error
from hami.sim.tasks import TaskSet

_LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"


class _NoFitError(HamiError):
    """No node fits the pod; the text is the FitError."""

    def __init__(self, text: str, *, by_extender: bool) -> None:
        super().__init__(text)
        self.by_extender = by_extender


class Scheduler:
    """kube-scheduler's stand-in against one API server; `start`, then `stop`.

    `cycles` counts scheduling cycles, for tests of backoff and wake-up.
    """

    def __init__(self, base_url: str, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self._base_url = base_url
        self.queue = SchedulingQueue(self.config)
        self.snapshot = Snapshot()
        self.cycles = 0
        self._search = Search(self.config)
        self._assumed: dict[str, str] = {}
        self._tasks = TaskSet()

    async def start(self) -> None:
        """Watch pods and nodes; returns when both are synced and scheduling runs."""
        self._client = ApiClient(self._base_url, "kube-scheduler/hami-sim")
        self._reporter = Reporter(self._client)
        self._extenders = [Extender(config) for config in self.config.extenders]
        self._nodes = Informer(self._client, "/api/v1/nodes")
        self._pods = Informer(self._client, "/api/v1/pods", _LIVE)
        self._nodes.add_handler(self._on_node)
        self._pods.add_handler(self._on_pod)
        self._tasks.spawn(self._nodes.run())
        await self._nodes.synced.wait()
        self._tasks.spawn(self._pods.run())
        await self._pods.synced.wait()
        self._tasks.spawn(self._run())

    async def stop(self) -> None:
        """Stop at once, also in the middle of a binding, as kill -9 does. Raises what has crashed."""
        try:
            await self._tasks.stop()
        finally:
            for extender in self._extenders:
                await extender.close()
            await self._client.close()

    def _on_node(self, old: Obj | None, new: Obj | None) -> None:
        if new is None:
            assert old is not None
            self.snapshot.remove_node(old["metadata"]["name"])
            return
        self.snapshot.set_node(new)
        if old is None or _node_checked(old) != _node_checked(new):
            self.queue.cluster_changed(matters_to_plugins=True)
        elif _node_reported(old) != _node_reported(new):
            self.queue.cluster_changed(matters_to_plugins=False)

    def _on_pod(self, old: Obj | None, new: Obj | None) -> None:
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            self._pod_gone(old)
        if new is None:
            return
        uid, node_name = new["metadata"]["uid"], dig(new, "spec", "nodeName")
        if node_name:
            self.queue.delete(uid)
            assumed_on = self._assumed.pop(uid, None)
            if assumed_on not in (None, node_name):
                self.snapshot.forget(uid, str(assumed_on))
            self.snapshot.place(new, node_name)
            self.queue.cluster_changed(matters_to_plugins=False)
        elif self._responsible_for(new) and uid not in self._assumed:
            self.queue.update(new)

    def _pod_gone(self, pod: Obj) -> None:
        uid = pod["metadata"]["uid"]
        self.queue.delete(uid)
        node_name = dig(pod, "spec", "nodeName") or self._assumed.pop(uid, None)
        if node_name:
            self.snapshot.forget(uid, node_name)
            self.queue.cluster_changed(matters_to_plugins=True)

    def _responsible_for(self, pod: Obj) -> bool:
        spec = pod["spec"]
        return (
            spec["schedulerName"] in self.config.scheduler_names
            and not spec.get("schedulingGates")
            and "deletionTimestamp" not in pod["metadata"]
        )

    async def _run(self) -> None:
        while True:
            queued = await self.queue.pop()
            if not self._responsible_for(queued.pod):
                self.queue.done(queued)
                continue
            self.cycles += 1
            pod = queued.pod
            try:
                node_name = await self._choose(pod)
            except _NoFitError as error:
                await self._failure(queued, pod, "Unschedulable", str(error), by_extender=error.by_extender)
                continue
            except ExtenderError as error:
                await self._failure(queued, pod, "SchedulerError", str(error))
                continue
            self._assumed[queued.uid] = node_name
            self.snapshot.place(pod, node_name)
            self._tasks.spawn(self._bind(queued, pod, node_name))

    async def _choose(self, pod: Obj) -> str:
        """The node for the pod. Raises _NoFitError, or ExtenderError where a non-ignorable extender failed."""
        total = len(self.snapshot.nodes)
        if total == 0:
            raise _NoFitError(NO_NODES, by_extender=False)
        fitting, refused = self._search.run(pod, self.snapshot)
        passed_checks = len(fitting)
        for extender in self._extenders:
            if not fitting:
                break
            if extender.interested(pod):
                fitting = await self._ask(extender, pod, fitting, refused)
        if not fitting:
            raise _NoFitError(fit_error(total, refused), by_extender=passed_checks > 0)
        requests = pod_requests(pod)
        best = max(fitting, key=lambda info: (least_allocated(requests, info), -len(info.pods)))
        return best.name

    async def _ask(
        self, extender: Extender, pod: Obj, fitting: list[NodeInfo], refused: dict[str, Refusal]
    ) -> list[NodeInfo]:
        by_name = {info.name: info for info in fitting}
        try:
            answer = await extender.filter(pod, list(by_name))
        except ExtenderError:
            if extender.config.ignorable:
                return fitting
            raise
        for name, why in answer.failed.items():
            refused[name] = Refusal((why,), True)
        for name, why in answer.unresolvable.items():
            refused[name] = Refusal((why,), False)
        return [by_name[name] for name in answer.names]

    async def _bind(self, queued: Queued, pod: Obj, node_name: str) -> None:
        """Bind through the extender that manages the pod, else by a Binding of our own."""
        try:
            binder = next((one for one in self._extenders if one.config.bind_verb and one.interested(pod)), None)
            if binder is not None:
                await binder.bind(pod, node_name)
            else:
                await self._own_binding(pod, node_name)
        except (ExtenderError, StatusError, TransportError) as error:
            if self._assumed.pop(queued.uid, None) is not None:
                self.snapshot.forget(queued.uid, node_name)
                self.queue.cluster_changed(matters_to_plugins=True)
            await self._failure(queued, pod, "SchedulerError", str(error))
            return
        self.queue.done(queued)
        meta = pod["metadata"]
        note = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node_name}"
        await self._reporter.event(pod, "Normal", "Scheduled", "Binding", note)

    async def _own_binding(self, pod: Obj, node_name: str) -> None:
        meta = pod["metadata"]
        body = {
            "kind": "Binding",
            "apiVersion": "v1",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "target": {"kind": "Node", "name": node_name},
        }
        await self._client.request("POST", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding", body)

    async def _failure(self, queued: Queued, pod: Obj, reason: str, message: str, *, by_extender: bool = False) -> None:
        """Back into a queue, then the event and the condition; a pod that was bound after all is left alone."""
        cached = self._pods.objects.get(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        if cached is None or cached["metadata"]["uid"] != queued.uid or dig(cached, "spec", "nodeName"):
            self.queue.done(queued)
        else:
            queued.pod = cached
            self.queue.failed(queued, refused=reason == "Unschedulable", by_extender=by_extender)
        await self._reporter.event(pod, "Warning", "FailedScheduling", "Scheduling", message)
        await self._reporter.condition(pod, reason, message)


def _node_checked(node: Obj) -> tuple[object, ...]:
    """What of a node the scheduler's own checks look at."""
    spec, allocatable = node.get("spec") or {}, dig(node, "status", "allocatable")
    return spec.get("unschedulable"), spec.get("taints"), allocatable, node["metadata"].get("labels")


def _node_reported(node: Obj) -> tuple[object, ...]:
    """What else of a node counts as a change (NodeSchedulingPropertiesChange); heartbeats do not."""
    conditions = {one["type"]: one["status"] for one in dig(node, "status", "conditions", default=[])}
    return node["metadata"].get("annotations"), conditions
