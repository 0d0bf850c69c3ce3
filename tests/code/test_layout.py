"""Sizes of files and functions, tests that lean on tests, errors that nobody tells apart, clocks in pure rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.code.sources import ROOT, modules

FILE_LINES = 350
FUNCTION_LINES = 50
"""The guide is 35; tables of flags and steps of one story may be longer."""
PURE = ("hami/core", "hami/vendors", "hami/placement")
CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter", "time_ns"}
OWNERS = {"time", "datetime", "date", "dt"}


@pytest.mark.parametrize("folder", ["hami", "scripts"])
def test_files_and_functions_are_short(folder: str) -> None:
    long = []
    for path, tree in modules(folder):
        if len((ROOT / path).read_text().splitlines()) > FILE_LINES:
            long.append(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{path}: {node.name} {lines}")
    assert long == []


def test_no_test_leans_on_another_test_module() -> None:
    """What several need has a file of its own, whose name says what it is."""
    leaning = [
        f"{path}: {node.module}"
        for path, tree in modules("tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and re.fullmatch(r"tests\..*\.test_\w+", node.module or "")
    ]
    assert leaning == []


def errors(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Classes of a module with the names of their bases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, {ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases}


def caught(tree: ast.Module) -> Iterator[str]:
    """Names that a module's `except`, `suppress` and `isinstance` tell apart."""
    for node in ast.walk(tree):
        kinds: list[ast.expr] = []
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            kinds = [node.type]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] in ("suppress", "isinstance"):
            kinds = node.args
        for kind in kinds:
            for name in ast.walk(kind):
                if isinstance(name, ast.Name | ast.Attribute):
                    yield ast.unparse(name).rsplit(".", 1)[-1]


def test_each_error_is_ours_and_caught_somewhere_by_name() -> None:
    """One that nobody tells apart is its base: a name that says nothing to any code."""
    bases: dict[str, set[str]] = {}
    told: set[str] = set()
    for _, tree in modules("hami"):
        bases.update(errors(tree))
        told.update(caught(tree))
    family = {"HamiError"}
    while grown := {name for name, of in bases.items() if of & family} - family:
        family |= grown
    assert len(family) > 10
    assert sorted(family - told) == []
    assert sorted(name for name in bases if name.endswith(("Error", "Exception")) and name not in family) == []


def clocks(tree: ast.Module) -> list[str]:
    """Calls that read a clock."""
    return [
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CLOCKS
        and ast.unparse(node.func.value).rsplit(".", 1)[-1] in OWNERS
    ]


def test_pure_rooms_read_no_clock() -> None:
    """Imports are import-linter's; this is for `datetime`, which reads texts and clocks alike."""
    found = {path: clocks(tree) for room in PURE for path, tree in modules(room)}
    assert {path: calls for path, calls in found.items() if calls} == {}
    assert clocks(ast.parse("import datetime as dt\ndt.datetime.now(dt.UTC)")) == ["dt.datetime.now"]
