"""Programs of tenants: an image with the stand-in driver and a program that takes memory until it is refused."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hami.sim.containers.build import build_driver, build_guest
from hami.sim.containers.rootfs import CARDS_FOLDER, GUEST, MACHINE_PROC
from scripts import base_image
from scripts.buildah import Buildah, cache
from scripts.images import Image, archived
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.helm.cluster import CARD_MIB, User

IMAGE = "localhost/tenant:1"
VGPU_INFO = "/usr/local/vgpu/vgpu-info"
GUEST_INFO = "/opt/vgpu-info"
FILL = (GUEST, "64", "-1")
"""Takes steps of 64 MiB until it is refused, and keeps them."""
FILL_AND_END = (GUEST, "64", "0")
KEEP = ("sleep", "infinity")


def ensure_image() -> Image:
    """The image: the base, the stand-in libcuda and libnvidia-ml, and the program; built if need be."""
    driver = build_driver(cache(), lambda text: print(text, file=sys.stderr))
    guest = build_guest(cache())
    digest = f"{driver.name[-6:]}{guest.name[-6:]}{base_image.digest()[:6]}"

    def build(buildah: Buildah) -> None:
        base = base_image.ensure(buildah)
        with tempfile.TemporaryDirectory(dir=buildah.store) as folder:
            shutil.copytree(driver, Path(folder) / "driver")
            shutil.copytree(guest, Path(folder) / "guest")
            dockerfile = Path(folder) / "Dockerfile"
            dockerfile.write_text(
                f"FROM {base}\nCOPY driver /usr/lib/x86_64-linux-gnu\nCOPY guest {Path(GUEST).parent}\n"
                f"CMD {json.dumps(list(FILL))}\n"
            )
            buildah.build(IMAGE, Path(folder), dockerfile, {})

    return archived("tenant", digest, IMAGE, build)


def write_cards(folder: Path, uuids: Sequence[str]) -> None:
    """What the stand-in driver's cards are, in the folder that tenants mount; they match what the node registered."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["driver 580.65.06", "cuda 12040", f"state {CARDS_FOLDER}/state", f"proc {MACHINE_PROC}"]
    lines += [f"card uuid={uuid} name=NVIDIA_GeForce_RTX_3090 memory_mib={CARD_MIB}" for uuid in uuids]
    (folder / "cards.conf").write_text("\n".join(lines) + "\n")
    folder.chmod(0o777)


def container(name: str, limits: Mapping[str, int], command: Sequence[str] = KEEP) -> dict[str, Any]:
    """A container with that share; keys of `limits` are the part after `nvidia.com/`."""
    return {
        "name": name,
        "image": IMAGE,
        "command": list(command),
        "resources": {"limits": {f"nvidia.com/{key}": str(value) for key, value in limits.items()}},
        "volumeMounts": [
            {"name": "cards", "mountPath": CARDS_FOLDER},
            {"name": "proc", "mountPath": MACHINE_PROC, "readOnly": True},
            {"name": "info", "mountPath": GUEST_INFO, "readOnly": True},
        ],
    }


def spec(cards: Path, *containers: Mapping[str, Any], **extra: Any) -> dict[str, Any]:
    """A pod spec whose containers find the stand-in driver's cards in the node's folder `cards`."""
    volumes = [
        {"name": "cards", "hostPath": {"path": str(cards)}},
        {"name": "proc", "hostPath": {"path": "/proc"}},
        {"name": "info", "hostPath": {"path": VGPU_INFO, "type": "File"}},
    ]
    return {"containers": list(containers), "volumes": volumes, "terminationGracePeriodSeconds": 1, **extra}


def meta(name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Metadata of an object in the default namespace."""
    return {"name": name, "labels": dict(labels or {})}


def pod(
    name: str, cards: Path, limits: Mapping[str, int], command: Sequence[str] = KEEP, **extra: Any
) -> dict[str, Any]:
    """A pod of one container."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name),
        "spec": spec(cards, container("c", limits, command), **extra),
    }


def report_of(user: User, name: str, container: str = "c") -> dict[str, int]:
    """What the program of a pod says of its first card; waits until it does."""
    what = f"the report of container {container} in {name}"
    return wait_until(lambda: report_so_far(user, name, container), PATIENCE_S, what, 0.2)


def report_so_far(user: User, name: str, container: str = "c") -> dict[str, int]:
    """The same at this moment; empty before it says something. Raises CommandError where its log cannot be read."""
    lines = [json.loads(line) for line in user.kubectl("logs", name, f"--container={container}").splitlines()]
    return next((line for line in lines if "card" in line), {})


def admitted(user: User, cards: Path) -> str:
    """Scheduler that a new pod with a share is given: ours where the webhook was reached, the default one if not."""
    asked = json.dumps(pod("asked", cards, {"gpu": 1, "gpumem": 500}))
    return user.kubectl("create", "--dry-run=server", "-f", "-", "-o=jsonpath={.spec.schedulerName}", stdin=asked)
