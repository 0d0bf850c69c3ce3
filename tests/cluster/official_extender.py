"""An extender that only posts a plain Binding, written as its libraries' own pages show it: FastAPI and the official
Kubernetes client. Every node that kube-scheduler names fits. What `hami scheduler` is compared with.

    python -m tests.cluster.official_extender ACCESS-AS-JSON PORT CERT KEY
"""

from __future__ import annotations

import json
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from kubernetes import client


def core_api(access: dict[str, str]) -> client.CoreV1Api:
    """The client for `server`, with `ca` and `token`."""
    configuration = client.Configuration()
    configuration.host, configuration.ssl_ca_cert = access["server"], access["ca"]
    configuration.api_key["authorization"] = f"Bearer {access['token']}"
    return client.CoreV1Api(client.ApiClient(configuration))


def extender(api: client.CoreV1Api) -> FastAPI:
    """The application; its handlers are plain functions, which FastAPI runs in threads."""
    app = FastAPI()

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {}

    @app.post("/filter")
    def keep_all(asked: dict[str, Any]) -> dict[str, Any]:
        return {"NodeNames": asked["NodeNames"], "FailedNodes": {}, "Error": ""}

    @app.post("/bind")
    def bind(asked: dict[str, Any]) -> dict[str, str]:
        name, namespace = asked["PodName"], asked["PodNamespace"]
        meta = client.V1ObjectMeta(name=name, namespace=namespace, uid=asked["PodUID"])
        binding = client.V1Binding(metadata=meta, target=client.V1ObjectReference(kind="Node", name=asked["Node"]))
        try:
            # The answer is a Status, which the generated code would read as a Binding without a target.
            api.create_namespaced_pod_binding(name, namespace, binding, _preload_content=False)
        except client.ApiException as error:
            return {"Error": str(error)}
        return {"Error": ""}

    return app


if __name__ == "__main__":
    uvicorn.run(
        extender(core_api(json.loads(sys.argv[1]))),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        ssl_certfile=sys.argv[3],
        ssl_keyfile=sys.argv[4],
        log_level="warning",
        timeout_keep_alive=120,
    )
