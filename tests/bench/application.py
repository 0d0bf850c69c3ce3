"""The two applications that are compared: ours over a cluster, and the no-op behind the same ASGI mount."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any, cast

from hami.core import admission
from hami.core.objects import Pod
from hami.obs import logs
from hami.web import app, asgi
from hami.web.extender import Extender
from hami.web.webhook import Webhook
from tests.reference.model import Config
from tests.reference.subject import Subject, registry_of

FIXED_FILTER = (
    b'{"Nodes":null,"NodeNames":["gpu-worker-00000.pool.example"],"FailedNodes":null,'
    b'"FailedAndUnresolvableNodes":null,"Error":""}'
)
FIXED_REVIEW = (
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"bench","allowed":true,'
    b'"status":{"metadata":{},"code":200}}}'
)


def quiet_logs() -> None:
    """Log lines are made as in production (decisions are logged by default) and thrown away."""
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the process
    with contextlib.redirect_stderr(nowhere):
        logs.configure(logs.DECISIONS)


class OpenGate:
    async def wait_open(self) -> str:
        return ""


class CountedEvents:
    """Takes events and only counts them: their POST is not part of a filter."""

    def __init__(self) -> None:
        self.count = 0

    def pod_event(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        self.count += 1


class NoBinds:
    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        return "the benchmark binds nothing"


class Fixed:
    """Reads the body and answers always the same."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def __call__(self, _scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await asgi.read_body(receive, 64 * 1024 * 1024)
        await asgi.answer(send, 200, self._answer)

    filter = bind = __call__


def ours(subject: Subject) -> asgi.App:
    """Extender and webhook over one cluster, mounted as in production."""
    extender = Extender(subject.engine, NoBinds(), OpenGate(), CountedEvents())
    return app.build(extender, Webhook(_review(subject)), lambda: "")


def noop() -> asgi.App:
    return app.build(cast(Extender, Fixed(FIXED_FILTER)), cast(Webhook, Fixed(FIXED_REVIEW)), lambda: "")


def _review(subject: Subject | None) -> Any:
    registry = subject.registry if subject else registry_of(Config())
    settings = admission.AdmissionSettings(scheduler_name="hami-scheduler")
    return functools.partial(admission.review, registry=registry, settings=settings)
