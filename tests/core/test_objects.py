"""Views of Kubernetes objects: what we read of real manifests, and nothing else."""

import msgspec
import pytest

from hami.core import errors
from hami.core.objects import node_decoder, pod_decoder
from hami.core.pod_patch import PatchOp, set_resources
from tests.core.build import container

POD = b"""{"apiVersion": "v1", "kind": "Pod",
 "metadata": {"name": "p", "namespace": "default", "uid": "u", "managedFields": [{"manager": "kubectl"}],
              "labels": {"app": "x"}, "annotations": null, "ownerReferences": [{"kind": "Job", "name": "j"}]},
 "spec": {"initContainers": [{"name": "i", "restartPolicy": "Always"}],
          "containers": [{"name": "c", "env": [
             {"name": "A", "value": "b"},
             {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
             "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "500m"}}}],
          "volumes": [{"name": "v", "emptyDir": {}}]},
 "status": {"phase": "Failed", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}}"""


def test_a_pod_is_read_as_far_as_we_need_it() -> None:
    pod = pod_decoder.decode(POD)
    assert pod.key == "default/p"
    assert pod.labels == {"app": "x"}
    assert pod.annotations == {}
    assert [each.name for each in pod.containers] == ["i", "c"]
    assert pod.containers[1].limits == {"nvidia.com/gpu": 1, "cpu": "500m"}
    assert pod.containers[1].requests == {}
    assert [variable.value_from is None for variable in pod.containers[1].env or ()] == [True, False]
    assert pod.finished


def test_a_node_is_read_as_far_as_we_need_it() -> None:
    node = node_decoder.decode(b'{"metadata": {"name": "n1", "labels": {"gpu": "on"}}, "status": {"images": []}}')
    assert (node.name, node.labels, node.annotations) == ("n1", {"gpu": "on"}, {})


def test_api_errors_carry_what_the_server_said() -> None:
    error = errors.ConflictError(409, "Conflict", "", retry_after_s=1.5)
    assert (str(error), error.message, error.status, error.retry_after_s) == ("Conflict", "Conflict", 409, 1.5)
    assert isinstance(error, errors.HamiError)


@pytest.mark.parametrize(
    ("resources", "ops"),
    [
        (None, [PatchOp("add", "/c/resources", {"limits": {"a/b": "1"}, "requests": {"a/b": "1"}})]),
        ({}, [PatchOp("add", "/c/resources/limits", {"a/b": "1"}),
              PatchOp("add", "/c/resources/requests", {"a/b": "1"})]),
        ({"limits": {"a/b": 1}, "requests": {"a/b": "2"}}, [PatchOp("add", "/c/resources/requests/a~1b", "1")]),
        ({"limits": {"a/b": "1"}, "requests": {"a/b": "1"}}, []),
    ],
)  # fmt: skip
def test_resources_are_set_where_they_differ(resources: object, ops: list[PatchOp]) -> None:
    subject = container(resources=resources) if resources is not None else container()
    assert list(set_resources("/c", subject, {"a/b": "1"})) == ops
    assert msgspec.json.encode([op.value for op in ops])
