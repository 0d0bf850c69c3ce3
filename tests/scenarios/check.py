"""The consistency checker: refuses scenarios that no cluster could be in, or that check nothing.

Source: spec/style.md 1.10, habit 19.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.scenarios.model import FAILED, PENDING, RUNNING, SUCCEEDED, Expect, NewPod, Node, Present, Scenario, Step

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
PLACEHOLDER = re.compile(r"\{([a-z0-9-]+)(?:/(\d+)(?:/(\d+))?)?\}")
PHASES = (PENDING, RUNNING, SUCCEEDED, FAILED)
MOST_NAME_CHARS = 40
LEAST_WHY_CHARS = 20


def problems(scenarios: Sequence[Scenario]) -> list[str]:
    """Everything that is wrong with the set, each with the scenario's name; empty when it may run."""
    names = Counter(scenario.name for scenario in scenarios)
    found = [f"{name}: {count} scenarios have this name" for name, count in names.items() if count > 1]
    for scenario in scenarios:
        found += [f"{scenario.name}: {problem}" for problem in _Checker(scenario).all()]
    return found


class _Checker:
    """Looks at one scenario and follows what exists from step to step."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._pods = set(scenario.pods)
        self._ever = set(scenario.pods)
        self._refusable: set[str] = set()
        self._running = {name for name, pod in scenario.pods.items() if pod.phase == RUNNING}
        self._extender_up = True

    def all(self) -> Iterator[str]:
        scenario = self._scenario
        if not NAME.fullmatch(scenario.name) or len(scenario.name) > MOST_NAME_CHARS:
            yield f"the name must be lower case with hyphens, at most {MOST_NAME_CHARS} characters"
        if not scenario.source.strip():
            yield "source is empty: say where the rule is written"
        for name, node in scenario.nodes.items():
            yield from (f"node {name}: {problem}" for problem in _node(name, node))
        for name, pod in scenario.pods.items():
            yield from (f"pod {name}: {problem}" for problem in self._present(name, pod))
        yield from self._overfull()
        for number, step in enumerate(scenario.steps, 1):
            yield from (f"step {number}: {problem}" for problem in self._step(step))
        if not self._extender_up:
            yield "the extender is down at the end: start it again"
        if not scenario.out:
            yield "out is empty: nothing would be checked"
        yield from (f"out: {problem}" for problem in self._expects(scenario.out))
        yield from self._placeholders()
        yield from self._differs()

    def _present(self, name: str, pod: Present) -> Iterator[str]:
        if not NAME.fullmatch(name):
            yield "not a legal name"
        if pod.phase not in PHASES:
            yield f"phase {pod.phase} is none of {', '.join(PHASES)}"
        if pod.node and pod.node not in self._scenario.nodes:
            yield f"is on node {pod.node}, which is not in the scenario"
        if pod.phase == RUNNING and not pod.node:
            yield "runs without a node"
        if pod.terminating and not pod.node:
            yield "terminates without a node: it would be gone at once"
        if pod.shares is not None and pod.allocated:
            yield "has both shares and allocated: one would be ignored"
        if pod.init and pod.shares is not None and pod.init >= len(pod.shares):
            yield "has no app container beside its init containers"
        if pod.shares and any(pod.shares):
            yield from self._shares_exist(pod.node, [share.card for part in pod.shares for share in part])

    def _shares_exist(self, node_name: str, cards: Sequence[int]) -> Iterator[str]:
        node = self._scenario.nodes.get(node_name)
        if node is None:
            yield "holds shares without a node"
        elif node.plugin:
            return
        else:
            missing = sorted({card for card in cards if card >= len(node.cards)})
            for card in missing:
                yield f"holds card {card} of node {node_name}, which registers {len(node.cards)}"

    def _overfull(self) -> Iterator[str]:
        """Cards on which the given pods already hold more than there is."""
        memory: Counter[tuple[str, int]] = Counter()
        slots: Counter[tuple[str, int]] = Counter()
        cores: Counter[tuple[str, int]] = Counter()
        for pod in self._scenario.pods.values():
            if pod.phase in (SUCCEEDED, FAILED):
                continue
            for part in (pod.shares or [])[pod.init :]:
                for share in part:
                    place = (pod.node, share.card)
                    memory[place] += share.memory
                    cores[place] += share.cores
                    slots[place] += 1
        for (name, index), used in memory.items():
            node = self._scenario.nodes.get(name)
            if node is None or index >= len(node.cards):
                continue
            card = node.cards[index]
            over = used > card.memory or slots[name, index] > card.slots or cores[name, index] > card.cores
            if over:
                yield f"card {index} of node {name} is held beyond its size by the given pods"

    def _step(self, step: Step) -> Iterator[str]:
        given = [field for field in step.__struct_fields__ if getattr(step, field)]
        if len(given) != 1:
            yield f"must say exactly one thing, says {', '.join(given) or 'nothing'}"
            return
        for pod in (step.create, step.replace):
            if pod is not None:
                yield from self._new_pod(pod, replaces=pod is step.replace)
        yield from self._touches_pods(step)
        yield from self._touches_nodes(step)
        if step.extender:
            yield from self._extender(step.extender)
        if step.quota and not self._scenario.quota:
            yield "changes a quota that is not there"
        if step.failure_policy not in ("", "Ignore", "Fail"):
            yield f"failure_policy {step.failure_policy} is neither Ignore nor Fail"
        if (step.extender or step.failure_policy) and not self._scenario.alone:
            yield "touches what all scenarios share: set alone"
        if step.expect:
            yield from self._expects(step.expect)

    def _touches_pods(self, step: Step) -> Iterator[str]:
        for name in (step.delete, step.terminate, step.init_done, step.finish.pod if step.finish else ""):
            if name and name not in self._pods:
                yield f"pod {name} does not exist here"
        if step.finish and step.finish.phase not in (SUCCEEDED, FAILED):
            yield f"a pod cannot finish as {step.finish.phase}"
        if step.delete:
            self._pods.discard(step.delete)

    def _touches_nodes(self, step: Step) -> Iterator[str]:
        nodes = self._scenario.nodes
        annotated = step.annotate.node if step.annotate else ""
        registered = step.register.node if step.register else ""
        named = (step.unschedulable, step.schedulable, step.remove_node, step.add_node, annotated, registered)
        for name in named:
            if name and name not in nodes:
                yield f"node {name} is not in the scenario"
        if step.add_node in nodes and not nodes[step.add_node].later:
            yield f"node {step.add_node} is there from the start: mark it later"

    def _extender(self, what: str) -> Iterator[str]:
        wanted = {"kill": True, "start": False}.get(what)
        if wanted is None:
            yield f"extender: {what} is neither kill nor start"
        elif wanted is not self._extender_up:
            yield f"extender: cannot {what} it now"
        else:
            self._extender_up = not wanted

    def _new_pod(self, pod: NewPod, *, replaces: bool) -> Iterator[str]:
        if not NAME.fullmatch(pod.name):
            yield f"pod {pod.name} has no legal name"
        if replaces and pod.name not in self._pods:
            yield f"pod {pod.name} does not exist here, so it cannot be replaced"
        if not replaces and pod.name in self._pods - self._refusable:
            yield f"pod {pod.name} exists already"
        if pod.node_name and pod.node_name not in self._scenario.nodes:
            yield f"pod {pod.name} names node {pod.node_name}, which is not in the scenario"
        if not pod.containers:
            yield f"pod {pod.name} has no containers: the API server would refuse it, not we"
        if pod.copies < 0 or pod.copies == 1:
            yield f"pod {pod.name}: copies must be 2 or more"
        self._pods.add(pod.name)
        self._ever.add(pod.name)

    def _expects(self, expected: dict[str, Expect]) -> Iterator[str]:
        for name, expect in expected.items():
            if name not in self._ever:
                yield f"expects pod {name}, which is never made"
            if expect.refused:
                self._refusable.add(name)
            yield from (f"pod {name}: {problem}" for problem in self._expect(expect))

    def _expect(self, expect: Expect) -> Iterator[str]:
        outcomes = [bool(expect.refused), bool(expect.node), expect.waits is not None, expect.gone, bool(expect.copies)]
        if sum(outcomes) != 1:
            yield "must be exactly one of refused, node, waits, gone, copies"
        if expect.node and expect.node not in self._scenario.nodes:
            yield f"expects node {expect.node}, which is not in the scenario"
        if expect.shares is not None and not expect.node:
            yield "expects shares without a node"
        if expect.shares is not None and expect.node in self._scenario.nodes:
            yield from self._shares_exist(expect.node, [share.card for part in expect.shares for share in part])
        if expect.phase and expect.phase not in PHASES:
            yield f"phase {expect.phase} is none of {', '.join(PHASES)}"
        if set(expect.copies) - {"bound", "waiting"}:
            yield "copies are bound or waiting"

    def _placeholders(self) -> Iterator[str]:
        for name, card, instance in sorted(set(PLACEHOLDER.findall(_text(self._scenario)))):
            node = self._scenario.nodes.get(name)
            if node is None:
                yield f"{{{name}}} names no node of the scenario"
            elif card and not node.plugin and int(card) >= len(node.cards):
                yield f"{{{name}/{card}}}: the node registers {len(node.cards)} cards"
            elif instance and not node.plugin:
                yield f"{{{name}/{card}/{instance}}}: only a plugin makes instances"

    def _differs(self) -> Iterator[str]:
        differs = self._scenario.differs
        if differs is None:
            return
        if len(differs.why.strip()) < LEAST_WHY_CHARS:
            yield "differs without a reason that explains it"
        if not differs.real and not differs.loose:
            yield "differs says why but not what"
        yield from (f"differs: {problem}" for problem in self._expects(differs.real))


def _node(name: str, node: Node) -> Iterator[str]:
    if not NAME.fullmatch(name):
        yield "not a legal name"
    if node.form not in ("json", "csv9", "csv7"):
        yield f"form {node.form} is none of json, csv9, csv7"
    if node.plugin and (node.cards or node.register or node.later or not node.allocates):
        yield "has a plugin: its cards are those of the profile, and it is there from the start"
    if node.register and node.form != "json":
        yield "has a register text, so form says nothing"
    for card in node.cards:
        if min(card.memory, card.cores, card.slots) < 0:
            yield "registers a card of negative size"
        if (card.mode == "mig") != bool(card.mig):
            yield "a card has mode mig without profiles, or profiles without mode mig"


def _text(part: object) -> str:
    """All text of a scenario, for finding placeholders; notes of what differs are left out."""
    if isinstance(part, str):
        return part + "\n"
    if isinstance(part, dict):
        return "".join(_text(key) + _text(value) for key, value in part.items())
    if isinstance(part, (list, tuple)):
        return "".join(_text(item) for item in part)
    if hasattr(part, "__struct_fields__"):
        skipped = ("why", "source", "slices", "register")
        return "".join(_text(getattr(part, field)) for field in part.__struct_fields__ if field not in skipped)
    return ""
