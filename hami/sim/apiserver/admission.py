"""Mutating admission webhooks: who is called, in which version, and what a failure means.

Source: k8s.io/apiserver pkg/admission/plugin/webhook. Not served: matchConditions (CEL) and reinvocation.
"""

from __future__ import annotations

import base64
import binascii
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp
import msgspec

from hami.core.errors import HamiError
from hami.sim import errors
from hami.sim.apiserver.kinds import MUTATING, NAMESPACES, Kind, Target
from hami.sim.apiserver.patches import json_patch
from hami.sim.apiserver.selectors import selector_object
from hami.sim.apiserver.store import Store
from hami.sim.errors import StatusError
from hami.sim.objects import Obj, dig

ServiceResolver = Callable[[str, str, int], str | None]
"""(namespace, service, port) → base URL such as `https://127.0.0.1:8443`; None where nothing serves it."""

_SUPPORTED: Final = ("v1", "v1beta1")
_USER: Final[Obj] = {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]}


class _CallFailedError(HamiError):
    """The webhook gave no usable answer; failurePolicy decides what that means."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """One write on its way to storage: operation is CREATE, UPDATE, DELETE or CONNECT."""

    operation: str
    target: Target
    name: str
    obj: Obj | None
    old: Obj | None
    options: Obj
    dry_run: bool = False


def _rule_matches(rule: Obj, attributes: Attributes) -> bool:
    kind, sub = attributes.target.kind, attributes.target.subresource
    resource = f"{kind.plural}/{sub}" if sub else kind.plural
    accepted = {resource, "*/*", f"{kind.plural}/*"} | ({"*"} if not sub else {f"*/{sub}"})
    scope = rule.get("scope") or "*"
    return (
        bool({"*", attributes.operation} & set(rule.get("operations") or []))
        and bool({"*", kind.group} & set(rule.get("apiGroups") or []))
        and bool({"*", kind.version} & set(rule.get("apiVersions") or []))
        and bool(accepted & set(rule.get("resources") or []))
        and scope in ("*", "Namespaced" if kind.namespaced else "Cluster")
    )


def _with_type(kind: Kind, obj: Obj | None) -> Obj | None:
    return None if obj is None else {"kind": kind.kind, "apiVersion": kind.api_version, **obj}


def _review(version: str, attributes: Attributes, uid: str) -> Obj:
    kind, target = attributes.target.kind, attributes.target
    named = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    resource = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    request: Obj = {
        "uid": uid,
        "kind": named,
        "resource": resource,
        "requestKind": named,
        "requestResource": resource,
        "name": attributes.name,
        "namespace": target.namespace,
        "operation": attributes.operation,
        "userInfo": _USER,
        "object": _with_type(kind, attributes.obj),
        "oldObject": _with_type(kind, attributes.old),
        "dryRun": attributes.dry_run,
        "options": attributes.options,
    }
    if target.subresource:
        request |= {"subResource": target.subresource, "requestSubResource": target.subresource}
    request = {key: value for key, value in request.items() if value != ""}
    return {"kind": "AdmissionReview", "apiVersion": f"admission.k8s.io/{version}", "request": request}


def denied(webhook: str, result: Obj | None) -> StatusError:
    """The refusal as users read it (errors.ToStatusErr)."""
    result = result or {}
    code = max(int(result.get("code") or 0), 400)
    by = f'admission webhook "{webhook}" denied the request'
    words = result.get("message") or result.get("reason")
    text = f"{by}: {words}" if words else f"{by} without explanation"
    return StatusError(code, str(result.get("reason") or ""), text, result.get("details"))


class Admission:
    """Calls the mutating webhooks that are stored in the API server, in order of their names.

    `resolve_service` maps clientConfig.service to an address: the embedded cluster has no service network.
    """

    def __init__(self, store: Store, resolve_service: ServiceResolver | None = None) -> None:
        self._store = store
        self.resolve_service = resolve_service
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(self, attributes: Attributes) -> tuple[Obj | None, list[str]]:
        """The object after every webhook, and their warnings. Raises StatusError where one denies or fails closed."""
        warnings: list[str] = []
        for stored in self._store.items(MUTATING):
            for webhook in stored.obj.get("webhooks") or []:
                if not self._wants(webhook, attributes):
                    continue
                response = await self._ask(webhook, attributes)
                if response is None:
                    continue
                warnings += response.get("warnings") or []
                if not response.get("allowed"):
                    raise denied(webhook["name"], response.get("status"))
                attributes = self._patched(webhook["name"], attributes, response)
        return attributes.obj, warnings

    def _wants(self, webhook: Obj, attributes: Attributes) -> bool:
        kind = attributes.target.kind
        if kind is MUTATING or kind.group == MUTATING.group:
            return False
        if not any(_rule_matches(rule, attributes) for rule in webhook.get("rules") or []):
            return False
        if kind.namespaced or kind is NAMESPACES:
            name = attributes.target.namespace or attributes.name
            namespace = self._store.find(NAMESPACES, "", name)
            scope = attributes.obj if namespace is None and kind is NAMESPACES else namespace and namespace.obj
            if not selector_object(webhook.get("namespaceSelector"))(scope or {}):
                return False
        matches = selector_object(webhook.get("objectSelector"))
        return any(matches(obj) for obj in (attributes.obj, attributes.old) if obj is not None)

    async def _ask(self, webhook: Obj, attributes: Attributes) -> Obj | None:
        """The response, or None where the webhook failed and its policy is Ignore."""
        try:
            return await self._call(webhook, attributes)
        except _CallFailedError as error:
            if webhook.get("failurePolicy") == "Ignore":
                return None
            why = f'failed calling webhook "{webhook["name"]}": {error}'
            raise errors.internal(why) from error

    async def _call(self, webhook: Obj, attributes: Attributes) -> Obj:
        version = next((v for v in webhook.get("admissionReviewVersions") or [] if v in _SUPPORTED), None)
        if version is None:
            raise _CallFailedError("no supported AdmissionReview version in admissionReviewVersions")
        uid = str(uuid.uuid4())
        review = _review(version, attributes, uid)
        answer = await self._post(webhook, msgspec.json.encode(review))
        response = answer.get("response")
        if not isinstance(response, dict):
            raise _CallFailedError("webhook response was absent")
        if version == "v1":
            if response.get("uid") != uid:
                raise _CallFailedError(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
            given = f"{answer.get('apiVersion', '')}, Kind={answer.get('kind', '')}"
            expected = "admission.k8s.io/v1, Kind=AdmissionReview"
            if given != expected:
                raise _CallFailedError(f"expected webhook response of {expected}, got {given}")
            if bool(response.get("patch")) != bool(response.get("patchType")):
                raise _CallFailedError("webhook returned only one of response.patch and response.patchType")
        return response

    def _address(self, config: Obj) -> tuple[str, str | None]:
        """URL and the name that the certificate must carry."""
        if config.get("url"):
            return str(config["url"]), None
        service = config["service"]
        namespace, name, port = service["namespace"], service["name"], int(service.get("port") or 443)
        base = self.resolve_service(namespace, name, port) if self.resolve_service else None
        shown = f"https://{name}.{namespace}.svc:{port}{service.get('path', '')}"
        if base is None:
            raise _CallFailedError(f'failed to call webhook: Post "{shown}": service "{name}" not found')
        return base + (service.get("path") or ""), f"{name}.{namespace}.svc"

    def _context(self, bundle: str) -> ssl.SSLContext:
        context = self._contexts.get(bundle)
        if context is None:
            context = ssl.create_default_context()
            if bundle:
                try:
                    context.load_verify_locations(cadata=base64.b64decode(bundle).decode())
                except (ssl.SSLError, binascii.Error, UnicodeDecodeError) as error:
                    raise _CallFailedError("unable to load root certificates: unable to parse bytes as PEM") from error
            self._contexts[bundle] = context
        return context

    async def _post(self, webhook: Obj, body: bytes) -> Obj:
        url, server_name = self._address(webhook["clientConfig"])
        timeout_s = int(webhook.get("timeoutSeconds") or 10)
        url = f"{url}?timeout={timeout_s}s"
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            async with self._session.post(
                url,
                data=body,
                headers={"Content-Type": "application/json", "Accept": "application/json, */*"},
                ssl=self._context(dig(webhook, "clientConfig", "caBundle", default="")),
                server_hostname=server_name,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                content = await response.read()
                if response.status != 200:
                    text = content.decode(errors="replace")[:200]
                    raise _CallFailedError(f"failed to call webhook: an error on the server ({text!r})")
        except TimeoutError as error:
            raise _CallFailedError(f'failed to call webhook: Post "{url}": context deadline exceeded') from error
        except aiohttp.ClientConnectorError as error:
            why = "connection refused" if isinstance(error.os_error, ConnectionRefusedError) else str(error)
            text = f'failed to call webhook: Post "{url}": dial tcp {error.host}:{error.port}: connect: {why}'
            raise _CallFailedError(text) from error
        except aiohttp.ClientError as error:
            raise _CallFailedError(f'failed to call webhook: Post "{url}": {error}') from error
        try:
            answer: Any = msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            raise _CallFailedError(f"couldn't decode the response: {error}") from error
        if not isinstance(answer, dict):
            raise _CallFailedError("the response is not an AdmissionReview")
        return answer

    def _patched(self, webhook: str, attributes: Attributes, response: Obj) -> Attributes:
        patch = response.get("patch")
        if not patch or attributes.obj is None:
            return attributes
        kind = attributes.target.kind
        try:
            operations = msgspec.json.decode(base64.b64decode(patch))
            result = json_patch(_with_type(kind, attributes.obj), operations)
        except (binascii.Error, msgspec.DecodeError, StatusError) as error:
            raise errors.internal(f'webhook "{webhook}" returned a patch that does not apply: {error}') from error
        result = {key: value for key, value in result.items() if key not in ("kind", "apiVersion")}
        return replace(attributes, obj=result)
