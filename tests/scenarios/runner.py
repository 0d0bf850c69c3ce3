"""Runs scenarios in a world, many at a time, and compares what came out of two worlds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tests.cluster.processes import NotReadyError
from tests.scenarios.api import ApiError, Watcher
from tests.scenarios.model import Expect, NewPod, Scenario, Step
from tests.scenarios.outcome import PLACED, REFUSED_BY_ALL, SCHEDULED, Outcome, mismatches, observe, refusal
from tests.scenarios.stage import Stage
from tests.scenarios.worlds import REAL, WORLDS, World

AT_ONCE = 12
LOOK_AGAIN_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One scenario in one world."""

    scenario: Scenario
    problems: tuple[str, ...]
    outcomes: Mapping[str, Outcome]
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A set of scenarios in one world."""

    world: str
    results: Mapping[str, Result]
    seconds: float

    @property
    def failed(self) -> list[Result]:
        """Scenarios that did not come out as they say."""
        return [result for result in self.results.values() if result.problems]


class _Play:
    """One scenario from its first object to the last check."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._scenario = stage, stage.scenario
        self._news = False
        """Whether something was done since that schedulers may not have seen yet."""

    async def run(self) -> tuple[list[str], dict[str, Outcome]]:
        """Problems of the first step that failed, or of the state out; and the outcomes."""
        with self._stage.listening():
            try:
                await self._stage.build()
                for number, step in enumerate(self._scenario.steps, 1):
                    problems = await self._step(step)
                    if problems:
                        return [f"step {number}: {problem}" for problem in problems], {}
                expected = dict(self._scenario.out)
                if self._stage.world.name == REAL and self._scenario.differs is not None:
                    expected |= self._scenario.differs.real
                problems = await self._settle(expected)
                return problems, {name: self._outcome(name) for name in expected}
            finally:
                await self._stage.clear()

    async def _step(self, step: Step) -> list[str]:
        stage = self._stage
        if self._news and (step.create is not None or step.replace is not None):
            await stage.all_have_seen()
        self._news = step.create is None
        if step.expect is not None:
            return await self._settle(step.expect)
        if step.create is not None:
            await stage.create(step.create)
        elif step.replace is not None:
            await stage.replace(step.replace)
        elif step.delete:
            await stage.delete(step.delete)
        elif step.terminate:
            await stage.delete(step.terminate, 3600)
        elif step.finish is not None:
            await stage.set_status(step.finish.pod, {"phase": step.finish.phase})
        elif step.init_done:
            await stage.init_done(step.init_done)
        else:
            await self._change_cluster(step)
        return []

    async def _change_cluster(self, step: Step) -> None:
        stage = self._stage
        if step.annotate is not None:
            await stage.annotate_node(step.annotate.node, step.annotate.annotations)
        elif step.register is not None:
            await stage.register(step.register.node, step.register.cards)
        elif step.unschedulable or step.schedulable:
            await stage.set_unschedulable(step.unschedulable or step.schedulable, bool(step.unschedulable))
        elif step.quota:
            await stage.set_quota(step.quota)
        elif step.remove_node:
            await stage.remove_node(step.remove_node)
        elif step.add_node:
            await stage.add_node(step.add_node)
        elif step.extender == "kill":
            await stage.world.kill_extender()
        elif step.extender == "start":
            await stage.world.start_extender()
        elif step.failure_policy:
            await stage.set_failure_policy(step.failure_policy)

    async def _settle(self, expected: Mapping[str, Expect]) -> list[str]:
        """Wait until everything is as expected; what is not at the time limit is returned."""
        stage = self._stage
        deadline = time.monotonic() + self._scenario.limit_s
        while True:
            stage.bell.clear()
            await stage.act()
            problems = [f"{name}: {one}" for name, expect in expected.items() for one in self._look(name, expect)]
            if not problems or time.monotonic() > deadline:
                return problems
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await stage.bell.wait()

    def _look(self, name: str, expect: Expect) -> list[str]:
        if expect.copies:
            found = self._copies(name)
            return [f"copies are {found}, expected {expect.copies}"] if found != expect.copies else []
        problems = mismatches(expect, self._outcome(name), self._stage.names, self._ordinary(name, expect))
        pod = self._stage.pods().get(name)
        return problems + (self._details(expect, pod) if pod is not None else [])

    def _copies(self, name: str) -> dict[str, int]:
        outcomes = [self._outcome(copy) for copy, pod in self._stage.made.items() if pod.name == name and copy != name]
        counts = Counter("bound" if one.node else "waiting" for one in outcomes if one.node or one.scheduled)
        return dict(counts)

    def _details(self, expect: Expect, pod: Mapping[str, Any]) -> list[str]:
        names, problems = self._stage.names, []
        annotations = pod["metadata"].get("annotations") or {}
        for key, wanted in expect.annotations.items():
            found = annotations.get(key)
            if found != (None if wanted is None else names.fill(wanted)):
                problems.append(f"annotation {key} is {found!r}, expected {wanted!r}")
        for one in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            wanted_env = expect.environment.get(one["name"], {})
            env = {variable["name"]: variable.get("value", "") for variable in one.get("env") or []}
            problems += [
                f"container {one['name']} has {key}={env.get(key)!r}, expected {value!r}"
                for key, value in wanted_env.items()
                if env.get(key) != value
            ]
        return problems

    def _outcome(self, name: str) -> Outcome:
        stage = self._stage
        if name in stage.refusals:
            return refusal(stage.refusals[name], stage.names)
        copies = [copy for copy, pod in stage.made.items() if pod.name == name and copy != name]
        if copies:
            nodes = Counter(self._outcome(copy).node for copy in copies)
            return Outcome(node=", ".join(f"{count} on {node or 'none'}" for node, count in sorted(nodes.items())))
        pod = stage.pods().get(name)
        return Outcome(gone=True) if pod is None else observe(pod, stage.events(), stage.names)

    def _ordinary(self, name: str, expect: Expect) -> list[str] | None:
        """Events that such a pod has where nothing surprising happens; None for a pod that nobody placed."""
        made = self._stage.made.get(name)
        if made is None or made.node_name:
            return None
        if not expect.node:
            return REFUSED_BY_ALL if _asks_for_cards(made) else REFUSED_BY_ALL[:1]
        placed = PLACED if _asks_for_cards(made) else [SCHEDULED]
        if expect.waited:
            placed = [*placed, *(self._ordinary(name, Expect(waits=[])) or ())]
        return [*placed, "Started"] if self._scenario.nodes[expect.node].plugin else placed


