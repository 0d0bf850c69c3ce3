"""`hami demo`: sets the stage, walks the tour, and says what happened."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from hami.core import keys
from hami.core.errors import ApiError, ConfigError
from hami.core.objects import Node, Pod
from hami.ctl.console import json_text
from hami.ctl.demo import containers, guests, report
from hami.ctl.demo.containers import Kind
from hami.ctl.demo.report import PodReport
from hami.ctl.demo.show import Screen
from hami.ctl.demo.stage import NVIDIA, Stage
from hami.ctl.demo.tour import PROFILES, TOUR, Ending, Stop
from hami.sim import profiles as hardware

POD_LIMIT_S: Final = 60.0
"""How long one pod may take to reach its ending."""
GUEST_LIMIT_S: Final = 5.0
"""How long a stranger's pod may stay undecided before the table is printed all the same."""
STORIES_LIMIT_S: Final = 30.0
"""How long the scheduler's events may take after the last pod's ending: it collects them (`hami.kube.events`)."""
LAST_WORDS: Final = {Ending.RUNNING: keys.EVENT_BINDING_SUCCEED, Ending.PENDING: keys.EVENT_FILTERING_FAILED}
"""The scheduler's last event on a pod that ended so."""


class Outcome(msgspec.Struct, frozen=True):
    """How one pod ended, against what the tour says."""

    stop: Stop
    ending: Ending
    pod: PodReport
    problems: tuple[str, ...] = ()


class Options(msgspec.Struct, frozen=True):
    """How the tour is told, whether it stays, and what its containers are (`auto` or `simulated`)."""

    as_json: bool
    serve: bool
    containers: str
    cache: Path


def run(profiles: Sequence[str], pods_file: Path | None, options: Options) -> int:
    """Exit status: 0 if every pod ended as the tour says. Raises HamiError when the stage cannot be set.

    `profiles` gives one node each; `pods_file` holds a stranger's pods, which take the place of the tour's.
    """
    if not profiles:
        raise ConfigError("--profiles: at least one hardware profile is needed")
    for name in profiles:
        hardware.load(name)
    if pods_file is None and tuple(profiles) != PROFILES:
        raise ConfigError(f"--profiles: the tour needs {','.join(PROFILES)}; give --pods FILE with other hardware")
    tour = TOUR if pods_file is None else guests.read(pods_file)
    try:
        return asyncio.run(_until_told(_demo(tour, profiles, options, own=pods_file is not None)))
    except KeyboardInterrupt:
        return 130


async def _until_told(work: Coroutine[Any, Any, int]) -> int:
    """Runs `work`; Ctrl-C, SIGTERM and a closed terminal end it once: an impatient second one leaves nothing behind."""
    told: list[int] = []
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end(number: int) -> None:
        if not told:
            task.cancel()
        told.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, end, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not told:
            raise
        return 128 + told[0]


async def _demo(tour: Sequence[Stop], profiles: Sequence[str], options: Options, *, own: bool) -> int:
    screen = Screen(progress_to_stderr=options.as_json)
    kind = await containers.choose(options.containers, options.cache, screen.step)
    started = time.monotonic()
    screen.step(f"starting an embedded cluster with {len(profiles)} nodes: {', '.join(profiles)}")
    async with Stage(profiles, kind.toolkit) as stage:
        screen.step("webhook, extender and device plugins are real processes:", time.monotonic() - started)
        for process in stage.processes:
            where = f"  {stage.scheduler_url}" if process.name == "scheduler" else ""
            screen.step(f"  {process.name:<26} pid {process.pid}{where}")
        screen.step(f"API server stand-in at {stage.api_url}; no GPU is used")
        outcomes = [await _walk(stage, screen, stop, guest=own) for stop in tour]
        outcomes = await _with_stories(stage, outcomes)
        nodes = await _nodes(stage)
        found = await containers.look(await _pods(stage), stage.runners, (NVIDIA,))
        ok = not any(outcome.problems for outcome in outcomes) and not any(one.problems for one in found)
        screen.step(containers.sentence(kind, found))
        for problem in (problem for one in found for problem in one.problems):
            screen.problem(problem)
        if options.as_json:
            said = Said(kind, tuple(found))
            print(_json(stage, nodes, outcomes, said, ok, time.monotonic() - started))
        else:
            _show(screen, nodes, outcomes, own=own)
            screen.step(_verdict(outcomes, ok, own=own), time.monotonic() - started)
        if options.serve:
            await _serve(screen, stage)
    return 0 if ok else 1


