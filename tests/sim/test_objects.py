"""Objects over HTTP: compare-and-swap, patches, status, names, defaults, validation, selectors, pages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.conftest import MERGE, Http, pod

PODS = "/api/v1/namespaces/default/pods"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


async def test_update_with_an_old_resource_version_conflicts_and_changes_nothing(http: Http) -> None:
    first = await http.post(PODS, pod("a"))
    await http.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}})
    code, status = await http.call("PUT", f"{PODS}/a", {**first, "metadata": {**first["metadata"], "labels": {}}})
    assert (code, status["reason"]) == (409, "Conflict")
    assert status["message"] == (
        'Operation cannot be fulfilled on pods "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert (await http.get(f"{PODS}/a"))["metadata"]["labels"] == {"x": "1"}


async def test_a_write_that_changes_nothing_keeps_the_version(http: Http) -> None:
    before = await http.post(PODS, pod("a"))
    after = await http.patch(f"{PODS}/a", {"metadata": {"uid": before["metadata"]["uid"]}})
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
async def test_patch_forms(http: Http, content_type: str, patch: Any, labels: dict[str, str]) -> None:
    body = pod("a")
    body["metadata"]["labels"] = {"a": "1"}
    await http.post(PODS, body)
    assert (await http.patch(f"{PODS}/a", patch, content_type))["metadata"]["labels"] == labels


async def test_patch_preconditions(http: Http) -> None:
    made = await http.post(PODS, pod("a"))
    version = made["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "annotations": {"k": "v"}}}
    await http.patch(f"{PODS}/a", patch)
    code, status = await http.call("PATCH", f"{PODS}/a", {**patch}, MERGE)
    assert (code, status["reason"]) == (409, "Conflict")
    code, _ = await http.call("PATCH", f"{PODS}/a", {"metadata": {"uid": "other"}}, MERGE)
    assert code == 409
    code, status = await http.call(
        "PATCH", f"{PODS}/a", [{"op": "test", "path": "/metadata/name", "value": "b"}], JSON_PATCH
    )
    assert (code, status["reason"]) == (422, "Invalid")
    code, _ = await http.call("PATCH", f"{PODS}/a", {}, "application/apply-patch+yaml")
    assert code == 415


async def test_strategic_merge_knows_our_lists(http: Http) -> None:
    await http.post("/api/v1/nodes", {"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "a", "effect": "X"}]}})
    for kind in ("Ready", "DiskPressure"):
        patch = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
        await http.patch("/api/v1/nodes/n1/status", patch, STRATEGIC)
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    node = await http.patch("/api/v1/nodes/n1/status", patch, STRATEGIC)
    assert node["status"]["conditions"] == [
        {"type": "Ready", "status": "False"},
        {"type": "DiskPressure", "status": "True"},
    ]
    await http.post(PODS, pod("a"))
    image = {"spec": {"containers": [{"name": "main", "image": "example/app:2"}]}}
    changed = await http.patch(f"{PODS}/a", image, STRATEGIC)
    assert changed["spec"]["containers"][0]["image"] == "example/app:2"
    assert changed["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"


async def test_status_and_spec_are_written_apart(http: Http) -> None:
    await http.post(PODS, pod("a"))
    main = await http.patch(f"{PODS}/a", {"status": {"phase": "Running"}})
    assert main["status"]["phase"] == "Pending"
    status = await http.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "n1"}})
    assert status["status"]["phase"] == "Running"
    assert "nodeName" not in status["spec"]
    code, answer = await http.call("PATCH", f"{PODS}/a", {"spec": {"nodeName": "n1"}}, MERGE)
    assert code == 422
    assert "pod updates may not change fields other than" in answer["message"]


async def test_defaults_and_canonical_quantities(http: Http) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}}
    made = await http.post(PODS, body)
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
async def test_invalid_pods(http: Http, spec: dict[str, Any], words: str) -> None:
    body = pod("a")
    body["spec"] = spec
    code, status = await http.call("POST", PODS, body)
    assert (code, status["reason"]) == (422, "Invalid")
    assert words in status["message"]


async def test_errors_in_the_real_words(http: Http) -> None:
    await http.post(PODS, pod("a"))
    number = pod("b")
    number["metadata"]["annotations"] = {"x": 1}
    table: list[tuple[str, str, Any, int, str]] = [
        ("GET", f"{PODS}/zz", None, 404, 'pods "zz" not found'),
        ("POST", PODS, pod("a"), 409, 'pods "a" already exists'),
        ("POST", PODS, number, 400, "json: cannot unmarshal number into Go struct field"),
        ("GET", "/api/v1/unknown", None, 404, "the server could not find the requested resource"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/x", None, 404, "leases.coordination.k8s.io"),
        ("PUT", f"{PODS}/a", pod("b"), 400, "does not match the name on the URL (a)"),
        ("PATCH", PODS, {}, 405, 'patch is not supported on resources of kind "pods"'),
    ]
    for method, path, body, code, words in table:
        got, status = await http.call(method, path, body, MERGE if method == "PATCH" else "application/json")
        assert (got, status["kind"]) == (code, "Status"), (method, path, status)
        assert words in status["message"]


async def test_objects_need_their_namespace(http: Http) -> None:
    body = pod("a")
    body["metadata"]["namespace"] = "team"
    code, status = await http.call("POST", "/api/v1/namespaces/team/pods", body)
    assert (code, status["message"]) == (404, 'namespaces "team" not found')
    made = await http.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    await http.post("/api/v1/namespaces/team/pods", body)
    await http.call("DELETE", "/api/v1/namespaces/team")
    assert (await http.get("/api/v1/pods"))["items"] == []


async def test_generate_name(http: Http) -> None:
    body = pod("x")
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "job-"
    names = {(await http.post(PODS, body))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


async def test_lease_updates_need_a_version_but_may_create(http: Http) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l"
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    code, made = await http.call("PUT", path, lease)
    assert code == 201
    code, status = await http.call("PUT", path, lease)
    assert (code, "must be specified for an update" in status["message"]) == (422, True)
    made["spec"]["holderIdentity"] = "b"
    code, changed = await http.call("PUT", path, made)
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
async def test_selectors(http: Http, query: dict[str, str], names: list[str]) -> None:
    for index, app in enumerate(("a", "b", "")):
        body = pod(f"p{index}", schedulerName="hami-scheduler" if index == 1 else None)
        body["metadata"]["labels"] = {"app": app} if app else {}
        if index == 2:
            body["spec"]["nodeName"] = "n1"
        await http.post(PODS, body)
    found = await http.get("/api/v1/pods", **query)
    assert [item["metadata"]["name"] for item in found["items"]] == names


async def test_unknown_field_selectors_are_refused(http: Http) -> None:
    code, status = await http.call("GET", PODS, fieldSelector="spec.priority=1")
    assert code == 400
    assert "field label not supported: spec.priority" in status["message"]


async def test_pages_show_one_moment(http: Http) -> None:
    for index in range(5):
        await http.post(PODS, pod(f"p{index}"))
    page = await http.get(PODS, limit="2")
    assert page["metadata"]["remainingItemCount"] == 3
    await http.post(PODS, pod("late"))
    await http.call("DELETE", f"{PODS}/p3")
    names = [item["metadata"]["name"] for item in page["items"]]
    while token := page["metadata"].get("continue"):
        again = await http.get(PODS, limit="2", **{"continue": token})
        assert again["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]
        page = again
        names += [item["metadata"]["name"] for item in page["items"]]
    assert names == [f"p{index}" for index in range(5)]
    assert "kind" not in page["items"][0]


async def test_with_resource_version_zero_the_limit_is_ignored(http: Http) -> None:
    for index in range(3):
        await http.post(PODS, pod(f"p{index}"))
    assert len((await http.get(PODS, limit="1", resourceVersion="0"))["items"]) == 3


async def test_dry_run_stores_nothing(http: Http) -> None:
    code, _ = await http.call("POST", PODS, pod("a"), dryRun="All")
    assert code == 201
    assert (await http.get(PODS))["items"] == []


async def test_events_have_two_faces(http: Http) -> None:
    event = {
        "metadata": {"name": "e1"},
        "regarding": {"kind": "Pod", "name": "a", "namespace": "default"},
        "note": "hello",
        "reason": "R",
        "reportingController": "hami-scheduler",
        "type": "Normal",
    }
    made = await http.post("/apis/events.k8s.io/v1/namespaces/default/events", event)
    assert (made["apiVersion"], made["note"]) == ("events.k8s.io/v1", "hello")
    found = await http.get("/api/v1/events", fieldSelector="involvedObject.name=a,reportingComponent=hami-scheduler")
    assert [(item["message"], item["involvedObject"]["kind"]) for item in found["items"]] == [("hello", "Pod")]
    patched = await http.patch("/apis/events.k8s.io/v1/namespaces/default/events/e1", {"series": {"count": 2}})
    assert patched["series"] == {"count": 2}
