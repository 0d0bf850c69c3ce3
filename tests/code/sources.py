"""The code base as syntax trees, for tests of its own rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def modules(folder: str) -> Iterator[tuple[str, ast.Module]]:
    """Path from the root and tree of each module below `folder`; what protoc wrote is left out."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "proto" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string that is no docstring (a string that stands alone)."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.lineno, node.value
