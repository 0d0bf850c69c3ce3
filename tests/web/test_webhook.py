"""`/webhook` on the wire: both review versions, patches that apply, and refusals as kube-apiserver reads them."""

from __future__ import annotations

import base64
import functools
import json
from typing import Any

import jsonpatch
import pytest

from hami.core import admission
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from hami.web.webhook import MAX_BODY_BYTES, Webhook
from tests.web.asgi_client import call
from tests.web.review_bodies import body

REVIEW = functools.partial(admission.review, registry=(Nvidia(NvidiaConfig()),), settings=admission.AdmissionSettings())
WEBHOOK = Webhook(REVIEW)


def pod(**limits: object) -> dict[str, Any]:
    resources = {"limits": {f"nvidia.com/{name}": value for name, value in limits.items()}}
    spec = {"schedulerName": "default-scheduler", "containers": [{"name": "c", "resources": resources}]}
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": spec}


async def review(content: bytes, content_type: str = "application/json") -> dict[str, Any]:
    reply = await call(WEBHOOK, "/webhook", content, content_type=content_type)
    assert reply.status == 200
    answer: dict[str, Any] = json.loads(reply.body)
    assert answer["kind"] == "AdmissionReview"
    return answer


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
async def test_the_patch_applies_and_a_second_pass_changes_nothing(version: str) -> None:
    document = pod(gpumem="3000")
    answer = await review(body(version, document))
    assert answer["apiVersion"] == version
    response = answer["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("r-1", True, "JSONPatch")
    changed = jsonpatch.apply_patch(document, json.loads(base64.b64decode(response["patch"])))
    assert changed["spec"]["schedulerName"] == "hami-scheduler"
    assert changed["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    again = (await review(body(version, changed)))["response"]
    assert again["allowed"]
    assert "patch" not in again


async def test_a_refusal_has_upstreams_form() -> None:
    response = (await review(body("admission.k8s.io/v1", pod(gpu="1", gpumem="16Gi"))))["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 403)
    assert "nvidia.com/gpumem" in response["status"]["message"]
    assert "16384" in response["status"]["message"]


async def test_updates_pass_unseen() -> None:
    content = json.loads(body("admission.k8s.io/v1", pod(gpumem="16Gi")))
    content["request"]["operation"] = "UPDATE"
    response = (await review(json.dumps(content).encode()))["response"]
    assert response["allowed"]


@pytest.mark.parametrize(
    ("content", "content_type", "code", "words"),
    [
        (b"{}", "text/plain", 400, "contentType=text/plain"),
        (b"{}", "", 400, "expected application/json"),
        (b"", "application/json", 400, "no AdmissionReview"),
        (b"[1]", "application/json", 400, "no AdmissionReview"),
        (b'{"apiVersion":"admission.k8s.io/v2"}', "application/json", 400, "v2"),
        (b'{"apiVersion":"admission.k8s.io/v1"}', "application/json", 400, "no request"),
        (body("admission.k8s.io/v1", {"spec": {"containers": "x"}}), "application/json", 400, "no Pod"),
        (body("admission.k8s.io/v1", {"spec": {}}), "application/json", 403, "pod has no containers"),
        (b" " * (MAX_BODY_BYTES + 1), "application/json", 413, "larger than"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes | str) else value,
)
async def test_broken_reviews_are_refused_with_code_and_words(
    content: bytes, content_type: str, code: int, words: str
) -> None:
    response = (await review(content, content_type))["response"]
    assert not response["allowed"]
    assert response["status"]["code"] == code
    assert words in response["status"]["message"]
