"""kubelet's pod-resources API: which devices it offers at this moment, and which of them each container holds.

The few messages of `v1.PodResourcesLister` that matter here are described in code; unknown fields are skipped.
Source: Kubernetes, kubelet/pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.cluster.processes import PATIENCE_S, NotYetError, wait_until

TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
REPEATED = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
ONE = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
FIELDS = {
    "Request": [],
    "Held": [("pods", 1, REPEATED, "Pod")],
    "Offered": [("devices", 1, REPEATED, "Devices")],
    "Pod": [("name", 1, ONE, ""), ("namespace", 2, ONE, ""), ("containers", 3, REPEATED, "Container")],
    "Container": [("name", 1, ONE, ""), ("devices", 2, REPEATED, "Devices")],
    "Devices": [("resource_name", 1, ONE, ""), ("device_ids", 2, REPEATED, "")],
}
"""Message name to fields: name, number, label, and the message that it holds (empty: text)."""
TIMEOUT_S = 10


def held_devices(socket: Path, resource: str) -> dict[tuple[str, str, str], list[str]]:
    """Device ids of one resource by namespace, pod and container, as kubelet lists them."""
    answer = _call(socket, "List", "Held")
    held: dict[tuple[str, str, str], list[str]] = {}
    for pod in answer.pods:
        for container in pod.containers:
            for devices in container.devices:  # one entry for each NUMA node
                if devices.resource_name == resource:
                    held.setdefault((pod.namespace, pod.name, container.name), []).extend(devices.device_ids)
    return held


def offered_devices(socket: Path, resource: str) -> list[str]:
    """Healthy device ids of one resource, from kubelet's memory: the Node object lags behind."""
    answer = _call(socket, "GetAllocatableResources", "Offered")
    return [one for devices in answer.devices if devices.resource_name == resource for one in devices.device_ids]


def _call(socket: Path, method: str, response: str) -> Any:
    """The answer, asked for again while kubelet is away or says that it was asked too often."""
    return wait_until(lambda: [_ask(socket, method, response)], PATIENCE_S, f"kubelet answers {method}")[0]


def _ask(socket: Path, method: str, response: str) -> Any:
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            f"/v1.PodResourcesLister/{method}",
            request_serializer=_message("Request").SerializeToString,
            response_deserializer=_message(response).FromString,
        )
        try:
            return call(_message("Request")(), timeout=TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            raise NotYetError(str(error)) from error


@functools.cache
def _message(name: str) -> Any:
    """Class of a message of FIELDS."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"podresources.{name}"))


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="podresources", syntax="proto3")
    for message, fields in FIELDS.items():
        described = file.message_type.add(name=message)
        for name, number, label, held in fields:
            field = described.field.add(name=name, number=number, label=label, type=MESSAGE if held else TEXT)
            if held:
                field.type_name = f".podresources.{held}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
