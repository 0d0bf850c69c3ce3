"""Values files of HAMi's earlier charts (4paradigm's to 2.6): their keys are named with what became of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.nesting import nested
from tests.chart.rendering import RenderError, notes, render

OLDER: dict[str, tuple[Any, str]] = {
    "version": ("v2.3.12", "set global.imageTag"),
    "imagePullSecrets": (["x"], "set global.imagePullSecrets"),
    "podSecurityPolicy.enabled": (False, "Kubernetes has no PodSecurityPolicy"),
    "iluvatarResourceName": ("iluvatar.ai/vgpu", "Iluvatar cards are not served"),
    "iluvatarResourceMem": ("iluvatar.ai/vcuda-memory", "Iluvatar cards are not served"),
    "iluvatarResourceCore": ("iluvatar.ai/vcuda-core", "Iluvatar cards are not served"),
    "ascendResourceName": ("huawei.com/Ascend910", "Ascend cards are not served"),
    "ascendResourceMem": ("huawei.com/Ascend910-memory", "Ascend cards are not served"),
    "scheduler.kubeScheduler.imageTag": ("v1.20.0", "set scheduler.kubeScheduler.image.tag"),
    "devicePlugin.monitorimage": ("a/b", "set devicePlugin.monitor.image"),
    "devicePlugin.monitorctrPath": ("/x", "follows global.gpuHookPath"),
    "devicePlugin.mluimage": ("a/b", "Cambricon cards are not served"),
    "devicePlugin.hygonimage": ("a/b", "Hygon cards are not served"),
    "devicePlugin.hygondriver": ("/dtk", "Hygon cards are not served"),
    "devicePlugin.vgpuMonitor": ({"resources": {}}, "set devicePlugin.monitor.resources"),
}


def test_keys_of_earlier_charts_are_told_apart_from_misspelt_ones() -> None:
    values: dict[str, Any] = {}
    for path, (value, _) in OLDER.items():
        place = values
        *parents, last = path.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    text = notes(values)
    for path, (_, reason) in OLDER.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"  - {path.removesuffix('.enabled')}:")]
        assert reason in line
    assert "does not know" not in text


@pytest.mark.parametrize("path", ["scheduler.kubeScheduler.image", "scheduler.extender.image", "devicePlugin.image"])
def test_an_image_written_as_one_text_is_refused_by_its_key(path: str) -> None:
    """HAMi's charts before 2.5 had them so; taken as nothing, the default image would run instead."""
    with pytest.raises(RenderError, match=f"/{path.replace('.', '/')}': got string, want object"):
        render(nested(path, "mirror.example/team/image:1"))
