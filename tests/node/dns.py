"""CoreDNS in the cluster: pods find services by name. Built from the Go module proxy, once, into `$HAMI_CACHE`.

Not part of `OneNode.start`: whoever wants names calls `build` before the network is gone, then `deploy`.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.processes import wait_until
from tests.node import gobuild, images, network
from tests.node.onenode import OneNode

SOURCE = Path(__file__).parent / "go/coredns"
MANIFEST = Path(__file__).parent / "manifests/coredns.yaml"
IMAGE = "localhost/coredns:1"
DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
READY_S = 60


def build(progress: bool = True) -> Path:
    """The program, built if need be. Raises tests.cluster.build.BuildError."""
    return gobuild.built(SOURCE, "github.com/coredns/coredns", progress=progress) / SOURCE.name


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
