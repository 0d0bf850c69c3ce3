"""One look at all containers of the node: folders matched to pods, regions read (spec/node 6.2).

Runs on a thread; nothing that a container does to its folder makes it fail for the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami.core.allocation import ended_inits
from hami.core.objects import Pod
from hami.monitor import regions
from hami.monitor.feedback import Activity, Feedback, decide
from hami.monitor.promised import promised
from hami.shim.layout import RegionError, RegionState
from hami.vendors.nvidia.folders import CONTAINERS, parse_folder_name

_NO_REGION: Final = "none"


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """A container with a region, and what that says; before it first used its cards, what it was promised."""

    namespace: str
    pod: str
    container: str
    path: Path
    state: RegionState


@dataclass(frozen=True, slots=True)
class Look:
    """All containers at one moment."""

    uses: tuple[ContainerUse, ...] = ()
    strangers: frozenset[str] = frozenset()
    """Folders whose pod is not known."""
    problems: tuple[tuple[str, str], ...] = ()
    """Folder or file, and why it could not be read."""


def look(vgpu_dir: Path, pods: Mapping[str, Pod]) -> Look:
    """Reads every region of a known pod that has not ended. Raises OSError where their folder cannot be listed.

    A pod that has ended may stay in the API for days: it has no share any more, hence no limit and no use of one. The
    same holds for an init container that has done its work: the pod's later containers have its share.
    """
    uses: list[ContainerUse] = []
    strangers: set[str] = set()
    problems: list[tuple[str, str]] = []
    for name in _folders(vgpu_dir):
        key = parse_folder_name(name)
        if key is None:
            problems.append((name, "the name is not <podUID>_<containerName>"))
        elif key.pod_uid not in pods:
            strangers.add(name)
        elif not _has_ended(pods[key.pod_uid], key.container):
            try:
                uses.extend(_use(vgpu_dir, name, pods[key.pod_uid], key.container))
            except (RegionError, OSError) as error:
                problems.append((name, str(error)))
    return Look(tuple(uses), frozenset(strangers), tuple(problems))


def _has_ended(pod: Pod, container: str) -> bool:
    return pod.finished or container in ended_inits(pod)


def _folders(vgpu_dir: Path) -> list[str]:
    """Names in order. The folder is missing until the plugin's first Allocate."""
    try:
        with os.scandir(vgpu_dir / CONTAINERS) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _use(vgpu_dir: Path, folder: str, pod: Pod, container: str) -> Iterator[ContainerUse]:
    path = regions.region_path(vgpu_dir, folder)
    state = regions.read(path) if path is not None else promised(regions.limits_of(vgpu_dir, folder))
    if state is not None:
        home = vgpu_dir / CONTAINERS / folder
        yield ContainerUse(pod.metadata.namespace, pod.metadata.name, container, path or home / _NO_REGION, state)


def give_feedback(uses: Iterable[ContainerUse], now_s: float) -> tuple[tuple[str, str], ...]:
    """One tick of the feedback; returns what could not be written."""
    known = list(uses)
    problems = []
    for use, feedback in zip(known, decide([_activity(use.state) for use in known], now_s), strict=True):
        try:
            regions.write(use.path, use.state, feedback)
        except RegionError as error:
            problems.append((use.path.parent.name, str(error)))
    return tuple(problems)


def release(uses: Iterable[ContainerUse]) -> None:
    """Lets waiting containers go on: nobody would do it once the monitor has ended (design 4, promise 10)."""
    for use in uses:
        if use.state.recent_kernel < 0:
            # What cannot be written belongs to a container that will notice by itself, or is gone.
            with contextlib.suppress(RegionError):
                regions.write(use.path, use.state, Feedback(0, use.state.utilization_switch))


def _activity(state: RegionState) -> Activity:
    # Samples of upstream's library outlive its killed processes: they would count as busy for ever.
    busy = state.ours and any(card.sm_percent for process in state.processes for card in process.cards)
    return Activity(
        cards=frozenset(card.uuid for card in state.cards),
        priority=state.priority,
        recent_kernel=state.recent_kernel,
        last_kernel_time_s=state.last_kernel_time_s,
        sm_busy=busy,
    )
