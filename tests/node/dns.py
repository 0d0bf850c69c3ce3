"""CoreDNS in the cluster: pods find services by name. Built from the Go module proxy, once, into `$HAMI_CACHE`.

Not part of `OneNode.start`: whoever wants names calls `build` before the network is gone, then `deploy`.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from pathlib import Path

from tests.cluster.build import cache_root, compile_module
from tests.cluster.processes import wait_until
from tests.node import images, network
from tests.node.onenode import OneNode

SOURCE = Path(__file__).parent / "go/coredns"
MANIFEST = Path(__file__).parent / "manifests/coredns.yaml"
IMAGE = "localhost/coredns:1"
DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
READY_S = 60


def build(progress: bool = True) -> Path:
    """The program, built if need be. Raises tests.cluster.build.BuildError."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(SOURCE.iterdir()))).hexdigest()[:12]
    target = cache_root() / "coredns" / digest
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            staging = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
            try:
                version = (SOURCE / "go.mod").read_text().partition("coredns/coredns ")[2].split()[0]
                compile_module(SOURCE, version, staging, "-s -w", progress)
                staging.rename(target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return target / SOURCE.name


def deploy(node: OneNode) -> None:
    """Run it behind the address that kubelet tells pods; return when it is ready."""
    program = build()
    image = images.Image(IMAGE, {"/coredns": program}, command=("/coredns",))
    node.containerd.import_image(images.pack(image, node.folder / "images/coredns.tar"))
    manifest = MANIFEST.read_text().replace("$DNS_ADDRESS", network.DNS_ADDRESS)
    node.plane.kubectl("apply", "-f", "-", stdin=manifest)

    def ready() -> bool:
        return bool(node.plane.api.get(DEPLOYMENT)["status"].get("readyReplicas"))

    wait_until(ready, READY_S, "CoreDNS is ready")
