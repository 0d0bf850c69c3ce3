"""The two worlds that API contract tests run in: the stand-in, and the real kube-apiserver where Go could build it."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from hami.sim.apiserver import ApiServer
from tests.cluster import build
from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import PATIENCE_S, missing_tools, wait_until
from tests.sim.http import Http

WORLDS = ["sim", pytest.param("real", marks=pytest.mark.control_plane)]
_CLEARED = (
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/events",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/nodes",
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
)


@pytest.fixture(scope="session")
def real_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver alone: nobody else writes."""
    reason = build.missing_prerequisite() or missing_tools()
    if reason is not None and os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"CI must run the control-plane layer: {reason}")
    if reason is not None:
        pytest.skip(reason)
    plane = ControlPlane(build.ensure(), tmp_path_factory.mktemp("kube-apiserver"))
    try:
        plane.start_api()
        namespaces = [f"/api/v1/namespaces/{name}" for name in ("default", "kube-system")]  # made when it is up
        wait_until(lambda: all(map(plane.api.exists, namespaces)), PATIENCE_S, "the first namespaces")
        plane.api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        yield plane
    finally:
        plane.stop()


def _clear(plane: ControlPlane) -> None:
    for path in _CLEARED:
        for item in plane.api.call("GET", path)["items"]:
            name = item["metadata"]["name"]
            if item["metadata"].get("finalizers"):
                patch = {"metadata": {"finalizers": None}}
                plane.api.call("PATCH", f"{path}/{name}", patch, "application/merge-patch+json")
            plane.api.delete(f"{path}/{name}")


@pytest.fixture(params=WORLDS)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[Http]:
    """Plain HTTP against an empty API server of either kind."""
    if request.param == "sim":
        async with ApiServer(bookmark_interval_s=0.2) as server, aiohttp.ClientSession() as session:
            yield Http(session, server.base_url)
        return
    plane: ControlPlane = request.getfixturevalue("real_plane")
    _clear(plane)
    context = ssl.create_default_context(cafile=str(plane.authority.cert))
    context.load_cert_chain(plane.admin_pair.cert, plane.admin_pair.key)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Http(session, plane.server)
