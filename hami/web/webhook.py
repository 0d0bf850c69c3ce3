"""`POST /webhook`: admission of pods (spec/scheduler 1.5). Answers are always HTTP 200 and carry a review."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from hami.core.admission import Admission
from hami.core.objects import Pod, pod_decoder
from hami.obs import metrics
from hami.web import asgi, wire

MAX_BODY_BYTES: Final = 7 * 1024 * 1024
VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")

log = structlog.get_logger("hami.web.webhook")

Reviewer = Callable[[Pod, str], Admission]
"""Reviews a pod for a namespace: `core.admission.review` with vendors and settings filled in."""


class Webhook:
    """The admission route."""

    def __init__(self, review: Reviewer) -> None:
        self._review = review

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        with metrics.verb_seconds.labels("webhook").time():
            try:
                body = await asgi.read_body(receive, MAX_BODY_BYTES)
            except asgi.BodyTooLargeError as error:
                return await asgi.answer(send, 200, _refused(VERSIONS[0], "", 413, str(error)))
            except asgi.ClientGoneError:
                return None
            await asgi.answer(send, 200, self.answer(_content_type(scope), body))
        return None

    def answer(self, content_type: str, body: bytes) -> bytes:
        """The review's answer for one body."""
        if content_type.partition(";")[0].strip() != "application/json":
            return _refused(VERSIONS[0], "", 400, f"contentType={content_type}, expected application/json")
        try:
            review = wire.decode_review(body)
        except msgspec.DecodeError as error:
            return _refused(VERSIONS[0], "", 400, f"the body is no AdmissionReview: {error}")
        version = review.api_version
        if version not in VERSIONS:
            allowed = " or ".join(VERSIONS)
            return _refused(VERSIONS[0], "", 400, f"apiVersion {version!r} is not served: expected {allowed}")
        if review.request is None:
            return _refused(version, "", 400, "the AdmissionReview has no request")
        return self._decide(version, review.request)

    def _decide(self, version: str, request: wire._AdmissionRequest) -> bytes:
        if request.operation not in ("", "CREATE"):
            return wire.review_answer(version, request.uid, allowed=True, code=200)
        try:
            pod = wire.decoded(pod_decoder, request.object)
        except msgspec.DecodeError as error:
            return _refused(version, request.uid, 400, f"the object is no Pod: {error}")
        admission = self._review(pod, request.namespace or pod.metadata.namespace)
        verdict = "denied" if not admission.allowed else "patched" if admission.patch else "unchanged"
        metrics.admissions.labels(verdict).inc()
        log.info(
            "admitted" if admission.allowed else "refused",
            namespace=request.namespace,
            pod=pod.metadata.name or pod.metadata.generate_name,
            verdict=verdict,
            message=admission.message,
        )
        patch = [
            {"op": op.op, "path": op.path} if op.op == "remove" else {"op": op.op, "path": op.path, "value": op.value}
            for op in admission.patch
        ]
        return wire.review_answer(
            version,
            request.uid,
            allowed=admission.allowed,
            code=admission.code if not admission.allowed else 200,
            message=admission.message,
            reason="" if admission.allowed else "Forbidden",
            patch=patch if admission.allowed else None,
            warnings=list(admission.warnings) if version == VERSIONS[0] else None,
        )


def _content_type(scope: asgi.Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bytes(value).decode("latin-1")
    return ""


def _refused(version: str, uid: str, code: int, message: str) -> bytes:
    return wire.review_answer(version, uid, allowed=False, code=code, message=message)
