"""Folders of the in-container library and of the containers under it (spec/node 2.10, 6.2).

- `<hook path>/vgpu/containers/<podUID>_<containerName>/<random>.cache`: the shared region, written by the container
- `<hook path>/vgpu/limits/<podUID>_<containerName>`: its limits, read-only inside it
"""

from __future__ import annotations

from typing import Final, NamedTuple

HOOK_PATH: Final = "/usr/local"
"""The hook path where nobody says another."""
VGPU: Final = "vgpu"
CONTAINERS: Final = "containers"
LIMITS: Final = "limits"
REGION_SUFFIX: Final = ".cache"
LOCK_DIR: Final = "/tmp/vgpulock"  # noqa: S108 - fixed by the in-container library
"""The lock that all containers of a node share: its folder in containers, and on hosts where nobody says another."""


class ContainerKey(NamedTuple):
    """Which container of which pod."""

    pod_uid: str
    container: str


def folder_name(pod_uid: str, container: str) -> str:
    """`<podUID>_<containerName>`. Raises ValueError for what is no name of a file."""
    name = f"{pod_uid}_{container}"
    if "/" in name or not pod_uid or not container:
        raise ValueError(f"{name!r} is no name of a container's folder")
    return name


def parse_folder_name(name: str) -> ContainerKey | None:
    """The container of a folder, split at the first underscore; None if the name has not both parts."""
    pod_uid, _, container = name.partition("_")
    return ContainerKey(pod_uid, container) if pod_uid and container else None
