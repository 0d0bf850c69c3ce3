"""Raw calls: errors, repeats, limits, credentials."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme
import yaml
from aiohttp import web
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException

from hami.core.errors import (
    ApiError,
    ConfigError,
    ConflictError,
    GoneError,
    HamiError,
    InvalidError,
    NotFoundError,
    TransportError,
)
from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.kube.lines import LineSplitter
from hami.kube.ratelimit import Lane, bucket_for
from hami.kube.status import error_from
from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.faults import Fault
from hami.sim.apiserver.server import TlsFiles
from tests.kube.canned import serving
from tests.kube.objects import make_node

NEARLY_NONE = 0.001
"""Requests a second: nobody gets a second turn, however slow this machine is."""


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, ApiError),
        (403, ApiError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, GoneError),
        (422, InvalidError),
        (429, ApiError),
        (500, ApiError),
    ],
)
def test_failure_status_becomes_its_error(status: int, kind: type[ApiError]) -> None:
    body = b'{"kind":"Status","message":"no such thing","reason":"Why","code":%d}' % status
    error = error_from(status, body)
    assert type(error) is kind
    assert (error.status, error.reason, error.message) == (status, "Why", "no such thing")


@pytest.mark.parametrize(
    ("body", "header", "expected_s"),
    [(b"{}", "7", 7.0), (b'{"details":{"retryAfterSeconds":3}}', "", 3.0), (b"{}", "soon", 0.0), (b"{}", "", 0.0)],
)
def test_retry_after_is_read_from_header_or_body(body: bytes, header: str, expected_s: float) -> None:
    assert error_from(429, body, header).retry_after_s == expected_s


def test_a_page_of_a_proxy_becomes_the_message() -> None:
    assert "<h1>Bad gateway" in str(error_from(502, b"<h1>Bad gateway</h1>" + b"x" * 10_000))
    assert len(str(error_from(502, b"x" * 10_000))) <= 500


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_do_not_depend_on_how_the_bytes_arrive(size: int) -> None:
    body = b"one\n\nthree is longer\n" + b"x" * 50 + b"\ntail"
    splitter = LineSplitter()
    lines = [line for start in range(0, len(body), size) for line in splitter.feed(body[start : start + size])]
    assert lines == [b"one", b"three is longer", b"x" * 50]
    assert splitter.feed(b"\n") == [b"tail"]


async def test_reads_are_repeated_after_429(api: ApiServer, client: ApiClient) -> None:
    await make_node(client, "n1")
    fault = api.faults.add(Fault("too-many-requests", verb="get", seconds=0, times=2))
    assert b'"n1"' in await client.request("GET", "/api/v1/nodes/n1")
    assert fault.hits == 2
    assert client.stats.retries == 2


async def test_a_write_is_not_repeated_after_429(api: ApiServer, client: ApiClient) -> None:
    fault = api.faults.add(Fault("too-many-requests", verb="create", seconds=0, times=2))
    with pytest.raises(ApiError) as caught:
        await make_node(client, "n1")
    assert caught.value.status == 429
    assert fault.hits == 1


@pytest.mark.parametrize(("method", "idempotent", "sent"), [("GET", None, 2), ("POST", None, 1), ("PATCH", True, 2)])
async def test_a_broken_connection_is_tried_again_only_where_harmless(
    method: str, idempotent: bool | None, sent: int
) -> None:
    count = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal count
        count += 1
        if count == 1 and request.transport:
            request.transport.abort()
        return web.Response(text="ok")

    async with serving(handler) as address, ApiClient(Access(address)) as client:
        if sent == 1:
            with pytest.raises(TransportError):
                await client.request(method, "/x", b"{}", idempotent=idempotent)
        else:
            # A fresh connection for the first request: aiohttp itself repeats reads on reused ones.
            assert await client.request(method, "/x", idempotent=idempotent) == b"ok"
    assert count >= sent if method == "GET" else count == sent


async def test_every_call_has_a_time_limit(api: ApiServer, client: ApiClient) -> None:
    api.faults.add(Fault("latency", seconds=600))
    started = time.monotonic()
    with pytest.raises(TransportError, match=r"no answer within 0\.1 s"):
        await client.request("GET", "/api/v1/nodes", timeout_s=0.1)
    assert time.monotonic() - started < 120


async def test_nobody_listens() -> None:
    async with ApiClient(Access("http://127.0.0.1:1")) as client:
        with pytest.raises(TransportError):
            await client.request("POST", "/api/v1/nodes", b"{}")


async def cut_off(calls: list[asyncio.Task[bytes]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_qps_holds_back_what_exceeds_the_burst_and_lanes_are_apart(api: ApiServer, tmp_path: Path) -> None:
    path = api.write_kubeconfig(tmp_path / "kubeconfig")
    async with await ApiClient.load(str(path), qps=20, burst=2) as client:
        started = time.monotonic()
        await asyncio.gather(*(client.request("GET", "/api/v1/nodes") for _ in range(8)))
        assert time.monotonic() - started >= 0.29
    async with await ApiClient.load(str(path), qps=NEARLY_NONE, burst=2) as client:
        calls = [asyncio.create_task(client.request("GET", "/api/v1/nodes")) for _ in range(8)]
        await client.request("GET", "/api/v1/nodes", lane=Lane.BIND)
        await asyncio.gather(*calls[:2])
        assert not any(call.done() for call in calls[2:])
        await cut_off(calls)


async def test_a_binding_does_not_wait_behind_tokens(api: ApiServer, tmp_path: Path) -> None:
    """Its node waits with it."""
    path = api.write_kubeconfig(tmp_path / "kubeconfig")
    async with await ApiClient.load(str(path), qps=NEARLY_NONE, burst=1) as client:
        tokens = [asyncio.create_task(client.request("GET", "/api/v1/nodes", lane=Lane.BIND)) for _ in range(12)]
        await asyncio.sleep(0)
        await client.request("GET", "/api/v1/nodes", lane=Lane.BINDING)
        assert sum(task.done() for task in tokens) < 12
        await cut_off(tokens)


@pytest.mark.parametrize(("lane", "at_once"), [(Lane.DEFAULT, 3), (Lane.BIND, 12), (Lane.BINDING, 12), (Lane.EVENT, 3)])
async def test_lanes_of_which_each_pod_needs_several_requests_are_wider(lane: Lane, at_once: int) -> None:
    bucket = bucket_for(lane, 0.001, 3)
    for _ in range(at_once):
        async with asyncio.timeout(60):
            await bucket.acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await bucket.acquire()


async def test_credentials_are_read_again_after_401(tmp_path: Path) -> None:
    tokens = []

    async def handler(request: web.Request) -> web.Response:
        tokens.append(request.headers.get("Authorization"))
        return web.Response(status=200 if tokens[-1] == "Bearer new" else 401, text="{}")

    token_file = tmp_path / "token"
    token_file.write_text("old")
    async with serving(handler) as address:
        config = kubeconfig(tmp_path, address, {"tokenFile": str(token_file)})
        async with await ApiClient.load(str(config)) as client:
            token_file.write_text("new")
            await client.request("POST", "/x", b"{}")
            assert tokens == ["Bearer old", "Bearer new"]
            token_file.write_text("wrong")
            await client.request("POST", "/x", b"{}")
            assert tokens[2:] == ["Bearer new"]


async def test_401_is_reported_when_fresh_credentials_do_not_help(tmp_path: Path) -> None:
    count = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal count
        count += 1
        return web.Response(status=401, text="{}")

    async with (
        serving(handler) as address,
        await ApiClient.load(str(kubeconfig(tmp_path, address, {"token": "bad"}))) as client,
    ):
        with pytest.raises(ApiError) as caught:
            await client.request("GET", "/x")
    assert caught.value.status == 401
    assert count == 2


async def test_credentials_that_cannot_be_read_again_leave_the_401(tmp_path: Path) -> None:
    """A plugin that fails once, a file that is just being written: a failed call, not the end of the process."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=401, text="{}")

    async with serving(handler) as address:
        config = kubeconfig(tmp_path, address, {"token": "old"})
        async with await ApiClient.load(str(config)) as client:
            config.write_text("users: [")
            with pytest.raises(ApiError) as caught:
                await client.request("GET", "/x")
            assert caught.value.status == 401
            with pytest.raises(ApiError):
                async for _ in client.stream_lines("/x", {}, idle_timeout_s=5):
                    pass


