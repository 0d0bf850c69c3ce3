"""The embedded cluster in one call: API server, and where wanted kube-scheduler and kubelets."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.server import TlsFiles


class SimCluster:
    """An async context manager around the stand-ins.

        async with SimCluster() as cluster:
            cluster.base_url        # http://127.0.0.1:<free port>
            cluster.kubeconfig      # path of a kubeconfig for it
            cluster.api.rest        # object verbs without HTTP
            cluster.api.faults      # latency, 429, 500, cut watches, 410
            cluster.api.seen        # every request: verb, resource, name, code, user agent

    `directory` keeps the kubeconfig and the kubelets' folders; a temporary one is made and removed otherwise.
    """

    def __init__(self, *, directory: Path | None = None, api: ApiServer | None = None, tls: TlsFiles | None = None):
        self._own_directory = None if directory else tempfile.TemporaryDirectory(prefix="hami-sim-")
        self.directory = directory or Path(self._own_directory.name if self._own_directory else ".")
        self.api = api or ApiServer(tls=tls)

    @property
    def base_url(self) -> str:
        return self.api.base_url

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    async def __aenter__(self) -> SimCluster:
        await self.api.start()
        self.api.write_kubeconfig(self.kubeconfig)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.api.stop()
        if self._own_directory is not None:
            self._own_directory.cleanup()
