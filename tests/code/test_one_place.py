"""What stands on the wire is spelled in one place: keys, resources, variables, names of metrics (design 2)."""

from __future__ import annotations

import ast
import collections
import re

import pytest

from tests.code.sources import modules, texts

NAMES = "hami/vendors/nvidia/names.py"
HOMES = {
    "annotation keys, labels and resources": (
        re.compile(r"(?:hami\.io|(?<!device-plugin\.)nvidia\.com)/"),
        {
            "hami/core/keys.py",
            NAMES,
            "hami/vendors/nvidia/config.py",  # names of resources are settings, these their defaults
            "hami/core/reason_texts.py",  # prose for people
            "hami/sim/kubelet/runner.py",  # the simulated kubelet's own, below sim.hami.io
        },
    ),
    "variables of containers": (
        re.compile(r"\b(?:CUDA|NVIDIA|LIBCUDA|LD|GPU_CORE)_[A-Z]{3,}"),
        {
            NAMES,
            "hami/config/device_plugin.py",  # variables that stand for flags, each beside its flag; help texts
            "hami/config/scheduler.py",
            "hami/config/shared_flags.py",
        },
    ),
}
METRIC = re.compile(r"hami_(?:scheduler|gpu|node|vgpu|container|host|mig|monitor|resource|build|plugin)_\w+")


def strays(pattern: re.Pattern[str], homes: set[str], tree: ast.Module, path: str) -> list[str]:
    """Where a module that is no home spells what the pattern finds."""
    if path in homes:
        return []
    return [f"{path}:{line}: {text!r}" for line, text in texts(tree) if pattern.search(text)]


@pytest.mark.parametrize("what", HOMES)
def test_names_on_the_wire_are_spelled_at_home(what: str) -> None:
    pattern, homes = HOMES[what]
    found = [each for path, tree in modules("hami") for each in strays(pattern, homes, tree, path)]
    assert found == []


@pytest.mark.parametrize("what", HOMES)
def test_each_home_is_one(what: str) -> None:
    """A home that spells nothing any more is taken off the list."""
    pattern, homes = HOMES[what]
    spelling = {path for path, tree in modules("hami") if strays(pattern, set(), tree, path)}
    assert homes <= spelling


def test_each_metric_is_named_once() -> None:
    named = collections.Counter(
        text for _, tree in modules("hami") for _, text in texts(tree) if METRIC.fullmatch(text)
    )
    assert len(named) > 50
    assert {name: count for name, count in named.items() if count > 1} == {}


@pytest.mark.parametrize(
    "code",
    ['KEY = "hami.io/vgpu-node"', 'f"{x} nvidia.com/gpu"', 'use(env="CUDA_DEVICE_SM_LIMIT")'],
)
def test_a_stray_is_noticed(code: str) -> None:
    """Negative control."""
    assert any(strays(pattern, homes, ast.parse(code), "hami/x.py") for pattern, homes in HOMES.values())
    assert strays(*HOMES["annotation keys, labels and resources"], ast.parse('"""hami.io/x"""'), "hami/x.py") == []
