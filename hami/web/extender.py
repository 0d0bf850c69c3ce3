"""`POST /filter` and `POST /bind`: kube-scheduler's extender calls (spec/scheduler 1.3, 1.4).

Bytes in, bytes out: decisions are placement's. Failures are answers with HTTP 200 and a text in `Error`, as
kube-scheduler expects of an extender.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

import msgspec
import structlog

from hami.core.lenient import lenient
from hami.core.objects import Node, Pod
from hami.obs import logs, metrics
from hami.placement.engine import FilterAnswer, NodeNames
from hami.web import asgi, refusal_counts, wire

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Upstream cuts bodies at 1 MiB (spec/contract 3.4: do not shrink). 5,000 full Node objects are 10 MiB."""

log = structlog.get_logger("hami.web.extender")


class Filters(Protocol):
    """What `/filter` asks of placement."""

    async def filter_sliced(self, pod: Pod, names: NodeNames) -> FilterAnswer: ...

    async def simulate(self, pod: Pod, nodes: Iterable[Node], *, all_feasible: bool = False) -> FilterAnswer: ...


class EveryFit(Protocol):
    """What `/filter` asks of placement where every fitting node is wanted."""

    async def filter(self, pod: Pod, names: NodeNames) -> FilterAnswer: ...


class Binds(Protocol):
    """What `/bind` asks of placement."""

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str: ...


class Gate(Protocol):
    """Says whether this replica may answer."""

    async def wait_open(self) -> str:
        """Waits until the state is synced; returns why this replica does not answer, empty if it does."""


