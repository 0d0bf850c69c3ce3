"""kubelet's pod-resources API: which devices it says that each container holds.

The few messages of `v1.PodResourcesLister/List` that matter here are described in code; unknown fields are skipped.
Source: Kubernetes, kubelet/pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
REPEATED = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
ONE = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
FIELDS = {
    "Request": [],
    "Response": [("pods", 1, REPEATED, "Pod")],
    "Pod": [("name", 1, ONE, ""), ("namespace", 2, ONE, ""), ("containers", 3, REPEATED, "Container")],
    "Container": [("name", 1, ONE, ""), ("devices", 2, REPEATED, "Devices")],
    "Devices": [("resource_name", 1, ONE, ""), ("device_ids", 2, REPEATED, "")],
}
"""Message name to fields: name, number, label, and the message that it holds (empty: text)."""
TIMEOUT_S = 10


def held_devices(socket: Path, resource: str) -> dict[tuple[str, str, str], list[str]]:
    """Device ids of one resource by namespace, pod and container, as kubelet lists them. Raises grpc.RpcError."""
    request, response = _messages()
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        answer = call(request(), timeout=TIMEOUT_S)
    held: dict[tuple[str, str, str], list[str]] = {}
    for pod in answer.pods:
        for container in pod.containers:
            for devices in container.devices:  # one entry for each NUMA node
                if devices.resource_name == resource:
                    held.setdefault((pod.namespace, pod.name, container.name), []).extend(devices.device_ids)
    return held


def _messages() -> tuple[Any, Any]:
    """Classes of the request and the response."""
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="podresources", syntax="proto3")
    for message, fields in FIELDS.items():
        described = file.message_type.add(name=message)
        for name, number, label, held in fields:
            field = described.field.add(name=name, number=number, label=label, type=MESSAGE if held else TEXT)
            if held:
                field.type_name = f".podresources.{held}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request, response = (pool.FindMessageTypeByName(f"podresources.{name}") for name in ("Request", "Response"))
    return message_factory.GetMessageClass(request), message_factory.GetMessageClass(response)
