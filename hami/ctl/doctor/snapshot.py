"""One look at a cluster: nodes, pods, webhook configurations and the Services behind them. Reads only."""

from __future__ import annotations

from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from hami.core.errors import ApiError, GoneError, NotFoundError
from hami.core.keys import WEBHOOK_NAME
from hami.core.objects import Node, ObjectMeta, Pod, node_decoder, pod_decoder
from hami.kube import paths
from hami.kube.client import ApiClient
from hami.kube.listing import decode_answer, pages

CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_REFUSED: Final = 403
_LISTS: Final = 3
"""A list that takes so long that the server has dropped it begins anew, so often."""
_FEW: Final = 50
"""More objects are read by a list, not one by one."""
_Kind = TypeVar("_Kind")


class ServiceReference(msgspec.Struct, frozen=True):
    namespace: str = ""
    name: str = ""
    path: str = ""
    port: int = 443


class ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    url: str = ""
    service: ServiceReference | None = None
    ca_bundle: str = ""


class Rule(msgspec.Struct, frozen=True, rename="camel"):
    resources: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()


class Webhook(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    client_config: ClientConfig = ClientConfig()
    failure_policy: str = "Fail"
    rules: tuple[Rule, ...] = ()


class WebhookConfiguration(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] | None = None


class _ServiceSpec(msgspec.Struct, frozen=True):
    selector: dict[str, str] | None = None


class Service(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _ServiceSpec = _ServiceSpec()


_service_decoder: Final = msgspec.json.Decoder(Service)


class Snapshot(msgspec.Struct):
    """Objects of one moment. `services` has None for a Service that does not exist, and nothing for one that could not
    be read; `notes` says what could not."""

    unix_s: float
    nodes: list[Node] = []
    pods: list[Pod] = []
    configurations: list[WebhookConfiguration] | None = None
    services: dict[tuple[str, str], Service | None] = {}
    notes: list[str] = []


async def take(client: ApiClient, unix_s: float) -> Snapshot:
    """Reads everything. Raises the ApiError family and TransportError where nodes or pods cannot be read."""
    snapshot = Snapshot(unix_s)
    # Pods are read last, so that no pod refers to a node that was not read.
    snapshot.nodes = await _listed(client, paths.NODES, node_decoder, snapshot.notes)
    snapshot.pods = await _listed(client, paths.PODS, pod_decoder, snapshot.notes)
    await _read_webhooks(client, snapshot)
    return snapshot


async def _listed(
    client: ApiClient, path: str, decoder: msgspec.json.Decoder[_Kind], notes: list[str], tries: int = _LISTS
) -> list[_Kind]:
    found: list[_Kind] = []
    problems: list[str] = []
    try:
        async for page in pages(client, path, decoder):
            found += page.objects
            problems += page.problems
    except GoneError:
        if tries <= 1:
            raise
        return await _listed(client, path, decoder, notes, tries - 1)
    notes += problems
    return found


async def _read_webhooks(client: ApiClient, snapshot: Snapshot) -> None:
    decoder = msgspec.json.Decoder(WebhookConfiguration)
    try:
        listed = await _listed(client, CONFIGURATIONS, decoder, snapshot.notes)
        found = [each for each in listed if hamis(each)]
        for webhook in (webhook for each in found for webhook in hamis(each)):
            service = webhook.client_config.service
            if service is not None:
                await _read_service(client, snapshot, service.namespace, service.name)
    except ApiError as error:
        snapshot.notes.append(f"webhook configurations: {error}")
        if error.status != _REFUSED:
            raise
        return
    snapshot.configurations = found


async def _read_service(client: ApiClient, snapshot: Snapshot, namespace: str, name: str) -> None:
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/services/{quote(name, safe='')}"
    try:
        found = decode_answer(await client.request("GET", path), _service_decoder, path)
    except NotFoundError:
        found = None
    except ApiError as error:
        if error.status != _REFUSED:
            raise
        snapshot.notes.append(f"Service {namespace}/{name}: {error}")
        return
    snapshot.services[namespace, name] = found


def hamis(configuration: WebhookConfiguration) -> tuple[Webhook, ...]:
    """The webhooks of a configuration that are HAMi's: upstream's chart and ours name them `vgpu.hami.io`."""
    return tuple(each for each in configuration.webhooks or () if each.name == WEBHOOK_NAME)


async def lock_texts(client: ApiClient, names: list[str], key: str) -> dict[str, str]:
    """An annotation of these nodes as it is now."""
    texts: dict[str, str] = {}
    if len(names) > _FEW:
        wanted = set(names)
        nodes = await _listed(client, paths.NODES, node_decoder, [])
        return {node.name: node.annotations.get(key, "") for node in nodes if node.name in wanted}
    for name in names:
        try:
            node = decode_answer(await client.request("GET", paths.node(name)), node_decoder, paths.node(name))
        except NotFoundError:
            continue
        texts[name] = node.annotations.get(key, "")
    return texts
