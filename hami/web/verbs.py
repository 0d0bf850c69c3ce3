"""`POST /prioritize` and `POST /preempt`: extender verbs beside filter and bind, off unless configured (B49, B50).

Bodies are kube-scheduler's extender types (k8s.io/kube-scheduler/extender/v1): no JSON tags, so Go's field names; both
spellings are read, capitals are answered. Neither answer has a place for an error: refusals are HTTP statuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from hami.core import objects
from hami.core.errors import ApiError, TransportError
from hami.core.lenient import lenient
from hami.obs import metrics
from hami.placement.preemption import Victims
from hami.web import asgi, wire
from hami.web.extender import MAX_BODY_BYTES, Gate

_BAD_REQUEST: Final = 400
_UNAVAILABLE: Final = 503

log = structlog.get_logger("hami.web.verbs")


class Scores(Protocol):
    """What `/prioritize` asks of placement."""

    async def scores(self, pod: objects.Pod, names: Sequence[str]) -> dict[str, int]: ...


class Preempts(Protocol):
    """What `/preempt` asks of placement."""

    async def victims(self, pod: objects.Pod, proposed: Mapping[str, Victims]) -> dict[str, Victims]: ...


class _Meta(msgspec.Struct):
    uid: str = ""


class _Victim(msgspec.Struct):
    """A MetaPod, or a whole Pod."""

    UID: str = ""
    uid: str = ""
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Victims(msgspec.Struct):
    Pods: list[_Victim] | None = None
    pods: list[_Victim] | None = None
    NumPDBViolations: int = 0
    numPDBViolations: int = 0  # noqa: N815 - the wire's spelling

    def decided(self) -> Victims:
        found = self.Pods or self.pods or ()
        uids = tuple(each.UID or each.uid or each.metadata.uid for each in found)
        return Victims(uids, self.NumPDBViolations or self.numPDBViolations)


_ByNode = dict[str, _Victims | None]


class _PreemptionArgs(msgspec.Struct):
    Pod: objects.Pod | None = None
    pod: objects.Pod | None = None
    NodeNameToMetaVictims: _ByNode | None = None
    nodeNameToMetaVictims: _ByNode | None = None  # noqa: N815
    NodeNameToVictims: _ByNode | None = None
    nodeNameToVictims: _ByNode | None = None  # noqa: N815

    def proposed(self) -> dict[str, Victims]:
        meta = self.NodeNameToMetaVictims or self.nodeNameToMetaVictims
        found = meta or self.NodeNameToVictims or self.nodeNameToVictims or {}
        return {node: victims.decided() if victims is not None else Victims(()) for node, victims in found.items()}


_args_decoder = msgspec.json.Decoder(_PreemptionArgs)
_names_decoder = msgspec.json.Decoder(list[str])
_encoder = msgspec.json.Encoder()


class Verbs:
    """The two routes; `preempts` None: the preempt verb is off."""

    def __init__(self, gate: Gate, scores: Scores, preempts: Preempts | None) -> None:
        self._gate = gate
        self._scores = scores
        self._preempts = preempts

    def routes(self) -> Mapping[str, asgi.App]:
        """Path -> route, of the verbs that are on."""
        routes: dict[str, asgi.App] = {"/prioritize": self.prioritize}
        if self._preempts is not None:
            routes["/preempt"] = self.preempt
        return routes

    async def prioritize(self, _scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answers HostPriorityList: 0 to 10 for each node."""
        with metrics.verb_seconds.labels("prioritize").time():
            try:
                args = wire.decode_filter(await asgi.read_body(receive, MAX_BODY_BYTES))
                names = lenient(_names_decoder, msgspec.Raw(args.node_names))
                if args.pod is None:
                    raise msgspec.DecodeError("no Pod in it")
            except (msgspec.DecodeError, asgi.BodyTooLargeError) as error:
                return await _refuse(send, _BAD_REQUEST, f"not ExtenderArgs with NodeNames: {error}")
            except asgi.ClientGoneError:
                return None
            if refusal := await self._gate.wait_open():
                return await _refuse(send, _UNAVAILABLE, refusal)
            scores = await self._scores.scores(args.pod, names)
            await asgi.answer(send, 200, _encoder.encode([{"Host": name, "Score": scores[name]} for name in names]))
        return None

    async def preempt(self, _scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answers ExtenderPreemptionResult: nodes where evicting helps, and the whole set of victims of each."""
        assert self._preempts is not None
        with metrics.verb_seconds.labels("preempt").time():
            try:
                args = lenient(_args_decoder, msgspec.Raw(await asgi.read_body(receive, MAX_BODY_BYTES)))
                pod = args.Pod or args.pod
                if pod is None:
                    raise msgspec.DecodeError("no Pod in it")
            except (msgspec.DecodeError, asgi.BodyTooLargeError) as error:
                return await _refuse(send, _BAD_REQUEST, f"not ExtenderPreemptionArgs: {error}")
            except asgi.ClientGoneError:
                return None
            if refusal := await self._gate.wait_open():
                return await _refuse(send, _UNAVAILABLE, refusal)
            proposed = args.proposed()
            try:
                found = await self._preempts.victims(pod, proposed)
            except (ApiError, TransportError) as error:
                return await _refuse(send, _UNAVAILABLE, f"the API server does not say what may be evicted: {error}")
            log.info("preemption", pod=pod.key, proposed=len(proposed), helps=len(found))
            await asgi.answer(send, 200, _encoder.encode({"NodeNameToMetaVictims": _by_node(found)}))
        return None


def _by_node(found: Mapping[str, Victims]) -> dict[str, dict[str, object]]:
    return {
        node: {"Pods": [{"UID": uid} for uid in victims.uids], "NumPDBViolations": victims.budget_violations}
        for node, victims in found.items()
    }


async def _refuse(send: asgi.Send, status: int, text: str) -> None:
    await asgi.answer(send, status, text.encode(), content_type=asgi.TEXT)
