"""The bodies of kube-scheduler's extender calls and of admission reviews, decoded and encoded.

Extender types carry no JSON tags in Go, so its keys are Go's field names; Go reads them in any case, we read the two
spellings that callers use, and answer with capitals (spec/scheduler 1.3, 1.4).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hami.core import objects
from hami.core.lenient import lenient

NULL: Final = msgspec.Raw(b"null")


class _FilterArgs(msgspec.Struct):
    Pod: objects.BarePod | None = None
    pod: objects.BarePod | None = None
    NodeNames: msgspec.Raw = NULL
    nodeNames: msgspec.Raw = NULL  # noqa: N815 - the wire's spelling
    nodenames: msgspec.Raw = NULL
    Nodes: msgspec.Raw = NULL
    nodes: msgspec.Raw = NULL


class FilterArgs(msgspec.Struct, frozen=True):
    """A filter call. `node_names` and `nodes` stay raw JSON; `null` where the caller sent none."""

    pod: objects.Pod | None
    node_names: bytes
    nodes: bytes


class _BindArgs(msgspec.Struct):
    PodName: str = ""
    podName: str = ""  # noqa: N815
    PodNamespace: str = ""
    podNamespace: str = ""  # noqa: N815
    PodUID: str = ""
    podUID: str = ""  # noqa: N815
    Node: str = ""
    node: str = ""


class BindArgs(msgspec.Struct, frozen=True):
    """A bind call."""

    namespace: str
    name: str
    uid: str
    node: str


class _FilterResult(msgspec.Struct):
    Nodes: msgspec.Raw | None
    NodeNames: list[str] | msgspec.Raw | None
    FailedNodes: Mapping[str, str] | None
    FailedAndUnresolvableNodes: Mapping[str, str] | None
    Error: str


_filter_decoder = msgspec.json.Decoder(_FilterArgs)
_bind_decoder = msgspec.json.Decoder(_BindArgs)
_encoder = msgspec.json.Encoder()


def _first(*raws: msgspec.Raw) -> bytes:
    for raw in raws:
        text = bytes(raw)
        if text != b"null":
            return text
    return b"null"


def decode_filter(body: bytes) -> FilterArgs:
    """Raises msgspec.DecodeError on a body that is no ExtenderArgs."""
    args = lenient(_filter_decoder, body)
    return FilterArgs(
        args.Pod or args.pod, _first(args.NodeNames, args.nodeNames, args.nodenames), _first(args.Nodes, args.nodes)
    )


def decode_bind(body: bytes) -> BindArgs:
    """Raises msgspec.DecodeError on a body that is no ExtenderBindingArgs."""
    args = lenient(_bind_decoder, body)
    return BindArgs(
        args.PodNamespace or args.podNamespace,
        args.PodName or args.podName,
        args.PodUID or args.podUID,
        args.Node or args.node,
    )


def filter_result(
    node_names: list[str] | bytes | None,
    failed: Mapping[str, str] | None = None,
    unresolvable: Mapping[str, str] | None = None,
    error: str = "",
    nodes: bytes | None = None,
) -> bytes:
    """ExtenderFilterResult with all five keys; `node_names` as bytes is echoed as it came."""
    names: list[str] | msgspec.Raw | None
    names = msgspec.Raw(node_names) if isinstance(node_names, bytes) else node_names
    raw_nodes = msgspec.Raw(nodes) if nodes is not None else None
    return _encoder.encode(_FilterResult(raw_nodes, names, failed or None, unresolvable or None, error))


def bind_result(error: str) -> bytes:
    """ExtenderBindingResult."""
    return _encoder.encode({"Error": error})


def decoded_pod(raw: msgspec.Raw) -> objects.Pod:
    """A Pod; `null` for a field means what a missing field means, as in Go. Raises msgspec.DecodeError."""
    return lenient(objects.pod_decoder, raw)


class _GroupVersionKind(msgspec.Struct, frozen=True):
    kind: str = ""


class _AdmissionRequest(msgspec.Struct, rename="camel"):
    uid: str = ""
    namespace: str = ""
    operation: str = ""
    kind: _GroupVersionKind = _GroupVersionKind()
    sub_resource: str | None = None
    object: msgspec.Raw = NULL

    @property
    def creates_pod(self) -> bool:
        """False for what rules wider than ours bring along: updates, and the creation of a Binding or an Eviction."""
        return self.operation in ("", "CREATE") and not self.sub_resource and self.kind.kind in ("", "Pod")


class AdmissionReview(msgspec.Struct, rename="camel"):
    """An admission review as kube-apiserver sends it, v1 or v1beta1."""

    api_version: str = ""
    kind: str = ""
    request: _AdmissionRequest | None = None


_review_decoder = msgspec.json.Decoder(AdmissionReview)


def decode_review(body: bytes) -> AdmissionReview:
    """Raises msgspec.DecodeError on a body that is no AdmissionReview."""
    return lenient(_review_decoder, body)


def review_answer(
    api_version: str,
    uid: str,
    *,
    allowed: bool,
    code: int,
    message: str = "",
    reason: str = "",
    patch: list[dict[str, Any]] | None = None,
    warnings: list[str] | None = None,
) -> bytes:
    """The answer in the version of the request (spec/scheduler 1.5)."""
    status: dict[str, Any] = {"metadata": {}, "code": code}
    if message:
        status["message"] = message
    if reason:
        status["reason"] = reason
    response: dict[str, Any] = {"uid": uid, "allowed": allowed, "status": status}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encoder.encode(patch)).decode()
    if warnings:
        response["warnings"] = warnings
    return _encoder.encode({"apiVersion": api_version, "kind": "AdmissionReview", "response": response})