def _asks_for_cards(pod: NewPod) -> bool:
    return any(
        key != "cpu" and "/" not in key
        for part in (pod.containers, pod.init, pod.sidecars)
        for limits in part
        for key in limits
    )


async def _one(world: World, scenario: Scenario, watchers: tuple[Watcher, Watcher]) -> Result:
    began = time.monotonic()
    stage = Stage(world, scenario, *watchers)
    try:
        problems, outcomes = await _Play(stage).run()
    except (ApiError, NotReadyError, TimeoutError, aiohttp.ClientError) as error:
        problems, outcomes = [f"{type(error).__name__}: {error}"], {}
    return Result(scenario, tuple(problems), outcomes, time.monotonic() - began)


async def play(world: World, scenarios: Sequence[Scenario]) -> list[Result]:
    """Run them: first those that may share the cluster, then one by one those that may not."""
    watchers = Watcher(world.api, "/api/v1/pods"), Watcher(world.api, "/api/v1/events")
    tasks = [asyncio.create_task(watcher.run()) for watcher in watchers]
    limit = asyncio.Semaphore(AT_ONCE)
    lanes = {profile: asyncio.Lock() for profile in world.plugin_nodes}

    async def turn(scenario: Scenario) -> Result:
        async with contextlib.AsyncExitStack() as held:
            for profile in sorted({node.plugin for node in scenario.nodes.values() if node.plugin}):
                await held.enter_async_context(lanes[profile])
            async with limit:
                return await _one(world, scenario, watchers)

    try:
        for watcher in watchers:
            await watcher.synced.wait()
        results = await asyncio.gather(*(turn(scenario) for scenario in scenarios if not scenario.alone))
        for scenario in scenarios:
            if scenario.alone:
                results.append(await _one(world, scenario, watchers))
                await _recover(world, scenario)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results


async def _recover(world: World, scenario: Scenario) -> None:
    """The next scenario finds webhook and extender as they were, whatever went wrong in this one."""
    if not world.extender.alive:
        await world.start_extender()
    if any(step.failure_policy for step in scenario.steps):
        await world.set_failure_policy("Fail")


def run(world_name: str, scenarios: Sequence[Scenario], folder: Path) -> Report:
    """Start the world, run the scenarios in it, end it."""

    async def all_of_it() -> list[Result]:
        profiles = sorted({node.plugin for one in scenarios for node in one.nodes.values() if node.plugin})
        async with WORLDS[world_name](folder, profiles) as world:
            return await play(world, scenarios)

    began = time.monotonic()
    results = asyncio.run(all_of_it())
    return Report(world_name, {result.scenario.name: result for result in results}, time.monotonic() - began)


def differences(first: Report, second: Report) -> dict[str, list[str]]:
    """Scenario → how the worlds differ without a written reason, and reasons that are written for no difference."""
    found: dict[str, list[str]] = {}
    for name, mine in first.results.items():
        theirs = second.results.get(name)
        if theirs is None or mine.problems or theirs.problems:
            continue
        unlike = unlike_outcomes(mine, theirs)
        if idle := _idle_reasons(mine, theirs):
            unlike.append(f"the worlds are said to differ for {', '.join(idle)}, but do not")
        if unlike:
            found[name] = unlike
    return found


def _idle_reasons(mine: Result, theirs: Result) -> list[str]:
    """Pods that are said to end otherwise on the real control plane, and do not."""
    differs = mine.scenario.differs
    return [pod for pod in (differs.real if differs else ()) if mine.outcomes.get(pod) == theirs.outcomes.get(pod)]


def unlike_outcomes(mine: Result, theirs: Result) -> list[str]:
    """Fields in which two results of one scenario are not alike; those that it calls loose are left out."""
    differs = mine.scenario.differs
    loose = tuple(differs.loose) if differs else ()
    return [
        f"{pod}: {words}"
        for pod, outcome in mine.outcomes.items()
        if not (differs and pod in differs.real)
        for words in outcome.differences(theirs.outcomes[pod], loose)
    ]
