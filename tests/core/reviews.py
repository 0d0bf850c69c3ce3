"""One admission review of a pod: the decision, and the pod as its patches leave it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonpatch
import msgspec

from hami.core.admission import Admission, AdmissionSettings, review
from hami.core.objects import Pod
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.core.build import REGISTRY

SETTINGS = AdmissionSettings()
NAME = "hami-scheduler"


def decide(subject: Pod, config: NvidiaConfig | None = None, options: AdmissionSettings = SETTINGS) -> Admission:
    return review(subject, "default", (Nvidia(config),) if config else REGISTRY, options)


def patched(subject: Pod, admission: Admission) -> dict[str, Any]:
    """The pod after the patch, as JSON."""
    ops = [{"op": op.op, "path": op.path, "value": op.value} for op in admission.patch]
    result: dict[str, Any] = jsonpatch.apply_patch(msgspec.json.decode(msgspec.json.encode(subject)), ops)
    return result


def with_spec(subject: Pod, **fields: object) -> Pod:
    return msgspec.structs.replace(subject, spec=msgspec.structs.replace(subject.spec, **fields))


def resources_of(limits: Mapping[str, str]) -> dict[str, dict[str, str]]:
    full = {f"nvidia.com/{name}": value for name, value in limits.items()}
    return {"limits": full, "requests": full}
