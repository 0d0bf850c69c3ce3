"""Admission webhooks over TLS: selection, versions, patches, refusals, failure policies, time limits."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trustme
from aiohttp import web

from hami.sim.apiserver import ApiServer
from tests.sim.http import Http, pod

PODS = "/api/v1/namespaces/default/pods"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Hook:
    """A webhook whose answer the test sets; keeps the reviews that it was sent."""

    def __init__(self) -> None:
        self.reviews: list[dict[str, Any]] = []
        self.response: dict[str, Any] = {"allowed": True}
        self.delay_s = 0.0
        self.url = ""
        self.ca_bundle = ""

    async def serve(self, request: web.Request) -> web.Response:
        review = msgspec.json.decode(await request.read())
        self.reviews.append(review)
        await asyncio.sleep(self.delay_s)
        response = {"uid": review["request"]["uid"], **self.response}
        return web.json_response({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response})

    def patch(self, *operations: dict[str, Any]) -> None:
        encoded = base64.b64encode(msgspec.json.encode(list(operations))).decode()
        self.response = {"allowed": True, "patchType": "JSONPatch", "patch": encoded}

    def configuration(self, **changes: Any) -> dict[str, Any]:
        rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
        webhook = {
            "name": "vgpu.hami.io",
            "clientConfig": {"url": self.url + "/webhook", "caBundle": self.ca_bundle},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **changes,
        }
        return {"metadata": {"name": "hami-webhook"}, "webhooks": [webhook]}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def hook(authority: trustme.CA) -> AsyncIterator[Hook]:
    running = Hook()
    app = web.Application()
    app.router.add_post("/webhook", running.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "hami-scheduler.kube-system.svc").configure_cert(context)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    running.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    running.ca_bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    yield running
    await runner.cleanup()


async def test_a_patch_is_applied_and_its_limits_get_requests(http: Http, hook: Hook) -> None:
    hook.patch(
        {"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"nvidia.com/gpu": "1"}},
        {"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"},
    )
    await http.post(CONFIGURATIONS, hook.configuration())
    made = await http.post(PODS, pod("a"))
    assert made["spec"]["schedulerName"] == "hami-scheduler"
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    request = hook.reviews[0]["request"]
    assert (hook.reviews[0]["apiVersion"], request["operation"]) == ("admission.k8s.io/v1", "CREATE")
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert (request["namespace"], request["name"], request["oldObject"]) == ("default", "a", None)
    assert request["object"]["spec"]["schedulerName"] == "default-scheduler"


async def test_without_a_configuration_nothing_is_called(http: Http, hook: Hook) -> None:
    hook.response = {"allowed": False}
    assert (await http.post(PODS, pod("a")))["spec"]["schedulerName"] == "default-scheduler"
    assert hook.reviews == []


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (
            {"code": 403, "reason": "Forbidden", "message": "exceeding resource quota"},
            403,
            'admission webhook "vgpu.hami.io" denied the request: exceeding resource quota',
        ),
        ({"message": "no"}, 400, 'admission webhook "vgpu.hami.io" denied the request: no'),
        (None, 400, 'admission webhook "vgpu.hami.io" denied the request without explanation'),
    ],
)
async def test_refusals(http: Http, hook: Hook, status: Any, code: int, message: str) -> None:
    hook.response = {"allowed": False, "status": status}
    await http.post(CONFIGURATIONS, hook.configuration())
    got, answer = await http.call("POST", PODS, pod("a"))
    assert (got, answer["message"]) == (code, message)
    assert (await http.get(PODS))["items"] == []


@pytest.mark.parametrize(("versions", "sent"), [(["v1beta1"], "v1beta1"), (["v2", "v1beta1", "v1"], "v1beta1")])
async def test_review_version(http: Http, hook: Hook, versions: list[str], sent: str) -> None:
    await http.post(CONFIGURATIONS, hook.configuration(admissionReviewVersions=versions))
    await http.post(PODS, pod("a"))
    assert hook.reviews[0]["apiVersion"] == f"admission.k8s.io/{sent}"


@pytest.mark.parametrize(
    ("part", "labelled"), [("namespaceSelector", "namespace"), ("objectSelector", "pod"), ("objectSelector", "none")]
)
async def test_selectors_leave_pods_alone(http: Http, hook: Hook, part: str, labelled: str) -> None:
    selector = {"matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]}
    await http.post(CONFIGURATIONS, hook.configuration(**{part: selector}))
    labels = {"labels": {"hami.io/webhook": "ignore"}}
    if labelled == "namespace":
        await http.patch("/api/v1/namespaces/default", {"metadata": labels})
    body = pod("a")
    if labelled == "pod":
        body["metadata"] |= labels
    await http.post(PODS, body)
    assert len(hook.reviews) == (1 if labelled == "none" else 0)


async def test_other_operations_and_resources_are_not_sent(http: Http, hook: Hook) -> None:
    await http.post(CONFIGURATIONS, hook.configuration())
    await http.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "c"}})
    await http.post(PODS, pod("a"))
    await http.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}})
    assert len(hook.reviews) == 1


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
@pytest.mark.parametrize("failure", ["down", "slow", "stranger", "wrong uid", "no service"])
async def test_failure_policy(http: Http, hook: Hook, policy: str, failure: str) -> None:
    changes: dict[str, Any] = {"failurePolicy": policy}
    if failure == "down":
        changes["clientConfig"] = {"url": "https://127.0.0.1:1/webhook", "caBundle": hook.ca_bundle}
    elif failure == "slow":
        hook.delay_s, changes["timeoutSeconds"] = 30.0, 1
    elif failure == "stranger":
        other = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
        changes["clientConfig"] = {"url": hook.url + "/webhook", "caBundle": other}
    elif failure == "wrong uid":
        hook.response = {"allowed": True, "uid": "x"}
    else:
        changes["clientConfig"] = {"service": {"namespace": "kube-system", "name": "gone", "path": "/webhook"}}
    await http.post(CONFIGURATIONS, hook.configuration(**changes))
    code, answer = await http.call("POST", PODS, pod("a"))
    if policy == "Ignore":
        assert code == 201
    else:
        assert code == 500
        assert answer["message"].startswith('Internal error occurred: failed calling webhook "vgpu.hami.io": ')
        assert ("context deadline exceeded" in answer["message"]) == (failure == "slow")


async def test_a_service_is_resolved_and_its_name_verified(server: ApiServer, http: Http, hook: Hook) -> None:
    asked = []

    def resolve(namespace: str, name: str, port: int) -> str:
        asked.append((namespace, name, port))
        return hook.url

    server.admission.resolve_service = resolve
    service = {"namespace": "kube-system", "name": "hami-scheduler", "path": "/webhook"}
    config = {"service": service, "caBundle": hook.ca_bundle}
    await http.post(CONFIGURATIONS, hook.configuration(clientConfig=config))
    await http.post(PODS, pod("a"))
    assert asked == [("kube-system", "hami-scheduler", 443)]
    assert len(hook.reviews) == 1


async def test_warnings_reach_the_client(http: Http, hook: Hook) -> None:
    hook.response = {"allowed": True, "warnings": ['a "number" is odd']}
    await http.post(CONFIGURATIONS, hook.configuration())
    async with http.session.post(http.base_url + PODS, json=pod("a")) as response:
        assert response.headers["Warning"] == '299 - "a \\"number\\" is odd"'