class Events(Protocol):
    """Where events of a decision go."""

    def pod_event(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None: ...


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None
    """null is Go's empty list."""


_node_list = msgspec.json.Decoder(_NodeList)
_node = msgspec.json.Decoder(Node)


class Extender:
    """The two hot routes."""

    def __init__(
        self,
        filters: Filters,
        binds: Binds,
        gate: Gate,
        events: Events,
        every_fit: EveryFit | None = None,
        *,
        always_every_fit: bool = False,
    ) -> None:
        """`every_fit` answers calls with `?all=true`, and every call with `always_every_fit` (report B49)."""
        self._filters = filters
        self._binds = binds
        self._gate = gate
        self._events = events
        self._every_fit = every_fit
        self._always_every_fit = always_every_fit

    async def filter(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answers ExtenderFilterResult."""
        with metrics.verb_seconds.labels("filter").time():
            try:
                body = await asgi.read_body(receive, MAX_BODY_BYTES)
                args = wire.decode_filter(body)
            except asgi.BodyTooLargeError as error:
                return await asgi.answer(send, 200, wire.filter_result(None, error=str(error)))
            except msgspec.DecodeError as error:
                text = f"extender args cannot be decoded: {error}" if body else "extender args missing: empty body"
                return await asgi.answer(send, 200, wire.filter_result(None, error=text))
            except asgi.ClientGoneError:
                return None
            if args.pod is None:
                return await asgi.answer(send, 200, wire.filter_result(None, error="extender args missing pod"))
            pod = args.pod if args.pod.metadata.uid else _identified(args.pod)
            body, told = await self._filter_answer(args, pod, scope)
            await asgi.answer(send, 200, body)
        if told is not None:
            # uvloop sends what was written at the end of a turn of the loop: the answer does not wait for the events.
            await asyncio.sleep(0)
            self._tell(pod, told)
        return None

    async def _filter_answer(
        self, args: wire.FilterArgs, pod: Pod, scope: asgi.Scope
    ) -> tuple[bytes, FilterAnswer | None]:
        """The answer, and the decision whose events are still to be told."""
        query = scope.get("query_string", b"")
        wants_all = self._always_every_fit or (query != b"" and _all_wanted(query))
        if args.nodes != b"null":
            return await self._simulate(pod, args.nodes, all_feasible=wants_all), None
        if refusal := await self._gate.wait_open():
            return wire.filter_result(None, error=refusal), None
        names = NodeNames(args.node_names if args.node_names != b"null" else b"[]")
        try:
            if wants_all and self._every_fit is not None:
                answer = await self._every_fit.filter(pod, names)
            else:
                answer = await self._filters.filter_sliced(pod, names)
        except msgspec.DecodeError as error:
            return wire.filter_result(None, error=f"extender args hold no list of node names: {error}"), None
        if answer.passthrough:
            return wire.filter_result(args.node_names), None
        if args.node_names == b"null":
            return wire.filter_result(None, error="extender args missing node names: send NodeNames or Nodes"), None
        if answer.error:
            return wire.filter_result(None, error=answer.error), answer
        if answer.feasible:
            return wire.filter_result(list(answer.feasible), answer.failed), answer
        if answer.node is not None:
            return wire.filter_result([answer.node]), answer
        return wire.filter_result(None, answer.failed, answer.unresolvable), answer

    def _tell(self, pod: Pod, answer: FilterAnswer) -> None:
        try:
            texts = answer.events
        except msgspec.DecodeError:
            # The chosen name was found in what is no list of names: no other node can be told of.
            texts = ()
        for warning, reason, message in texts:
            self._events.pod_event(pod, warning=warning, reason=reason, message=message)
        answer.upkeep()
        self._log(pod, answer)

    async def _simulate(self, pod: Pod, raw_nodes: bytes, *, all_feasible: bool) -> bytes:
        """Full Node objects in the call: a stateless what-if for autoscalers (spec/scheduler 4.9)."""
        raws: dict[str, bytes] = {}
        try:
            nodes = _nodes(lenient(_node_list, raw_nodes).items or [], raws)
            answer = await self._filters.simulate(pod, nodes, all_feasible=all_feasible)
        except msgspec.DecodeError as error:
            return wire.filter_result(None, error=f"extender args hold a Node that cannot be decoded: {error}")
        if answer.passthrough:
            return wire.filter_result(None, nodes=raw_nodes)
        if answer.error:
            return wire.filter_result(None, error=answer.error)
        chosen = [raws[name] for name in answer.feasible if name in raws]
        return wire.filter_result(
            None, answer.failed, answer.unresolvable, nodes=b'{"items":[' + b",".join(chosen) + b"]}"
        )

    @staticmethod
    def _log(pod: Pod, answer: FilterAnswer) -> None:
        metrics.filters.labels("error" if answer.error else "fit" if answer.node else "unfit").inc()
        if answer.failed:
            refusal_counts.count(answer.failed)
        if not logs.wants(logs.DECISIONS):
            return
        log.info(
            "filtered",
            pod=pod.key,
            uid=pod.metadata.uid,
            node=answer.node or "",
            refused_nodes=len(answer.failed),
            error=answer.error,
        )

    async def bind(self, _scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answers ExtenderBindingResult."""
        with metrics.verb_seconds.labels("bind").time():
            try:
                body = await asgi.read_body(receive, MAX_BODY_BYTES)
                args = wire.decode_bind(body)
            except asgi.BodyTooLargeError as error:
                return await asgi.answer(send, 200, wire.bind_result(str(error)))
            except msgspec.DecodeError as error:
                text = f"binding args cannot be decoded: {error}" if body else "binding args missing: empty body"
                return await asgi.answer(send, 200, wire.bind_result(text))
            except asgi.ClientGoneError:
                return None
            if missing := _missing(args):
                return await asgi.answer(send, 200, wire.bind_result(f"binding args missing {missing}"))
            try:
                error_text = await asgi.until_client_leaves(receive, self._bind(args))
            except asgi.ClientGoneError:
                metrics.binds.labels("cancelled").inc()
                return None
            metrics.binds.labels("failed" if error_text else "bound").inc()
            await asgi.answer(send, 200, wire.bind_result(error_text))
        return None

    async def _bind(self, args: wire.BindArgs) -> str:
        error = await self._gate.wait_open()
        if not error:
            error = await self._binds.bind(args.namespace, args.name, args.uid, args.node)
        log.info(
            "bound" if not error else "bind failed",
            pod=f"{args.namespace}/{args.name}",
            uid=args.uid,
            node=args.node,
            error=error,
        )
        return error


def _identified(pod: Pod) -> Pod:
    """A pod as simple clients send it, without a uid: its name stands for one, so that no two pods are the same."""
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=pod.key))


def _all_wanted(query: bytes) -> bool:
    return any(value.lower() in ("true", "1") for value in parse_qs(query.decode("latin-1")).get("all", ()))


def _nodes(listed: list[msgspec.Raw], raws: dict[str, bytes]) -> Iterator[Node]:
    """Decodes one node after another, and keeps its text in `raws`; of several with one name the first counts."""
    for raw in listed:
        node = lenient(_node, raw)
        if node.name not in raws:
            raws[node.name] = bytes(raw)
            yield node


def _missing(args: wire.BindArgs) -> str:
    fields: dict[str, Any] = {
        "PodName": args.name,
        "PodNamespace": args.namespace,
        "PodUID": args.uid,
        "Node": args.node,
    }
    return ", ".join(name for name, value in fields.items() if not value)
