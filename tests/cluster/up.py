"""`make control-plane`: a real control plane with our scheduler and GPU nodes, in the foreground.

    python -m tests.cluster.up --nodes 3 --profile a100

Everything it starts dies with it, however it ends. Servers listen on free loopback ports.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from hami.core.errors import ConfigError
from hami.sim import profiles
from tests.cluster import build
from tests.cluster.components import Cluster
from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import NotReadyError, Process, missing_tools

EXAMPLE = """\
apiVersion: v1
kind: Pod
metadata: {name: share}
spec:
  containers:
    - name: main
      image: registry.invalid/none:1   # no container is run: the kubelet is a stand-in
      resources: {limits: {nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30}}
"""

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_NODES = 200


def interrupted(*_: object) -> None:
    """End once; make passes the signal on a second time, which must not break the tidying up."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def instructions(cluster: Cluster, seconds: float) -> str:
    """What a stranger needs to know, with commands to paste."""
    plane = cluster.plane
    example = plane.folder / "share.yaml"
    example.write_text(EXAMPLE)
    audit = Path(__file__).parent.parent / "tools" / "audit.py"
    nodes = ", ".join(f"{node.name} ({node.profile})" for node in cluster.nodes.values())
    return f"""
Kubernetes v{plane.binaries.kubernetes_version} is up after {seconds:.1f} s with {nodes}. In another terminal:

  export KUBECONFIG={plane.admin_kubeconfig} PATH={plane.binaries.folder}:$PATH
  kubectl get nodes
  kubectl apply -f {example}
  kubectl wait --for=condition=Ready pod/share --timeout=30s
  kubectl describe pod share
  {sys.executable} {audit} --kubeconfig $KUBECONFIG

Logs: {plane.logs}. Extender and webhook: {plane.extender_url}. Ctrl-C ends everything.
"""


def watch(processes: list[Process]) -> None:
    """Wait until Ctrl-C; raise NotReadyError when a process ends by itself."""
    while True:
        for process in processes:
            process.require_alive()
        time.sleep(0.5)


def serve(folder: Path, hardware: list[str]) -> None:
    """Start everything, say how to use it, and stay until interrupted."""
    binaries = build.ensure()
    started = time.monotonic()
    cluster = Cluster(ControlPlane(binaries, folder))
    try:
        print("starting etcd, kube-apiserver, controller-manager, kube-scheduler, hami scheduler", flush=True)
        cluster.start()
        print(f"starting {len(hardware)} nodes, each a kubelet stand-in and hami device-plugin", flush=True)
        nodes = cluster.add_nodes(hardware)
        print(instructions(cluster, time.monotonic() - started), flush=True)
        watch([*cluster.processes(), nodes[0].kubelet, *(node.plugin for node in nodes)])
    finally:
        cluster.stop()


def _nodes(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MOST_NODES:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not allowed: expected a whole number from 1 to {MOST_NODES}"
        )
    return int(text)


def _profiles(text: str) -> list[str]:
    names = text.split(",")
    try:
        for name in names:
            profiles.load(name)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return names


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="make control-plane", description=__doc__, allow_abbrev=False)
    parser.add_argument("--nodes", type=_nodes, default=3, help=f"how many GPU nodes, 1 to {MOST_NODES}")
    parser.add_argument(
        "--profile", type=_profiles, default=["a100"], help="hardware profile, or several by comma, given in turn"
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and state after the end")
    options = parser.parse_args()
    reason = build.missing_prerequisite() or missing_tools()
    if reason is not None:
        print(f"cannot run the control plane: {reason}", file=sys.stderr)
        return 1
    names = options.profile
    folder = Path(tempfile.mkdtemp(prefix="hami-control-plane-"))
    for number in ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, interrupted)
    try:
        serve(folder, [names[index % len(names)] for index in range(options.nodes)])
    except KeyboardInterrupt:
        print("\nended: nothing is left running", flush=True)
        return 0
    except (NotReadyError, build.BuildError) as error:
        options.keep = True
        print(f"\n{error}\nlogs kept in {folder / 'logs'}", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