def _verdict(outcomes: Sequence[Outcome], ok: bool, *, own: bool) -> str:
    if not own:
        return "every pod ended as the tour says" if ok else "NOT as the tour says"
    ends = [outcome.ending for outcome in outcomes]
    return ", ".join(f"{ends.count(ending)} {ending.lower()}" for ending in Ending if ending in ends)


async def _walk(stage: Stage, screen: Screen, stop: Stop, *, guest: bool) -> Outcome:
    outcome = await _meet(stage, stop, guest=guest)
    screen.pod(stop.name, stop.shows, outcome.ending, outcome.pod.node, not outcome.problems)
    if outcome.ending is Ending.REFUSED:
        screen.step(f"    {outcome.pod.message}")
    for problem in outcome.problems:
        screen.problem(problem)
    return outcome


async def _meet(stage: Stage, stop: Stop, *, guest: bool) -> Outcome:
    """Creates the pod and waits for its ending."""
    namespace = stop.manifest["metadata"]["namespace"]
    try:
        await _ensure_namespace(stage, namespace)
        created = await stage.post(f"/api/v1/namespaces/{namespace}/pods", stop.manifest)
    except ApiError as error:
        refused = PodReport(stop.name, "", "", (), error.message, ())
        return Outcome(stop, Ending.REFUSED, refused, () if guest else _compare(stop, Ending.REFUSED, refused))
    deadline = time.monotonic() + (GUEST_LIMIT_S if guest else POD_LIMIT_S)
    while True:
        seen = await _look(stage, namespace, created["metadata"]["name"])
        ending = Ending.RUNNING if seen.phase in ("Running", "Succeeded") else Ending.PENDING
        problems = () if guest else _compare(stop, ending, seen)
        settled = ending is Ending.RUNNING or any(event.reason == "FailedScheduling" for event in seen.events)
        if (settled and not problems) or time.monotonic() > deadline:
            return Outcome(stop, ending, seen, problems)
        await asyncio.sleep(0.05)


