"""HTTP of the API server stand-in: routes, bodies, watch streams, faults, and its life."""

from __future__ import annotations

import ssl
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from aiohttp import web

from hami.core.errors import ConfigError
from hami.sim import errors
from hami.sim.apiserver import discovery, tables, views
from hami.sim.apiserver.admission import Admission, ServiceResolver
from hami.sim.apiserver.deletion import DeleteOptions
from hami.sim.apiserver.faults import Fault, Faults
from hami.sim.apiserver.kinds import NAMESPACES, Target, parse_path
from hami.sim.apiserver.rest import Outcome, Rest
from hami.sim.apiserver.store import Store
from hami.sim.apiserver.views import Query
from hami.sim.apiserver.watch import Watch
from hami.sim.errors import StatusError
from hami.sim.objects import Obj

_BODY_LIMIT: Final = 3 * 1024 * 1024
_JSON: Final = "application/json"
_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Serve HTTPS: certificate and key in PEM, and the CA that clients should trust."""

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class Seen:
    """One finished request, for tests that count writes."""

    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    user_agent: str
    seconds: float


class ApiServer:
    """kube-apiserver's stand-in on one port of the loopback interface.

    `port` 0 takes a free one. `history_limit`: changes that each collection keeps for watches.
    `resolve_service` maps the service of a webhook to an address (settable later as `admission.resolve_service`).
    Tests may read and write `rest` and `store` directly, order `faults`, and read `seen` (the last 10,000 requests).
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: TlsFiles | None = None,
        history_limit: int = 10_000,
        bookmark_interval_s: float = 30.0,
        resolve_service: ServiceResolver | None = None,
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._bookmark_interval_s = bookmark_interval_s
        self.store = Store(history_limit)
        self.admission = Admission(self.store, resolve_service)
        self.rest = Rest(self.store, self.admission)
        self.faults = Faults(
            lambda resource: self.store.cut_watches(lambda name: resource in ("", name)), self.store.forget_history
        )
        self.seen: deque[Seen] = deque(maxlen=10_000)
        self._documents = discovery.documents()
        self._runner: web.AppRunner | None = None
        for name in _NAMESPACES:
            self.add_namespace(name)

    def add_namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Make a namespace without HTTP."""
        meta: Obj = {"name": name, "labels": {"kubernetes.io/metadata.name": name, **(labels or {})}}
        body = {"metadata": meta, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        self.store.create(NAMESPACES, body)

    @property
    def base_url(self) -> str:
        """Such as `http://127.0.0.1:40123`; valid after `start`."""
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises OSError where the port is taken. A stopped server starts again on the same port."""
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_route("*", "/sim/faults", self._serve_faults)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        context = None
        if self._tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self._tls.cert, self._tls.key)
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=context, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Cut every watch and stop listening; what is stored stays."""
        self.store.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self.admission.close()

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for kubectl and for our processes; the token is taken from anyone."""
        cluster: Obj = {"server": self.base_url}
        if self._tls:
            cluster["certificate-authority"] = str(self._tls.ca)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "hami-sim", "cluster": cluster}],
            "users": [{"name": "hami-sim", "user": {"token": "hami-sim"}}],
            "contexts": [{"name": "hami-sim", "context": {"cluster": "hami-sim", "user": "hami-sim"}}],
            "current-context": "hami-sim",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        began, path = time.monotonic(), request.path
        if path in self._documents:
            return web.json_response(body=msgspec.json.encode(self._documents[path]), content_type=_JSON)
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        target: Target | None = None
        verb = ""
        agent = request.headers.get("User-Agent", "")
        try:
            target = parse_path(path)
            verb = _verb(request, target)
            resource = _resource(target)
            lose_answer = await self.faults.apply(verb, resource, target.name, agent)
            response = await self._answer(request, verb, target)
            if lose_answer and request.transport is not None:
                request.transport.abort()
        except StatusError as error:
            response = _failure(error)
        if target is not None:
            code, seconds = response.status, time.monotonic() - began
            self.seen.append(Seen(verb, _resource(target), target.namespace, target.name, code, agent, seconds))
        return response

    async def _answer(self, request: web.Request, verb: str, target: Target) -> web.StreamResponse:
        if verb in ("get", "list", "watch"):
            return await self._read(request, verb, target)
        query = dict(request.query)
        dry_run = query.get("dryRun") == "All"
        if verb in ("create", "update") and request.content_type not in (_JSON, "application/octet-stream"):
            raise errors.unsupported_media_type(request.content_type)
        body = _decode_body(await request.read())
        if verb == "create":
            outcome = await self.rest.create(target, body, dry_run)
        elif verb == "update":
            outcome = await self.rest.update(target, body, dry_run)
        elif verb == "patch":
            outcome = await self.rest.patch(target, body, request.content_type, dry_run)
        elif target.name:
            outcome = await self.rest.delete(target, DeleteOptions.read(body or {}, query), dry_run)
        else:
            return await self._delete_collection(request, target, DeleteOptions.read(body or {}, query))
        return _success(outcome)

    async def _read(self, request: web.Request, verb: str, target: Target) -> web.StreamResponse:
        kind, accept = target.kind, request.headers.get("Accept", "")
        if verb == "get":
            if target.subresource not in ("", "status"):
                raise errors.unknown_path()
            stored = self.store.get(kind, target.namespace, target.name)
            if views.wants_table(accept):
                return _json(200, msgspec.json.encode(tables.table(kind, [stored.obj], {})))
            return _json(200, views.encode_stored(kind, stored))
        query = Query.read(target, dict(request.query), accept)
        if verb == "list":
            return _json(200, views.encode_list(self.store, target, query))
        return await self._watch(request, Watch(self.store, target, query, self._bookmark_interval_s))

    async def _watch(self, request: web.Request, watch: Watch) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            async for chunk in watch.lines():
                if chunk:
                    await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            # The client went away; the next write found out.
            return response
        return response

    async def _delete_collection(self, request: web.Request, target: Target, options: DeleteOptions) -> web.Response:
        query = Query.read(target, dict(request.query), "")
        for stored in [one for one in self.store.items(target.kind, target.namespace) if query.matches(one.obj)]:
            meta = stored.obj["metadata"]
            await self.rest.delete(Target(target.kind, meta.get("namespace", ""), meta["name"]), options)
        return _json(200, views.encode_list(self.store, target, query))

    async def _serve_faults(self, request: web.Request) -> web.Response:
        """`/sim/faults`: GET lists, POST orders (or `{"action": "cut-watches"|"forget-history"}`), DELETE clears."""
        if request.method == "DELETE":
            self.faults.clear()
        elif request.method == "POST":
            body = _decode_body(await request.read())
            try:
                self._order(dict(body or {}))
            except (ConfigError, TypeError, ValueError) as error:
                return _json(400, msgspec.json.encode({"error": str(error)}))
        return _json(200, msgspec.json.encode({"faults": self.faults.list()}))

    def _order(self, body: Obj) -> None:
        action = body.get("action")
        if action == "cut-watches":
            self.faults.cut_watches(str(body.get("resource", "")))
        elif action == "forget-history":
            self.faults.forget_history()
        else:
            self.faults.add(Fault(**body))


def _resource(target: Target) -> str:
    return f"{target.kind.plural}/{target.subresource}" if target.subresource else target.kind.plural


def _verb(request: web.Request, target: Target) -> str:
    if request.method in ("GET", "HEAD"):
        if request.query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if target.name else "list"
    verb = _VERBS.get(request.method)
    misplaced = (verb == "create" and target.name and not target.subresource) or (
        verb in ("update", "patch") and not target.name
    )
    if verb is None or misplaced:
        raise errors.method_not_allowed()
    return verb


def _decode_body(raw: bytes) -> Any:
    """The JSON of a body, None where there is none. Raises StatusError 400."""
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise errors.bad_request(f"couldn't get version/kind; json parse error: {error}") from error


def _json(code: int, body: bytes, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=code, body=body, content_type=_JSON, headers=headers)


def _success(outcome: Outcome) -> web.Response:
    body = msgspec.json.encode(outcome.obj) if outcome.kind is None else views.encode(outcome.kind, outcome.obj)
    response = _json(outcome.code, body)
    for warning in outcome.warnings:
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def _failure(error: StatusError) -> web.Response:
    retry = error.retry_after_s
    return _json(error.code, msgspec.json.encode(error.status()), {"Retry-After": str(retry)} if retry else None)
