"""One look at a cluster: nodes, pods, webhook configurations and the Services behind them. Reads only."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from hami.core.errors import ApiError, NotFoundError
from hami.core.objects import Node, ObjectMeta, Pod, node_decoder, pod_decoder
from hami.kube import paths
from hami.kube.client import ApiClient
from hami.kube.listing import decode_answer, pages

CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_REFUSED: Final = 403


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
    """Objects of one moment. `services` has None for a Service that does not exist; `notes` what could not be read."""

    unix_s: float
    nodes: list[Node] = []
    pods: list[Pod] = []
    configurations: list[WebhookConfiguration] | None = None
    services: dict[tuple[str, str], Service | None] = {}
    notes: list[str] = []

    def pod(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self.pods if pod.key == f"{namespace}/{name}"), None)


async def take(client: ApiClient, unix_s: float) -> Snapshot:
    """Reads everything. Raises the ApiError family and TransportError where nodes or pods cannot be read."""
    snapshot = Snapshot(unix_s)
    # Pods are read last, so that no pod refers to a node that was not read.
    async for nodes in pages(client, paths.NODES, node_decoder):
        snapshot.nodes += nodes.objects
        snapshot.notes += nodes.problems
    async for pods in pages(client, paths.PODS, pod_decoder):
        snapshot.pods += pods.objects
        snapshot.notes += pods.problems
    await _read_webhooks(client, snapshot)
    return snapshot


async def _read_webhooks(client: ApiClient, snapshot: Snapshot) -> None:
    decoder = msgspec.json.Decoder(WebhookConfiguration)
    found: list[WebhookConfiguration] = []
    try:
        async for page in pages(client, CONFIGURATIONS, decoder):
            found += [each for each in page.objects if hamis(each)]
        for webhook in (webhook for each in found for webhook in hamis(each)):
            service = webhook.client_config.service
            if service is not None:
                key = (service.namespace, service.name)
                snapshot.services[key] = await _service(client, *key)
    except ApiError as error:
        snapshot.notes.append(f"webhook configurations: {error}")
        if error.status != _REFUSED:
            raise
        return
    snapshot.configurations = found


async def _service(client: ApiClient, namespace: str, name: str) -> Service | None:
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/services/{quote(name, safe='')}"
    try:
        return decode_answer(await client.request("GET", path), _service_decoder, path)
    except NotFoundError:
        return None


def hamis(configuration: WebhookConfiguration) -> tuple[Webhook, ...]:
    """The webhooks of a configuration that are HAMi's: upstream's chart and ours name them `vgpu.hami.io`."""
    return tuple(each for each in configuration.webhooks or () if each.name == "vgpu.hami.io")


async def lock_texts(client: ApiClient, names: list[str], key: str) -> dict[str, str]:
    """An annotation of these nodes as it is now."""
    texts: dict[str, str] = {}
    for name in names:
        try:
            node = decode_answer(await client.request("GET", paths.node(name)), node_decoder, paths.node(name))
        except NotFoundError:
            continue
        texts[name] = node.annotations.get(key, "")
    return texts
