"""The pods of our example files, as admission leaves them, and cards for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from hami.core import admission
from hami.core.admission import AdmissionSettings
from hami.core.objects import Pod, pod_decoder
from tests.placement.fakes import REGISTRY

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
FILES: Final = sorted(EXAMPLES.glob("*.yaml"))
MEMORY: Final = "nvidia.com/gpumem"
WORKLOADS: Final = ("Deployment", "Job", "Pod")
CARDS: Final = {
    "vllm.yaml": ("a100", 1),
    "vllm-ucm.yaml": ("a10", 1),
    "wan2.1.yaml": ("rtx3090", 2),
    "mcp-assistant.yaml": ("rtx3090", 2),
}
"""The card each file was counted for, and how many of its pods hold a share of one such card."""


def pods_of(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each pod of a file with the text of its document: as many as the workload starts."""
    for document in re.split(r"^---$", text, flags=re.M):
        found = yaml.safe_load(document)
        if found["kind"] not in WORKLOADS:
            continue
        template = found if found["kind"] == "Pod" else found["spec"]["template"]
        count = found["spec"].get("replicas", found["spec"].get("parallelism", 1))
        for number in range(count):
            name = f"{found['metadata']['name']}-{number}"
            meta = template.get("metadata", {}) | {"name": name, "namespace": "default", "uid": name}
            yield document, {"metadata": meta, "spec": template["spec"], "status": {"phase": "Pending"}}


def admitted(body: dict[str, Any]) -> Pod:
    pod = pod_decoder.decode(json.dumps(body).encode())
    answer = admission.review(pod, "default", REGISTRY, AdmissionSettings())
    assert answer.allowed, answer.message
    assert answer.warnings == ()
    assert any(op.value == "hami-scheduler" for op in answer.patch), "the pod is given to our scheduler"
    found = admission.admitted(pod, "default", REGISTRY, AdmissionSettings())
    assert isinstance(found, Pod)
    return found
