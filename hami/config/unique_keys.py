"""YAML in which no key stands twice: loaders take the last one, and the first is lost without a word (HAMi #2940).

YAML 1.2 calls such a document wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"


def load(text: str, section: str) -> tuple[Any, tuple[str, ...]]:
    """The document, and a sentence for each key that stands twice at its top or anywhere in `section`.

    Raises what the loader raises.
    """
    loader = yaml.CSafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, ()
        problems = tuple(_at_top(root, section))
        return loader.construct_document(root), problems
    finally:
        loader.dispose()


def _at_top(root: yaml.Node, section: str) -> Iterator[str]:
    if not isinstance(root, yaml.MappingNode):
        return
    yield from _twice(root, "")
    for key, value in root.value:
        if isinstance(key, yaml.ScalarNode) and key.value == section:
            yield from _below(value, key.value, set())


def _below(node: yaml.Node, path: str, seen: set[int]) -> Iterator[str]:
    """`seen`: nodes that were looked at, because an alias may lead back to one."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield from _twice(node, f"{path}.")
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            yield from _below(value, f"{path}.{name}", seen)
    elif isinstance(node, yaml.SequenceNode):
        for number, each in enumerate(node.value):
            yield from _below(each, f"{path}.{number}", seen)


def _twice(node: yaml.MappingNode, prefix: str) -> Iterator[str]:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
            continue
        line = key.start_mark.line + 1
        if key.value in lines:
            yield f"{prefix}{key.value} stands twice, in lines {lines[key.value]} and {line}: remove one"
        lines.setdefault(key.value, line)
