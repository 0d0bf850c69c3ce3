"""`POST /webhook`: admission of pods (spec/scheduler 1.5). Answers are always HTTP 200 and carry a review."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from hami.core.admission import Admission, PatchOp
from hami.core.objects import Pod
from hami.obs import metrics
from hami.web import asgi, wire

MAX_BODY_BYTES: Final = 7 * 1024 * 1024
VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")

_SECONDS: Final = metrics.verb_seconds.labels("webhook")

log = structlog.get_logger("hami.web.webhook")

Reviewer = Callable[[Pod, str], Admission]
"""Reviews a pod for a namespace: `core.admission.review` with vendors and settings filled in."""


class Webhook:
    """The admission route."""

    def __init__(self, review: Reviewer) -> None:
        self._review = review

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        with _SECONDS.time():
            try:
                body = await asgi.read_body(receive, MAX_BODY_BYTES)
            except asgi.BodyTooLargeError as error:
                return await asgi.answer(send, 200, _refused(VERSIONS[0], "", 413, str(error)))
            except asgi.ClientGoneError:
                return None
            answer, told = self._answer(_content_type(scope), body)
            await asgi.answer(send, 200, answer)
        if told is not None:
            # uvloop sends what was written at the end of a turn of the loop: the answer does not wait for the log line.
            await asyncio.sleep(0)
            told()
        return None

    def _answer(self, content_type: str, body: bytes) -> tuple[bytes, Callable[[], None] | None]:
        """The review's answer for one body, and what is then to be told of it."""
        if content_type.partition(";")[0].strip() != "application/json":
            return _refused(VERSIONS[0], "", 400, f"contentType={content_type}, expected application/json"), None
        try:
            review = wire.decode_review(body)
        except msgspec.DecodeError as error:
            return _refused(VERSIONS[0], "", 400, f"the body is no AdmissionReview: {error}"), None
        version = review.api_version
        if version not in VERSIONS:
            allowed = " or ".join(VERSIONS)
            return _refused(VERSIONS[0], "", 400, f"apiVersion {version!r} is not served: expected {allowed}"), None
        if review.request is None:
            return _refused(version, "", 400, "the AdmissionReview has no request"), None
        return self._decide(version, review.request)

    def _decide(self, version: str, request: wire._AdmissionRequest) -> tuple[bytes, Callable[[], None] | None]:
        if not request.creates_pod:
            return wire.review_answer(version, request.uid, allowed=True, code=200), None
        try:
            pod = wire.decoded_pod(request.object)
        except msgspec.DecodeError as error:
            return _refused(version, request.uid, 400, f"the object is no Pod: {error}"), None
        admission = self._review(pod, request.namespace or pod.metadata.namespace)
        answer = wire.review_answer(
            version,
            request.uid,
            allowed=admission.allowed,
            code=admission.code if not admission.allowed else 200,
            message=admission.message,
            reason="" if admission.allowed else "Forbidden",
            patch=[_operation(op) for op in admission.patch] if admission.allowed else None,
            warnings=list(admission.warnings) if version == VERSIONS[0] else None,
        )
        return answer, functools.partial(_tell, request.namespace, pod, admission)


def _operation(op: PatchOp) -> dict[str, object]:
    if op.op == "remove":
        return {"op": op.op, "path": op.path}
    return {"op": op.op, "path": op.path, "value": op.value}


def _tell(namespace: str, pod: Pod, admission: Admission) -> None:
    verdict = "denied" if not admission.allowed else "patched" if admission.patch else "unchanged"
    metrics.admissions.labels(verdict).inc()
    log.info(
        "admitted" if admission.allowed else "refused",
        namespace=namespace,
        pod=pod.metadata.name or pod.metadata.generate_name,
        verdict=verdict,
        message=admission.message,
    )


def _content_type(scope: asgi.Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bytes(value).decode("latin-1")
    return ""


def _refused(version: str, uid: str, code: int, message: str) -> bytes:
    return wire.review_answer(version, uid, allowed=False, code=code, message=message)
