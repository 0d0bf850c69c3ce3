"""Every values file that the chart is rendered with, and the configurations within the rendered objects."""

from __future__ import annotations

import pytest
import yaml

from tests.chart.rendering import (
    CHART,
    CI_VALUES,
    UPSTREAM_VALUES,
    Object,
)

ALL_VALUES = [CHART / "values.yaml", UPSTREAM_VALUES, *CI_VALUES]
RENAMED = CHART / "ci" / "renamed-values.yaml"
every_file = pytest.mark.parametrize("file", ALL_VALUES, ids=lambda path: path.stem)


def config_of(objects: list[Object], suffix: str, key: str) -> str:
    found = [each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1
    return str(found[0]["data"][key])


def kube_scheduler_config(objects: list[Object]) -> Object:
    config: Object = yaml.safe_load(config_of(objects, "-scheduler", "config.yaml"))
    return config