async def test_an_empty_service_account_token_is_a_failed_call() -> None:
    """kubelet replaces the file while we run; the kubernetes package refuses an empty one."""
    configuration = Configuration()

    def refuse(_: Configuration) -> None:
        raise ConfigException("Token file exists but empty.")

    configuration.refresh_api_key_hook = refuse  # type: ignore[assignment]

    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="{}")

    async with serving(handler) as address, ApiClient(Access(address, _configuration=configuration)) as client:
        with pytest.raises(TransportError, match="exists but empty"):
            await client.request("POST", "/x", b"{}")
        configuration.refresh_api_key_hook = None
        assert await client.request("POST", "/x", b"{}") == b"{}"


async def test_exec_plugin_gives_the_token(tmp_path: Path) -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text="ok")

    plugin = tmp_path / "plugin"
    answer = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"made"}}'
    plugin.write_text(f"#!/bin/sh\necho '{answer}'\n")
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    async with (
        serving(handler) as address,
        await ApiClient.load(str(kubeconfig(tmp_path, address, user))) as client,
    ):
        await client.request("GET", "/x")
    assert seen == ["Bearer made"]


@pytest.mark.parametrize("inline", [True, False])
async def test_https_with_client_certificate(tmp_path: Path, inline: bool) -> None:
    authority = trustme.CA()
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")
    server_pair = authority.issue_cert("127.0.0.1")
    server_pair.cert_chain_pems[0].write_to_path(files.cert)
    server_pair.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.ca)
    client_pair = authority.issue_cert("someone")
    client_pair.cert_chain_pems[0].write_to_path(tmp_path / "client.crt")
    client_pair.private_key_pem.write_to_path(tmp_path / "client.key")
    user: dict[str, object]
    if inline:
        user = {
            "client-certificate-data": base64.b64encode((tmp_path / "client.crt").read_bytes()).decode(),
            "client-key-data": base64.b64encode((tmp_path / "client.key").read_bytes()).decode(),
        }
    else:
        user = {"client-certificate": "client.crt", "client-key": "client.key"}
    async with ApiServer(tls=files) as server:
        good = kubeconfig(tmp_path, server.base_url, user, {"certificate-authority": str(files.ca)})
        async with await ApiClient.load(str(good)) as client:
            assert await make_node(client, "n1")
        stranger = tmp_path / "other.crt"
        trustme.CA().cert_pem.write_to_path(stranger)
        wrong = kubeconfig(tmp_path, server.base_url, user, {"certificate-authority": str(stranger)})
        async with await ApiClient.load(str(wrong)) as client:
            with pytest.raises(TransportError, match="certificate"):
                await client.request("POST", "/api/v1/nodes", b"{}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("[" * 100_000, "recursion"),
        ("current-context: [", "kubeconfig"),
        ("current-context: gone\ncontexts: []\nclusters: []\nusers: []\n", "gone"),
        ("[]", "kubeconfig"),
    ],
)
async def test_a_bad_kubeconfig_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        await ApiClient.load(str(path))
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, HamiError)


def kubeconfig(
    folder: Path, server: str, user: Mapping[str, object], cluster: Mapping[str, object] | None = None
) -> Path:
    path = folder / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return path
