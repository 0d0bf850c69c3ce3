"""The tour's containers: real processes under the limiter where this machine can have them, and what they found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from hami.core import allocation
from hami.core.device_type import Registry
from hami.core.objects import Pod
from hami.sim.containers import toolkit
from hami.sim.containers.runner import GuestReport, ProcessRunner
from hami.sim.containers.toolkit import ContainersUnavailableError, Toolkit

REPORT_LIMIT_S: Final = 60.0
"""How long a container may take to fill its share."""
OUT_OF_MEMORY: Final = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""


class Kind(msgspec.Struct, frozen=True):
    """Whether containers are real; `toolkit` is None where they are simulated, and `why` says the reason."""

    toolkit: Toolkit | None
    why: str = ""


class Found(msgspec.Struct, frozen=True):
    """What one container found on the cards of its shares, against what the pod asked for."""

    pod: str
    container: str
    share_mib: tuple[int, ...]
    limit_mib: tuple[int, ...]
    """What cuMemGetInfo called the total."""
    taken_mib: tuple[int, ...]
    refused: bool
    """The step beyond was out of memory, on every card."""
    problems: tuple[str, ...] = ()


async def choose(wanted: str, cache: Path, say: Callable[[str], None]) -> Kind:
    """`wanted`: auto or simulated. Builds into `cache` what is missing there; `say` is told of each long step."""
    if wanted == "simulated":
        return Kind(None, "asked for by --containers")
    try:
        return Kind(await asyncio.to_thread(toolkit.prepare, cache, say))
    except ContainersUnavailableError as error:
        return Kind(None, str(error))


async def look(pods: Iterable[Pod], runners: Mapping[str, ProcessRunner], registry: Registry) -> list[Found]:
    """Asks the containers of running pods that hold shares, once they have taken all they could."""
    deadline = time.monotonic() + REPORT_LIMIT_S
    found = []
    for pod in sorted(pods, key=lambda pod: pod.key):
        runner = runners.get(pod.spec.node_name)
        if runner is None or pod.status.phase != "Running":
            continue
        for name, shares in _shares(pod, registry).items():
            report = await _settled(runner, pod.metadata.uid, name, deadline)
            found.append(_found(pod.metadata.name, name, shares, report))
    return found


def sentence(kind: Kind, found: Iterable[Found]) -> str:
    """One line on what the containers showed."""
    if kind.toolkit is None:
        return f"containers are simulated: {kind.why}"
    named = [one for one in found if not one.problems]
    text = "containers are real processes under the limiter over a stand-in driver"
    if not named:
        return text
    first = next((one for one in named if one.pod == "share-one"), named[0])
    rest = f", and {len(named) - 1} others beyond theirs" if len(named) > 1 else ""
    return f"{text}: {first.pod} was refused beyond {first.share_mib[0]} MiB{rest}"


def _shares(pod: Pod, registry: Registry) -> dict[str, tuple[int, ...]]:
    """MiB of each share, by container, in the order of its cards."""
    kinds = pod.containers
    shares: dict[str, tuple[int, ...]] = {}
    for containers in allocation.read_allocation(pod.annotations, registry, f"pod {pod.key}").values():
        for container, held in zip(kinds, containers, strict=False):
            if held:
                shares[container.name] = tuple(share.memory_mib for share in held)
    return shares


async def _settled(runner: ProcessRunner, uid: str, container: str, deadline: float) -> GuestReport:
    while True:
        report = runner.report(uid, container)
        if report.holding or time.monotonic() > deadline:
            return report
        await asyncio.sleep(0.05)


def _found(pod: str, container: str, shares: tuple[int, ...], report: GuestReport) -> Found:
    limits = tuple(card.limit_mib for card in report.cards)
    taken = tuple(card.taken_mib for card in report.cards)
    refused = bool(report.cards) and all(card.refusal == OUT_OF_MEMORY for card in report.cards)
    problems = []
    if not report.holding:
        problems.append(f"{pod}/{container} did not fill its share: {report.raw.strip() or 'it said nothing'}")
    elif taken != shares or not refused:
        problems.append(f"{pod}/{container} got {taken} MiB of its {shares} MiB (refused beyond: {refused})")
    return Found(pod, container, shares, limits, taken, refused, tuple(problems))
