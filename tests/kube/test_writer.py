"""The bind protocol's reads and writes against the API server stand-in."""

from __future__ import annotations

import pytest
from aiohttp import web

from hami.core.errors import ConflictError, InvalidError, NotFoundError, TransportError
from hami.kube import paths
from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.placement.ports import ClusterWriter
from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.faults import Fault
from tests.kube.canned import serving
from tests.kube.objects import make_node, make_pod


def as_port(writer: KubeWriter) -> ClusterWriter:
    """mypy proves here that the writer implements the port."""
    return writer


async def test_node_annotations_are_set_and_removed(client: ApiClient) -> None:
    await make_node(client, "n1", {"keep": "1", "drop": "2"})
    writer = as_port(KubeWriter(client))
    patched = await writer.patch_node_annotations("n1", {"new": "3", "drop": None}, "")
    assert patched.annotations == {"keep": "1", "new": "3"}
    assert (await writer.get_node("n1")).annotations == {"keep": "1", "new": "3"}


async def test_a_stale_version_conflicts_and_changes_nothing(client: ApiClient) -> None:
    node = await make_node(client, "n1")
    writer = KubeWriter(client)
    await writer.patch_node_annotations("n1", {"a": "1"}, node.metadata.resource_version)
    with pytest.raises(ConflictError):
        await writer.patch_node_annotations("n1", {"a": "2"}, node.metadata.resource_version)
    assert (await writer.get_node("n1")).annotations == {"a": "1"}


async def test_an_annotation_is_dropped_only_with_its_value(client: ApiClient) -> None:
    await make_node(client, "n1", {"hami.io/a~b": "1", "keep": "2"})
    writer = KubeWriter(client)
    for key in ("hami.io/a~b", "not-there"):
        with pytest.raises(ConflictError):
            await writer.drop_node_annotation("n1", key, "2")
    assert (await writer.get_node("n1")).annotations == {"hami.io/a~b": "1", "keep": "2"}
    assert (await writer.drop_node_annotation("n1", "hami.io/a~b", "1")).annotations == {"keep": "2"}
    with pytest.raises(NotFoundError):
        await writer.drop_node_annotation("n2", "keep", "2")


async def test_pod_patch_checks_uid_and_sets_labels(client: ApiClient) -> None:
    pod = await make_pod(client, "p1")
    writer = KubeWriter(client)
    with pytest.raises(ConflictError):
        await writer.patch_pod_annotations("default", "p1", {"a": "1"}, uid="another")
    patched = await writer.patch_pod_annotations(
        "default", "p1", {"a": "1"}, uid=pod.metadata.uid, labels={"hami.io/vgpu-node": "n1"}
    )
    assert patched.annotations == {"a": "1"}
    assert patched.labels == {"hami.io/vgpu-node": "n1"}


async def test_a_page_of_a_proxy_instead_of_an_object_is_a_failed_call() -> None:
    """Such a page came with 200 from a load balancer: the callers wait for ApiError and TransportError only."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="<html>maintenance</html>")

    async with serving(handler) as address, ApiClient(Access(address)) as client:
        writer = as_port(KubeWriter(client))
        for call in (
            writer.get_node("n1"),
            writer.get_pod("default", "p1"),
            writer.list_pods_on_node("n1"),
            writer.patch_node_annotations("n1", {"a": "1"}, ""),
            writer.patch_pod_annotations("default", "p1", {"a": "1"}, uid=""),
        ):
            with pytest.raises(TransportError, match="cannot be read"):
                await call


async def test_kube_apiservers_word_for_another_uid_is_a_conflict_too() -> None:
    async def handler(request: web.Request) -> web.Response:
        message = 'Pod "p1" is invalid: metadata.uid: Invalid value: "another": field is immutable'
        return web.json_response({"kind": "Status", "message": message, "reason": "Invalid", "code": 422}, status=422)

    async with serving(handler) as address, ApiClient(Access(address)) as client:
        with pytest.raises(ConflictError, match="immutable"):
            await KubeWriter(client).patch_pod_annotations("default", "p1", {"a": "1"}, uid="another")
        with pytest.raises(InvalidError):
            await KubeWriter(client).patch_pod_annotations("default", "p1", {"a": "1"}, uid="")


async def test_binding_carries_annotations_onto_the_pod(client: ApiClient) -> None:
    await make_node(client, "n1")
    pod = await make_pod(client, "p1")
    writer = KubeWriter(client)
    meta = pod.metadata
    await writer.bind(
        "default", "p1", uid=meta.uid, resource_version=meta.resource_version, node="n1", annotations={"a": "1"}
    )
    bound = await writer.get_pod("default", "p1")
    assert (bound.spec.node_name, bound.annotations) == ("n1", {"a": "1"})
    with pytest.raises(ConflictError):
        await writer.bind("default", "p1", uid=meta.uid, resource_version="", node="n1", annotations={})


async def test_pods_of_one_node_are_listed_over_pages(client: ApiClient) -> None:
    await make_node(client, "n1")
    for index in range(205):
        await make_pod(client, f"p{index}", node="n1" if index < 203 else "")
    listed = await KubeWriter(client).list_pods_on_node("n1")
    assert {pod.metadata.name for pod in listed} == {f"p{index}" for index in range(203)}


async def test_a_pod_that_cannot_be_decoded_fails_the_list_and_is_still_somebody() -> None:
    """What it holds is not known, so that nobody may take the rest for all; that it is there is known."""
    good = '{"metadata": {"name": "p1", "uid": "u1"}}'
    odd = '{"metadata": {"name": "p2", "uid": "u2", "annotations": {"a": 1}}, "spec": {"containers": 7}}'

    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=f'{{"items": [{good}, {odd}]}}')

    async with serving(handler) as address, ApiClient(Access(address)) as client:
        with pytest.raises(TransportError, match="a pod on node n1 cannot be read"):
            await KubeWriter(client).list_pods_on_node("n1")
        assert await KubeWriter(client).pod_uids_on_node("n1") == {"u1", "u2"}


async def test_missing_objects_are_not_found(client: ApiClient) -> None:
    writer = KubeWriter(client)
    with pytest.raises(NotFoundError):
        await writer.get_node("absent")
    with pytest.raises(NotFoundError):
        await writer.get_pod("default", "absent")


async def test_a_lost_answer_of_a_plain_annotation_patch_is_repeated(api: ApiServer, client: ApiClient) -> None:
    await make_node(client, "n1")
    api.faults.add(Fault("lost-answer", verb="patch", times=1))
    patched = await KubeWriter(client).patch_node_annotations("n1", {"a": "1"})
    assert patched.annotations == {"a": "1"}
    assert sum(seen.verb == "patch" for seen in api.seen) == 2


def test_names_are_quoted_in_paths() -> None:
    assert paths.pod("a/b", "c?d") == "/api/v1/namespaces/a%2Fb/pods/c%3Fd"
