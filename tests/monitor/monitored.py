"""A monitor over simulated cards and pods of this test."""

from __future__ import annotations

from pathlib import Path

from hami.core.objects import Container, ObjectMeta, Pod, PodSpec
from hami.monitor.monitor import Monitor
from hami.monitor.pods import PodBook
from hami.monitor.settings import MonitorSettings
from hami.nvml.probe import open_probe

PROFILE = """
cards:
  - {model: NVIDIA A100-SXM4-40GB, memory_mib: 40960, used_mib: 5000, gpu_percent: 71, uuids: [GPU-a]}
  - {model: Tesla T4, memory_mib: 15360, uuids: [GPU-b]}
  - {model: GB10, memory_mib: null, gpu_percent: 3, uuids: [GPU-c]}
"""


def pod(uid: str, name: str, **annotations: str) -> Pod:
    spec = PodSpec(init_containers=(Container(name="init"),), containers=(Container(name="main"),))
    return Pod(metadata=ObjectMeta(name=name, namespace="team", uid=uid, annotations=annotations or None), spec=spec)


async def no_pods() -> list[Pod]:
    return []


def monitor(tmp_path: Path, *pods: Pod, legacy: bool = False) -> Monitor:
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    book = PodBook()
    book.replaced(list(pods))
    settings = MonitorSettings(node_name="n1", vgpu_dir=tmp_path, legacy_metrics=legacy)
    return Monitor(settings, open_probe(f"sim:{profile}", node_name="n1"), book, no_pods)
