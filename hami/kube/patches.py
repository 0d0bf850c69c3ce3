"""Bodies of the writes that hami makes: merge patches of annotations and labels, and the Binding.

Every write is a patch of named fields, never a replaced object (spec/ecosystem 2.2). A merge patch removes a key by
null and checks `metadata.uid` and `metadata.resourceVersion` where it carries them (409 if they differ). A JSON patch
is used where one value must still be what was read while others may write the object all the time.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


def metadata_patch(
    *,
    annotations: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str | None] | None = None,
    uid: str = "",
    resource_version: str = "",
) -> bytes:
    """Merge patch (RFC 7386) of an object's metadata; None removes a key, empty preconditions are left out."""
    metadata: dict[str, object] = {}
    if uid:
        metadata["uid"] = uid
    if resource_version:
        metadata["resourceVersion"] = resource_version
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    return msgspec.json.encode({"metadata": metadata})


def annotation_dropped(key: str, expected: str) -> bytes:
    """JSON patch (RFC 6902) that removes an annotation as long as it has the value `expected`."""
    path = "/metadata/annotations/" + key.replace("~", "~0").replace("/", "~1")
    return msgspec.json.encode([{"op": "test", "path": path, "value": expected}, {"op": "remove", "path": path}])


def binding(
    namespace: str, name: str, *, uid: str, resource_version: str, node: str, annotations: Mapping[str, str]
) -> bytes:
    """A core/v1 Binding. Its annotations are copied onto the pod in the write that sets nodeName (design 3)."""
    metadata: dict[str, object] = {"namespace": namespace, "name": name, "annotations": dict(annotations)}
    if uid:
        metadata["uid"] = uid
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
    )
