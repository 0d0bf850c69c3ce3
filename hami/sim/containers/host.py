"""A node's disk as the installer of our images leaves it, and its cards as the stand-in driver sees them."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import msgspec
import yaml

from hami.sim.containers.rootfs import CARDS_FOLDER, MACHINE_PROC
from hami.sim.containers.toolkit import Toolkit
from hami.sim.profiles import Profile


class NodeHost:
    """One node's folder on this machine.

    hook/vgpu/{libvgpu.so,ld.so.preload}   what the device plugin mounts into containers
    cards/cards.conf, cards/state          the stand-in driver's cards and who holds how much of them
    profile.yaml                           the same cards for `--nvml sim:…`
    roots/, logs/                          containers' root folders, and what they wrote
    """

    def __init__(self, folder: Path, node: str, profile: Profile) -> None:
        self.folder = folder
        self._node = node
        self.profile = _with_uuids(profile, node)
        for part in ("hook/vgpu", "cards", "roots", "logs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self.profile_file.write_text(yaml.safe_dump(msgspec.to_builtins(self.profile)))

    @property
    def hook_path(self) -> Path:
        return self.folder / "hook"

    @property
    def cards(self) -> Path:
        return self.folder / "cards"

    @property
    def profile_file(self) -> Path:
        return self.folder / "profile.yaml"

    def install(self, toolkit: Toolkit, container_hook_path: str) -> None:
        """Puts the limiter, its preload file and the cards in place. Raises OSError.

        `container_hook_path`: what containers call the hook path (`--container-hook-path` of the device plugin).
        """
        vgpu = self.hook_path / "vgpu"
        shutil.copy2(toolkit.shim, vgpu / "libvgpu.so")
        (vgpu / "ld.so.preload").write_text(f"{container_hook_path}/vgpu/libvgpu.so\n")
        (self.cards / "cards.conf").write_text(_cards_text(self.profile))
        self.cards.chmod(0o777)


def _with_uuids(profile: Profile, node: str) -> Profile:
    """Cards with names, so that the driver in the containers and the plugin on the node speak of the same ones."""
    kinds, index = [], 0
    for kind in profile.cards:
        made = tuple(f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index + i}.{node}')}" for i in range(kind.count))
        kinds.append(msgspec.structs.replace(kind, uuids=kind.uuids + made[len(kind.uuids) :]))
        index += kind.count
    return msgspec.structs.replace(profile, cards=tuple(kinds))


def _cards_text(profile: Profile) -> str:
    lines = [f"driver {profile.driver_version or '580.65.06'}", "cuda 12040"]
    lines += [f"state {CARDS_FOLDER}/state", f"proc {MACHINE_PROC}"]
    for kind in profile.cards:
        memory = f"memory_mib={kind.memory_mib}" if kind.memory_mib else "memory_query=unsupported memory_mib=16384"
        name = kind.model.replace(" ", "_")
        lines += [f"card uuid={each} name={name} {memory}" for each in kind.uuids]
    return "\n".join(lines) + "\n"
