"""Bodies of admission reviews."""

from __future__ import annotations

import json
from typing import Any


def body(version: str, obj: Any) -> bytes:
    request = {"uid": "r-1", "operation": "CREATE", "namespace": "default", "object": obj}
    return json.dumps({"apiVersion": version, "kind": "AdmissionReview", "request": request}).encode()
