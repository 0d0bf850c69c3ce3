"""Admission reviews that our own rules do not bring, odd objects in them, and what they may not do."""

from __future__ import annotations

import json

import pytest

from tests.reports.odd_values import ODD, places, replaced
from tests.reports.site import SIDECAR, Object, Site, card, gpu, pod

EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
BINDING = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n1"}}
FORGED = pod(gpu(gpu=1), annotations={"hami.io/vgpu-node": "n1"})


async def review(site: Site, body: object, **request: object) -> Object:
    """The response for a review with these fields of the request."""
    asked = {"uid": "r", "operation": "CREATE", "namespace": "default", "object": body, **request}
    document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    reply = await site.post("/webhook", document)
    assert reply.status == 200
    response: Object = json.loads(reply.body)["response"]
    return response


@pytest.mark.parametrize(
    ("body", "request_fields"),
    [
        pytest.param(EVICTION, {"subResource": "eviction", "kind": {"kind": "Eviction"}}, id="eviction"),
        pytest.param(BINDING, {"subResource": "binding", "kind": {"kind": "Binding"}}, id="binding"),
        pytest.param(
            {"kind": "Deployment", "spec": {"replicas": 1}}, {"kind": {"kind": "Deployment"}}, id="deployment"
        ),
        pytest.param(pod(gpu(gpu=1)), {"operation": "UPDATE", "subResource": "resize"}, id="resize"),
        pytest.param(pod(gpu(gpu=1)), {"operation": "UPDATE", "subResource": "ephemeralcontainers"}, id="ephemeral"),
        pytest.param(None, {"operation": "DELETE", "oldObject": pod(gpu(gpu=1))}, id="delete"),
        pytest.param({"kind": "PodExecOptions"}, {"operation": "CONNECT", "subResource": "exec"}, id="exec"),
    ],
)
async def test_rules_wider_than_ours_block_nothing_that_is_no_new_pod(body: object, request_fields: Object) -> None:
    """A drain must not fail because somebody made the rule `pods/*`."""
    response = await review(Site(), body, **request_fields)
    assert (response["allowed"], response.get("patch")) == (True, None)


async def test_control_a_new_pod_is_reviewed_with_and_without_its_kind() -> None:
    for kind in ({}, {"kind": {"group": "", "version": "v1", "kind": "Pod"}, "subResource": ""}, {"subResource": None}):
        assert not (await review(Site(), FORGED, **kind))["allowed"]


async def test_hami_960_a_pod_with_a_node_is_told_what_to_do_instead() -> None:
    response = await review(Site(), pod(gpu(gpu=1, mem=5), nodeName="gpu-7"))
    assert not response["allowed"]
    assert response["status"]["message"].startswith("pod has node assigned (gpu-7): leave spec.nodeName out")
    assert "nodeSelector" in response["status"]["message"]
    assert (await review(Site(), pod(gpu(), nodeName="gpu-7")))["allowed"]


async def test_a_dry_run_takes_nothing_from_the_quota() -> None:
    site = Site()
    site.node("n1")
    site.quota(limits_nvidia_com__gpumem="1000")
    for _ in range(3):
        assert (await review(site, pod(gpu(gpu=1, mem=1000)), dryRun=True))["allowed"]
    assert list(site.world.ledger.claims()) == []


@pytest.mark.parametrize("place", ["containers", "initContainers"])
async def test_two_containers_of_one_name_get_each_their_own_defaults(place: str) -> None:
    """kube-apiserver refuses such a pod after us; until then a name is no identity."""
    same = [gpu("a", mem=5), gpu("a", gpu=2, mem=6), gpu("a")]
    body = pod(*same) if place == "containers" else pod(gpu("app"), init=tuple(same))
    spec = (await Site().create(body))["pod"]["spec"]
    limits = [each["resources"].get("limits", {}) for each in spec[place]]
    assert [each.get("nvidia.com/gpu") for each in limits] == ["1", 2, None]


async def test_a_pod_of_five_hundred_containers_is_patched_and_placed() -> None:
    site = Site()
    site.node("n1", *(card(f"GPU-{at}", index=at, count=100) for at in range(8)), allocatable=800)
    body = (await site.create(pod(*(gpu(f"c{at}", mem=10) for at in range(500)))))["pod"]
    assert (await site.filter(body, "n1"))["NodeNames"] == ["n1"]
    site.world.settle_now()
    assert sum(use.slots for use in site.world.ledger.uses("n1").values()) == 500


RICH: Object = pod(
    {
        **gpu("a", gpu=1, mem=100, cores=10, priority=1),
        "env": [{"name": "A", "value": "b"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        "envFrom": [{"configMapRef": {"name": "x"}}],
        "securityContext": {"privileged": False},
    },
    {"name": "plain"},
    init=({**gpu("i", gpu=1, mem=5), **SIDECAR},),
    annotations={"nvidia.com/use-gputype": "A100", "hami.io/gpu-scheduler-policy": "binpack"},
    labels={"a": "b"},
    schedulerName="default-scheduler",
    runtimeClassName="nvidia",
    priority=5,
    resources={"limits": {"cpu": "1"}},
    ephemeralContainers=[{"name": "e"}],
)
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "r", "operation": "CREATE", "namespace": "default", "object": RICH, "dryRun": False},
}
NODE = {
    "metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": json.dumps([card("GPU-n1")])}},
    "spec": {"unschedulable": False},
    "status": {"allocatable": {"nvidia.com/gpu": "10"}, "conditions": [{"type": "Ready", "status": "True"}]},
}
CALLS: dict[str, tuple[str, Object]] = {
    "filter": ("/filter", {"Pod": RICH, "NodeNames": ["n1", "n2"]}),
    "simulate": ("/filter", {"Pod": RICH, "Nodes": {"items": [NODE]}}),
    "webhook": ("/webhook", REVIEW),
    "bind": ("/bind", {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n1"}),
    "preempt": ("/preempt", {"Pod": RICH, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "x"}]}}}),
}


@pytest.mark.parametrize("name", CALLS)
async def test_whatever_stands_anywhere_in_a_call_the_answer_is_one(name: str) -> None:
    """Each value of each call in turn becomes something odd: never a crash, never a share that nobody can hold."""
    route, document = CALLS[name]
    for path in places(document):
        for odd in ODD:
            site = Site(preempt=True)
            site.node("n1")
            site.node("n2")
            site.quota(limits_nvidia_com__gpumem="100000")
            reply = await site.post(route, replaced(document, path, odd))
            where = f"{path} = {str(odd)[:40]}"
            assert reply.status in ((200, 400) if route == "/preempt" else (200,)), where
            if reply.status == 200:
                json.loads(reply.body)
            site.world.settle_now()
            for node in ("n1", "n2"):
                for use in site.world.ledger.uses(node).values():
                    assert 0 < use.slots <= 10, where
                    assert 0 <= use.memory_mib <= 16384, where
