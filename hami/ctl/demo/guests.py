"""Pods of a stranger's own, from a YAML file, in place of the tour's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hami.core import yaml_text
from hami.core.errors import ConfigError
from hami.ctl.demo.tour import Stop


def read(path: Path) -> tuple[Stop, ...]:
    """The pods of `path`, each with a namespace. Raises ConfigError for anything that is no pod."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--pods: {path} cannot be read: {error}") from error
    documents = yaml_text.documents(text, f"--pods: {path}")
    listed = [_pod(path, item) for document in documents if document is not None for item in _items(document)]
    if not listed:
        raise ConfigError(f"--pods: {path} holds no pod")
    return tuple(Stop("", pod) for pod in listed)


def _items(document: Any) -> Iterator[Any]:
    """A document, or what a List holds."""
    if not isinstance(document, dict) or not str(document.get("kind", "")).endswith("List"):
        yield document
        return
    items = document.get("items")
    if items is None:
        return
    yield from items if isinstance(items, list) else [items]


def _pod(path: Path, item: Any) -> dict[str, Any]:
    kind = item.get("kind") if isinstance(item, dict) else item
    if not isinstance(item, dict) or kind != "Pod":
        raise ConfigError(f"--pods: {path} holds {kind!r}: only objects of kind Pod are taken")
    metadata = item.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise ConfigError(f"--pods: {path} holds a pod without metadata.name")
    metadata = {**metadata, "namespace": metadata.get("namespace") or "default"}
    for key in ("name", "namespace"):
        if not isinstance(metadata[key], str):
            raise ConfigError(f"--pods: {path}: metadata.{key} {metadata[key]!r} is no text: put it in quotes")
    if not isinstance(item.get("spec"), dict):
        raise ConfigError(f"--pods: {path} holds pod {metadata['name']} without a spec")
    return {**item, "metadata": metadata}
