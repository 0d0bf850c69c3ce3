"""Objects over HTTP: compare-and-swap, patches, status, names, defaults, validation, selectors, pages."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.sim.http import MERGE, Http, pod

PODS = "/api/v1/namespaces/default/pods"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


async def test_update_with_an_old_resource_version_conflicts_and_changes_nothing(world: Http) -> None:
    first = await world.post(PODS, pod("a"))
    await world.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}})
    code, status = await world.call("PUT", f"{PODS}/a", {**first, "metadata": {**first["metadata"], "labels": {}}})
    assert (code, status["reason"]) == (409, "Conflict")
    assert status["message"] == (
        'Operation cannot be fulfilled on pods "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert (await world.get(f"{PODS}/a"))["metadata"]["labels"] == {"x": "1"}


async def test_a_write_that_changes_nothing_keeps_the_version(world: Http) -> None:
    before = await world.post(PODS, pod("a"))
    after = await world.patch(f"{PODS}/a", {"metadata": {"uid": before["metadata"]["uid"]}})
    assert after == before


@pytest.mark.parametrize(
    ("content_type", "patch", "labels"),
    [
        (MERGE, {"metadata": {"labels": {"b": "2", "a": None}}}, {"b": "2"}),
        (STRATEGIC, {"metadata": {"labels": {"b": "2"}}}, {"a": "1", "b": "2"}),
        (JSON_PATCH, [{"op": "replace", "path": "/metadata/labels/a", "value": "9"}], {"a": "9"}),
        (JSON_PATCH, [{"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/c~1d"}], {"c/d": "1"}),
    ],
)
async def test_patch_forms(world: Http, content_type: str, patch: Any, labels: dict[str, str]) -> None:
    body = pod("a")
    body["metadata"]["labels"] = {"a": "1"}
    await world.post(PODS, body)
    assert (await world.patch(f"{PODS}/a", patch, content_type))["metadata"]["labels"] == labels


async def test_patch_preconditions(world: Http) -> None:
    made = await world.post(PODS, pod("a"))
    version = made["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "annotations": {"k": "v"}}}
    await world.patch(f"{PODS}/a", patch)
    code, status = await world.call("PATCH", f"{PODS}/a", {**patch}, MERGE)
    assert (code, status["reason"]) == (409, "Conflict")
    code, status = await world.call("PATCH", f"{PODS}/a", {"metadata": {"uid": "other"}}, MERGE)
    assert code == 422
    assert status["message"] == 'Pod "a" is invalid: metadata.uid: Invalid value: "other": field is immutable'
    other = {**pod("a"), "metadata": {"name": "a", "uid": "other"}}
    code, status = await world.call("PUT", f"{PODS}/a", other)
    assert (code, status["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: other, UID in object meta: " in status["message"]
    code, status = await world.call(
        "PATCH", f"{PODS}/a", [{"op": "test", "path": "/metadata/name", "value": "b"}], JSON_PATCH
    )
    assert (code, status["reason"]) == (422, "Invalid")
    code, _ = await world.call("PATCH", f"{PODS}/a", {}, "application/json")
    assert code == 415


async def test_strategic_merge_knows_our_lists(world: Http) -> None:
    await world.post("/api/v1/nodes", {"metadata": {"name": "n1"}, "spec": {}})
    for kind in ("Ready", "DiskPressure"):
        patch = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
        await world.patch("/api/v1/nodes/n1/status", patch, STRATEGIC)
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    node = await world.patch("/api/v1/nodes/n1/status", patch, STRATEGIC)
    conditions = {one["type"]: one["status"] for one in node["status"]["conditions"]}
    assert conditions == {"Ready": "False", "DiskPressure": "True"}
    await world.post(PODS, pod("a"))
    image = {"spec": {"containers": [{"name": "main", "image": "example/app:2"}]}}
    changed = await world.patch(f"{PODS}/a", image, STRATEGIC)
    assert changed["spec"]["containers"][0]["image"] == "example/app:2"
    assert changed["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"


async def test_status_and_spec_are_written_apart(world: Http) -> None:
    await world.post(PODS, pod("a"))
    main = await world.patch(f"{PODS}/a", {"status": {"phase": "Running"}})
    assert main["status"]["phase"] == "Pending"
    status = await world.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "n1"}})
    assert status["status"]["phase"] == "Running"
    assert "nodeName" not in status["spec"]
    code, answer = await world.call("PATCH", f"{PODS}/a", {"spec": {"nodeName": "n1"}}, MERGE)
    assert code == 422
    assert "pod updates may not change fields other than" in answer["message"]


async def test_defaults_and_canonical_quantities(world: Http) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}}
    made = await world.post(PODS, body)
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


def _container(**changes: Any) -> dict[str, Any]:
    return {"name": "main", "image": "i", **changes}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"containers": []}, 'Pod "a" is invalid: spec.containers: Required value'),
        ({"containers": [_container(name="")]}, "spec.containers[0].name: Required value"),
        ({"containers": [_container(), _container()]}, 'spec.containers[1].name: Duplicate value: "main"'),
        (
            {"containers": [_container(resources={"limits": {"nvidia.com/gpu": "1500m"}})]},
            'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "1500m": must be an integer',
        ),
        (
            {"containers": [_container(resources={"requests": {"nvidia.com/gpu": 1}})]},
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {
                "containers": [
                    _container(resources={"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}})
                ]
            },
            "must be equal to nvidia.com/gpu limit of 2",
        ),
    ],
)
async def test_invalid_pods(world: Http, spec: dict[str, Any], words: str) -> None:
    body = pod("a")
    body["spec"] = spec
    code, status = await world.call("POST", PODS, body)
    assert (code, status["reason"]) == (422, "Invalid")
    assert words in status["message"]


async def test_errors_in_the_real_words(world: Http) -> None:
    await world.post(PODS, pod("a"))
    number = pod("b")
    number["metadata"]["annotations"] = {"x": 1}
    table: list[tuple[str, str, Any, int, str]] = [
        ("GET", f"{PODS}/zz", None, 404, 'pods "zz" not found'),
        ("POST", PODS, pod("a"), 409, 'pods "a" already exists'),
        ("POST", PODS, number, 400, "json: cannot unmarshal number into Go struct field"),
        ("GET", "/api/v1/unknown", None, 404, "the server could not find the requested resource"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/x", None, 404, "leases.coordination.k8s.io"),
        ("PUT", f"{PODS}/a", pod("b"), 400, "does not match the name on the URL (a)"),
        ("PATCH", PODS, {}, 405, "the server does not allow this method on the requested resource"),
        ("PATCH", f"{PODS}/a", {"metadata": {"name": "b"}}, 400, "the name of the object (b) does not match the name"),
        ("POST", PODS, {"kind": "Node", "apiVersion": "v1"}, 400, "cannot be handled as a Pod"),
        ("POST", PODS, {**pod("q"), "metadata": {"name": "q", "namespace": "x"}}, 400, "does not match the namespace"),
        ("POST", PODS, pod("A_b"), 422, 'metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain must'),
    ]
    for method, path, body, code, words in table:
        got, status = await world.call(method, path, body, MERGE if method == "PATCH" else "application/json")
        assert (got, status["kind"]) == (code, "Status"), (method, path, status)
        assert words in status["message"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"metadata": "text"}, 400, "cannot unmarshal string into Go struct field Pod.metadata of type v1"),
        ({"metadata": {"name": "a", "labels": []}}, 400, "cannot unmarshal array into Go struct field ObjectMeta.meta"),
        ({"spec": "text"}, 400, "cannot unmarshal string into Go struct field Pod.spec of type v1.PodSpec"),
        ({"spec": {"containers": "x"}}, 400, "PodSpec.spec.containers of type []v1.Container"),
        ({"spec": {"containers": ["x"]}}, 400, "PodSpec.spec.containers of type v1.Container"),
        (
            {"spec": {"containers": [{"name": 5}]}},
            400,
            "cannot unmarshal number into Go struct field Container.spec.con",
        ),
        ({"spec": {"containers": [{"name": "a", "resources": 1}]}}, 400, "of type v1.ResourceRequirements"),
        ({"spec": {"containers": [{"name": "a", "resources": {"limits": "x"}}]}}, 400, "of type v1.ResourceList"),
        ({"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": {}}}}]}}, 400, "cannot be handled"),
        ({"spec": {"containers": [None]}}, 422, "name: Required value"),
        ({"metadata": None}, 422, "name or generateName is required"),
    ],
)
async def test_a_field_of_another_type_is_refused_in_the_decoders_words(
    world: Http, change: dict[str, Any], code: int, words: str
) -> None:
    got, status = await world.call("POST", PODS, {**pod("a"), **change})
    assert (got, status["kind"]) == (code, "Status"), status
    assert words in status["message"]


async def test_resources_of_null_are_none(world: Http) -> None:
    made = await world.post(
        PODS, {**pod("a"), "spec": {"containers": [{"name": "m", "image": "x", "resources": None}]}}
    )
    assert made["spec"]["containers"][0]["resources"] == {}


async def test_objects_need_their_namespace(world: Http) -> None:
    path, body = "/api/v1/namespaces/team/configmaps", {"metadata": {"name": "a"}}
    code, status = await world.call("POST", path, body)
    assert (code, status["message"]) == (404, 'namespaces "team" not found')
    made = await world.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    await world.post(path, body)
    await world.call("DELETE", "/api/v1/namespaces/team")


async def test_a_deleted_namespace_takes_its_content_along(http: Http) -> None:
    await http.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    await http.post("/api/v1/namespaces/team/configmaps", {"metadata": {"name": "a"}})
    await http.call("DELETE", "/api/v1/namespaces/team")
    assert (await http.get("/api/v1/configmaps"))["items"] == []


async def test_generate_name(world: Http) -> None:
    body = pod("x")
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "job-"
    names = {(await world.post(PODS, body))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


async def test_lease_updates_need_a_version_but_may_create(world: Http) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l"
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    code, made = await world.call("PUT", path, lease)
    assert code == 201
    code, status = await world.call("PUT", path, lease)
    assert (code, "must be specified for an update" in status["message"]) == (422, True)
    made["spec"]["holderIdentity"] = "b"
    code, changed = await world.call("PUT", path, made)
    assert (code, changed["spec"]["holderIdentity"]) == (200, "b")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"labelSelector": "app=a"}, ["p0"]),
        ({"labelSelector": "app in (a, b),!gone"}, ["p0", "p1"]),
        ({"labelSelector": "app notin (a)"}, ["p1", "p2"]),
        ({"labelSelector": "app"}, ["p0", "p1"]),
        ({"fieldSelector": "metadata.name=p1"}, ["p1"]),
        ({"fieldSelector": "spec.nodeName=,status.phase!=Running"}, ["p0", "p1"]),
        ({"fieldSelector": "spec.nodeName=n1"}, ["p2"]),
        ({"fieldSelector": "spec.schedulerName=hami-scheduler"}, ["p1"]),
    ],
)
async def test_selectors(world: Http, query: dict[str, str], names: list[str]) -> None:
    for index, app in enumerate(("a", "b", "")):
        body = pod(f"p{index}", schedulerName="hami-scheduler" if index == 1 else None)
        body["metadata"]["labels"] = {"app": app} if app else {}
        if index == 2:
            body["spec"]["nodeName"] = "n1"
        await world.post(PODS, body)
    found = await world.get("/api/v1/pods", **query)
    assert [item["metadata"]["name"] for item in found["items"]] == names


async def test_unknown_field_selectors_are_refused(world: Http) -> None:
    code, status = await world.call("GET", PODS, fieldSelector="spec.priority=1")
    assert code == 400
    assert "field label not supported: spec.priority" in status["message"]


async def test_pages_show_one_moment(world: Http) -> None:
    for index in range(5):
        await world.post(PODS, pod(f"p{index}"))
    page = await world.get(PODS, limit="2")
    assert page["metadata"]["remainingItemCount"] == 3
    await world.post(PODS, pod("late"))
    await world.call("DELETE", f"{PODS}/p3")
    names = [item["metadata"]["name"] for item in page["items"]]
    while token := page["metadata"].get("continue"):
        again = await world.get(PODS, limit="2", **{"continue": token})
        assert again["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]
        page = again
        names += [item["metadata"]["name"] for item in page["items"]]
    assert names == [f"p{index}" for index in range(5)]
    assert "kind" not in page["items"][0]


async def test_with_resource_version_zero_the_limit_is_ignored(world: Http) -> None:
    for index in range(3):
        await world.post(PODS, pod(f"p{index}"))
    deadline = time.monotonic() + 60
    while len((await world.get(PODS, limit="1", resourceVersion="0"))["items"]) != 3:
        assert time.monotonic() < deadline  # the real server answers from a cache that may lag behind
        await asyncio.sleep(0.02)


async def test_dry_run_stores_nothing(world: Http) -> None:
    code, _ = await world.call("POST", PODS, pod("a"), dryRun="All")
    assert code == 201
    assert (await world.get(PODS))["items"] == []


async def test_events_have_two_faces(world: Http) -> None:
    event = {
        "metadata": {"name": "e1"},
        "regarding": {"kind": "Pod", "name": "a", "namespace": "default"},
        "note": "hello",
        "reason": "R",
        "reportingController": "hami-scheduler",
        "reportingInstance": "hami-scheduler-0",
        "action": "Binding",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Normal",
    }
    made = await world.post("/apis/events.k8s.io/v1/namespaces/default/events", event)
    assert (made["apiVersion"], made["note"]) == ("events.k8s.io/v1", "hello")
    found = await world.get("/api/v1/events", fieldSelector="involvedObject.name=a,reportingComponent=hami-scheduler")
    assert [(item["message"], item["involvedObject"]["kind"]) for item in found["items"]] == [("hello", "Pod")]
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}
    patched = await world.patch("/apis/events.k8s.io/v1/namespaces/default/events/e1", {"series": series})
    assert patched["series"] == series


async def test_what_events_need(world: Http) -> None:
    about = {"kind": "Pod", "name": "a", "namespace": "default"}
    body: dict[str, Any] = {"metadata": {"name": "e1"}, "regarding": about}
    code, status = await world.call("POST", "/apis/events.k8s.io/v1/namespaces/default/events", body)
    assert code == 422
    causes = {one["field"] for one in status["details"]["causes"]}
    # The real server stops at the missing eventTime, which decides whether the other rules apply at all.
    assert "eventTime" in causes
    body["eventTime"] = "2026-01-01T00:00:00.000000Z"
    code, status = await world.call("POST", "/apis/events.k8s.io/v1/namespaces/default/events", body)
    causes = {one["field"] for one in status["details"]["causes"]}
    assert (code, causes) == (422, {"reportingController", "reportingInstance", "action", "reason", "type"})
    stranger = {"metadata": {"name": "e2"}, "involvedObject": {"kind": "Pod", "name": "a", "namespace": "kube-system"}}
    code, status = await world.call("POST", "/api/v1/namespaces/default/events", stranger)
    assert (code, "does not match event.namespace" in status["message"]) == (422, True)


async def test_micro_times_have_six_digits(world: Http) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    for text, wanted in (("2026-01-01T00:00:00Z", 400), ("2026-01-01T00:00:00.000000Z", 201)):
        spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": text}
        lease = {"metadata": {"name": "l"}, "spec": spec}
        code, answer = await world.call("POST", path, lease)
        assert code == wanted, answer
