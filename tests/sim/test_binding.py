"""pods/binding as the real server does it: one write, preconditions, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest

from hami.sim.apiserver import ApiServer
from tests.sim.http import MERGE, Http, pod

PODS = "/api/v1/namespaces/default/pods"


def binding(name: str, node: str = "n1", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": "default", **meta},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


async def test_binding_copies_annotations_in_the_write_that_sets_the_node(server: ApiServer, http: Http) -> None:
    body = pod("a")
    body["metadata"]["annotations"] = {"kept": "1", "changed": "old"}
    made = await http.post(PODS, body)
    before = server.store.revision
    meta = {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}
    answer = await http.post(f"{PODS}/a/binding", binding("a", annotations={"changed": "new", "added": "2"}, **meta))
    assert answer["status"] == "Success"
    assert server.store.revision == before + 1
    bound = await http.get(f"{PODS}/a")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"kept": "1", "changed": "new", "added": "2"}
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [("PodScheduled", "True")]


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"uid": "other"}, "Precondition failed: UID in precondition: other, UID in object meta: "),
        ({"resourceVersion": "1"}, "Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in"),
    ],
)
async def test_preconditions(world: Http, meta: dict[str, str], words: str) -> None:
    await world.post(PODS, pod("a"))
    code, status = await world.call("POST", f"{PODS}/a/binding", binding("a", **meta))
    assert (code, status["reason"]) == (409, "Conflict")
    assert status["message"].startswith('Operation cannot be fulfilled on pods "a": StorageError: invalid object')
    assert words in status["message"]
    assert "nodeName" not in (await world.get(f"{PODS}/a"))["spec"]


async def test_a_bound_pod_is_not_bound_again(world: Http) -> None:
    await world.post(PODS, pod("a"))
    await world.post(f"{PODS}/a/binding", binding("a"))
    code, status = await world.call("POST", f"{PODS}/a/binding", binding("a", "n2"))
    assert code == 409
    assert status["message"] == (
        'Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "n1"'
    )


async def test_other_refusals(world: Http) -> None:
    await world.post(PODS, pod("gated", schedulingGates=[{"name": "wait"}]))
    finalized = pod("leaving")
    finalized["metadata"]["finalizers"] = ["example.com/hold"]
    await world.post(PODS, finalized)
    await world.call("DELETE", f"{PODS}/leaving")
    for name, body, code, words in (
        ("missing", binding("missing"), 404, 'pods "missing" not found'),
        ("gated", binding("gated"), 409, "has non-empty .spec.schedulingGates"),
        ("leaving", binding("leaving"), 409, "is being deleted, cannot be assigned to a host"),
        ("gated", binding("other"), 400, "name in URL does not match name in Binding object"),
    ):
        got, status = await world.call("POST", f"{PODS}/{name}/binding", body)
        assert got == code, status
        assert words in status["message"]


async def test_deletion_of_a_bound_pod_waits_for_the_kubelet(world: Http) -> None:
    made = await world.post(PODS, pod("a"))
    await world.post(f"{PODS}/a/binding", binding("a"))
    code, marked = await world.call("DELETE", f"{PODS}/a")
    assert (code, marked["metadata"]["deletionGracePeriodSeconds"]) == (200, 30)
    code, shorter = await world.call("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 5})
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    assert shorter["metadata"]["deletionTimestamp"] < marked["metadata"]["deletionTimestamp"]
    code, status = await world.call("DELETE", f"{PODS}/a", {"preconditions": {"uid": "other"}})
    assert code == 409
    assert "the UID in the precondition (other) does not match the UID in record" in status["message"]
    now = {"gracePeriodSeconds": 0, "preconditions": {"uid": made["metadata"]["uid"]}}
    code, _ = await world.call("DELETE", f"{PODS}/a", now)
    assert code == 200
    assert (await world.call("GET", f"{PODS}/a"))[0] == 404


@pytest.mark.parametrize("phase", ["Pending", "Succeeded"])
async def test_pods_that_no_kubelet_holds_go_at_once(world: Http, phase: str) -> None:
    await world.post(PODS, pod("a"))
    if phase == "Succeeded":
        await world.post(f"{PODS}/a/binding", binding("a"))
        await world.patch(f"{PODS}/a/status", {"status": {"phase": phase}})
    await world.call("DELETE", f"{PODS}/a")
    assert (await world.get(PODS))["items"] == []


async def test_a_finalizer_holds_a_deleted_object_until_it_is_taken_away(world: Http) -> None:
    body = pod("a")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await world.post(PODS, body)
    code, held = await world.call("DELETE", f"{PODS}/a")
    assert (code, "deletionTimestamp" in held["metadata"]) == (200, True)
    await world.call("PATCH", f"{PODS}/a", {"metadata": {"finalizers": None}}, MERGE)
    assert (await world.call("GET", f"{PODS}/a"))[0] == 404