async def _with_stories(stage: Stage, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same endings, with the events that came after them."""
    deadline = time.monotonic() + STORIES_LIMIT_S
    while True:
        told = [await _retold(stage, outcome) for outcome in outcomes]
        if all(_story_ended(outcome) for outcome in told) or time.monotonic() > deadline:
            return told
        await asyncio.sleep(0.05)


async def _retold(stage: Stage, outcome: Outcome) -> Outcome:
    if outcome.ending is Ending.REFUSED:
        return outcome
    pod = await _look(stage, outcome.stop.manifest["metadata"]["namespace"], outcome.pod.name)
    return msgspec.structs.replace(outcome, pod=pod)


def _story_ended(outcome: Outcome) -> bool:
    """A pod that runs without cards has no event of ours."""
    if outcome.ending is Ending.REFUSED or (outcome.ending is Ending.RUNNING and not outcome.pod.cards):
        return True
    return any(event.reason == LAST_WORDS[outcome.ending] for event in outcome.pod.events)


def _compare(stop: Stop, ending: Ending, pod: PodReport) -> tuple[str, ...]:
    """What is not as the tour says."""
    problems = []
    if ending is not stop.ending:
        problems.append(f"expected {stop.ending}, found {ending}: {pod.message or pod.phase}")
    told = " ".join([pod.message, *(event.message for event in pod.events)])
    problems += [f"expected the word {word} in: {told}" for word in stop.words if word not in told]
    if stop.cards is not None and len(pod.cards) != stop.cards:
        problems.append(f"expected {stop.cards} cards, found {len(pod.cards)}")
    if pod.cards and stop.memory_mib is not None and pod.cards[0][1] != stop.memory_mib:
        problems.append(f"expected {stop.memory_mib} MiB, found {pod.cards[0][1]}")
    if pod.cards and stop.core_percent is not None and pod.cards[0][2] != stop.core_percent:
        problems.append(f"expected {stop.core_percent} % cores, found {pod.cards[0][2]}")
    return tuple(problems)


async def _ensure_namespace(stage: Stage, name: str) -> None:
    try:
        await stage.get(f"/api/v1/namespaces/{name}")
    except ApiError as error:
        if error.status != 404:
            raise
        await stage.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def _look(stage: Stage, namespace: str, name: str) -> PodReport:
    path = f"/api/v1/namespaces/{namespace}"
    pod = msgspec.convert(await stage.get(f"{path}/pods/{name}"), Pod)
    events = (await stage.get(f"{path}/events"))["items"]
    return report.pod_report(pod, events, (NVIDIA,))


async def _nodes(stage: Stage) -> list[report.NodeReport]:
    nodes = msgspec.convert((await stage.get("/api/v1/nodes"))["items"], list[Node])
    return report.nodes_report(nodes, await _pods(stage), (NVIDIA,))


async def _pods(stage: Stage) -> list[Pod]:
    return msgspec.convert((await stage.get("/api/v1/pods"))["items"], list[Pod])


def _show(screen: Screen, nodes: list[report.NodeReport], outcomes: Sequence[Outcome], *, own: bool) -> None:
    screen.cards(nodes)
    shared = next((outcome for outcome in outcomes if outcome.ending is Ending.RUNNING and outcome.pod.cards), None)
    waiting = next((outcome for outcome in outcomes if outcome.ending is Ending.PENDING), None)
    told = outcomes if own else [outcome for outcome in (shared, waiting) if outcome is not None]
    for outcome in told:
        if outcome.ending is not Ending.REFUSED:  # no object, no events: its refusal is printed already
            screen.story(outcome.pod)


class Said(msgspec.Struct, frozen=True):
    """What the containers are, and what they said."""

    kind: Kind
    found: tuple[containers.Found, ...]

    def document(self) -> dict[str, Any]:
        """The field `containers` of `--json`."""
        kit = self.kind.toolkit
        return {
            "real": kit is not None,
            "isolation": kit.isolation if kit else "",
            "why_simulated": self.kind.why,
            "sentence": containers.sentence(self.kind, self.found),
            "found": msgspec.to_builtins(self.found),
        }


def _json(
    stage: Stage, nodes: list[report.NodeReport], outcomes: Sequence[Outcome], said: Said, ok: bool, seconds: float
) -> str:
    pods = [
        {
            "name": outcome.pod.name,
            "shows": outcome.stop.shows,
            "ending": outcome.ending.value,
            "phase": outcome.pod.phase,
            "node": outcome.pod.node,
            "cards": [
                {"id": card, "memory_mib": memory, "core_percent": cores} for card, memory, cores in outcome.pod.cards
            ],
            "message": outcome.pod.message,
            "events": msgspec.to_builtins(outcome.pod.events),
            "problems": list(outcome.problems),
        }
        for outcome in outcomes
    ]
    processes = [{"name": process.name, "pid": process.pid} for process in stage.processes]
    document = {
        "ok": ok,
        "seconds": round(seconds, 2),
        "processes": processes,
        "containers": said.document(),
        "nodes": msgspec.to_builtins(nodes),
        "pods": pods,
    }
    return json_text(document)


async def _serve(screen: Screen, stage: Stage) -> None:
    """Stays up until Ctrl-C; says so when one of our processes ends, and how to start it again."""
    kubectl = shutil.which("kubectl") or "kubectl"
    screen.step(f"still up. Try: {Path(kubectl).name} --kubeconfig {stage.kubeconfig} get pods -o wide")
    screen.step(f"logs are in {stage.logs}; Ctrl-C ends everything")
    mourned: set[str] = set()
    while True:
        for process in stage.processes:
            if process.ended is not None and process.name not in mourned:
                mourned.add(process.name)
                screen.problem(f"{process.name} (pid {process.pid}) ended with {process.ended}. Start it again with:")
                screen.step(f"  {process.shown_command}")
        sys.stdout.flush()
        await asyncio.sleep(0.2)
