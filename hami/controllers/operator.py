"""kopf, embedded: in threads and event loops of its own, so that it never holds up filter and bind (issue 6).

It only looks: event handlers without finalizers, annotations, Kubernetes events or peering. Each kind is listed and
watched with `metadata.name=NAME`, so that a role with `resourceNames` is enough. A watch that says nothing for
`silence_s` is made anew (report B55). Each object has an operator of its own, so that a right that is missing for one
does not touch the others; one that fails is started again with growing pauses.

kopf tells of no object that was never there, or that went while its watch was cut: `Absence` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from hami.controllers.absence import Absence
from hami.controllers.watched import Told, Watched, namespace_of
from hami.kube.backoff import Backoff
from hami.kube.client import ApiClient
from hami.kube.session import open_session
from hami.obs import logs, metrics

SILENCE_S: Final = 70.0
"""kube-apiserver sends a bookmark about once a minute."""
ABSENCE_S: Final = 60.0
_REQUEST_S: Final = 30.0
_CONNECT_S: Final = 10.0
_STOP_S: Final = 5.0

_TOLD_BY_US: Final = ("OS signals are ignored", "Request attempt", "has failed")
"""Signals are the composition root's, and each failure ends in one line of ours."""

log = structlog.get_logger("hami.controllers")


class Controllers:
    """Follows single objects and tells about each state of them, in order."""

    def __init__(
        self,
        client: ApiClient,
        kubeconfig: str | None,
        watched: Mapping[Watched, Told],
        *,
        silence_s: float = SILENCE_S,
        absence_s: float = ABSENCE_S,
        backoff: Callable[[], Backoff] = lambda: Backoff(first_s=1.0),
    ) -> None:
        """Raises ConfigError where the objects are in two namespaces. `client`: of the loop that is told; `backoff`:
        pauses, for each object anew."""
        namespace_of(watched)
        self._watched = dict(watched)
        self._absence = Absence(client, self._watched, absence_s)
        self._operators = [
            _Operator(kubeconfig, each, functools.partial(self._tell, each), silence_s, backoff()) for each in watched
        ]

    @staticmethod
    async def load() -> None:
        """Loads kopf, which holds the interpreter for up to a tenth of a second: best before anything is served."""
        await asyncio.to_thread(importlib.import_module, "kopf")

    async def run(self) -> None:
        """Until cancelled."""
        logs.route("kopf", without=_TOLD_BY_US)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._absence.look())
            for each in self._operators:
                tasks.create_task(each.run())

    def _tell(self, each: Watched, found: Mapping[str, Any] | None) -> None:
        self._absence.told(each, found)
        self._watched[each](found)


class _Operator:
    """One object's, in a thread and loop that it has for itself: kopf ends every task of its loop when it ends."""

    def __init__(self, kubeconfig: str | None, of: Watched, told: Told, silence_s: float, backoff: Backoff) -> None:
        self._kubeconfig = kubeconfig
        self._of = of
        self._told = told
        self._silence_s = silence_s
        self._backoff = backoff
        self._main: asyncio.AbstractEventLoop | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. `told` is called on the loop of this call."""
        self._main = asyncio.get_running_loop()
        ended = asyncio.Event()
        thread = threading.Thread(target=self._thread, args=(ended,), name=f"hami {self._of.plural}", daemon=True)
        thread.start()
        try:
            await ended.wait()
        finally:
            if self._own is not None and thread.is_alive():
                self._own.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(thread.join, _STOP_S)

    def _thread(self, ended: asyncio.Event) -> None:
        try:
            with asyncio.Runner() as runner:
                self._own = runner.get_loop()
                runner.run(self._keep())
        finally:
            self._on_main(ended.set)

    def _on_main(self, call: Any, *arguments: Any) -> None:
        assert self._main is not None
        if not self._main.is_closed():
            self._main.call_soon_threadsafe(call, *arguments)

    async def _keep(self) -> None:
        """One operator after another."""
        while not self._stop.is_set():
            try:
                await self._operate()
                problem = "it ended"
            except Exception as error:  # noqa: BLE001 - whatever fails inside kopf, the scheduler goes on
                problem = f"{type(error).__name__}: {error}"
            if self._stop.is_set():
                return
            pause_s = self._backoff.next_s()
            metrics.controller_restarts.inc()
            log.warning("controller starts again", of=self._of.title, why=problem, pause_s=round(pause_s, 1))
            try:
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            except TimeoutError:
                continue

    async def _operate(self) -> None:
        # Here, not above: kopf costs half a second and 9 MiB, which `hami scheduler --help` and tests need not pay.
        import kopf

        where: dict[str, Any] = {"clusterwide": True}
        if self._of.namespace:
            where = {"namespaces": [self._of.namespace]}
        # kopf does not close those of an operator that fails.
        async with contextlib.AsyncExitStack() as sessions:
            await kopf.operator(
                registry=self._registry(kopf, sessions),
                settings=self._settings(kopf),
                standalone=True,
                stop_flag=self._stop,
                **where,
            )

    def _registry(self, kopf: Any, sessions: contextlib.AsyncExitStack) -> Any:
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> Any:
            """Asked at start and after a 401: credentials are read anew."""
            server, session = await open_session(self._kubeconfig)
            sessions.push_async_callback(session.close)
            return kopf.AiohttpSession(server=server, aiohttp_session=session)

        async def seen(event: Mapping[str, Any], **_: Any) -> None:
            found = event["object"]
            if found["metadata"]["name"] == self._of.name:
                self._backoff.reset()
                self._on_main(self._told, None if event["type"] == "DELETED" else found)

        kopf.on.login(registry=registry)(login)
        kopf.on.event(self._of.api_version, self._of.plural, registry=registry, id=self._of.title)(seen)
        return registry

    def _settings(self, kopf: Any) -> Any:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.process.ultimate_exiting_timeout = None
        settings.networking.request_timeout = _REQUEST_S
        settings.networking.connect_timeout = _CONNECT_S
        # Failed calls end the operator: one policy of pauses, ours, for all failures.
        settings.networking.error_backoffs = ()
        settings.watching.inactivity_timeout = self._silence_s
        settings.watching.reconnect_backoff = 0.5
        settings.watching.field_selectors[self._of.api_version, self._of.plural] = f"metadata.name={self._of.name}"
        return settings
