"""Explain against `/filter` over random worlds: the same answer, and each change that it names makes the pod fit."""

from __future__ import annotations

import copy
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from hami.core.keys import DEVICE_CORDON
from hami.placement.changes import Change, ChangeKind
from hami.placement.explain import Explainer, Explanation
from tests.reference.model import Object
from tests.reference.subject import Subject, typed_pod, typed_quotas
from tests.reference.world_nodes import Size
from tests.reference.worlds import World, build

BLOCKS = 60 if os.environ.get("HAMI_SOAK") else 4
FULL = Size(nodes=3, cards=3, pods=14, asking=3)


async def subject_of(world: World) -> Subject:
    subject = await Subject.of(world)
    subject.placement.quotas.replace(typed_quotas(world.quotas))
    return subject


async def explained(world: World, pod: Object) -> Explanation:
    return Explainer((await subject_of(world)).placement).explain(typed_pod(pod))


def apply(world: World, pod: Object, change: Change) -> tuple[World, Object]:
    """The world and the pod after what the change tells a person to do."""
    world, pod = copy.deepcopy(world), copy.deepcopy(pod)
    match change.kind:
        case ChangeKind.MEMORY | ChangeKind.CORES | ChangeKind.CARDS:
            spec = pod["spec"]
            containers = [*spec.get("initContainers", ()), *spec["containers"]]
            resources = next(each for each in containers if each["name"] == change.container)["resources"]
            resources.setdefault("limits", {})[change.resource] = str(change.value)
        case ChangeKind.ANNOTATION:
            del pod["metadata"]["annotations"][change.annotation]
        case ChangeKind.UNCORDON:
            notes = next(node for node in world.nodes if node["metadata"]["name"] == change.card_node)["metadata"][
                "annotations"
            ]
            cards = [card.strip() for card in notes[DEVICE_CORDON].split(",")]
            notes[DEVICE_CORDON] = ",".join(card for card in cards if card != change.card)
        case ChangeKind.WAIT:
            held = [each["metadata"] for each in world.pods]
            world.drop(next(meta["uid"] for meta in held if f"{meta['namespace']}/{meta['name']}" == change.pod))
        case ChangeKind.QUOTA:
            for each in change.raises:
                for quota in world.quotas:
                    if quota["metadata"]["name"] == each.quota:
                        quota["spec"]["hard"][each.key] = str(each.new)
    return world, pod


@pytest.mark.parametrize("block", range(BLOCKS))
async def test_fits_exactly_if_filter_places_and_changes_help(block: int) -> None:
    kinds: Counter[ChangeKind] = Counter()
    wrong: list[str] = []
    for seed in range(block * 25, block * 25 + 25):
        world = build(Random(seed), FULL if seed % 2 else None)
        for pod in world.asking:
            found = await explained(world, pod)
            answer = (await subject_of(world)).decide(pod, world.names)
            if (found.node, found.passthrough) != (answer.node or "", answer.passthrough):
                wrong.append(f"{seed} {pod['metadata']['name']}: explain {found.node!r}, filter {answer.node!r}")
            texts = {each.name: each.text for each in found.nodes if each.text}
            if answer.node is None and texts != answer.failed:
                wrong.append(f"{seed} {pod['metadata']['name']}: explain {texts}, filter {answer.failed}")
            for change in found.changes:
                kinds[change.kind] += 1
                changed_world, changed_pod = apply(world, pod, change)
                placed = (await subject_of(changed_world)).decide(changed_pod, world.names)
                if placed.node is None:
                    wrong.append(f"{seed} {pod['metadata']['name']}: {change} does not help: {placed.failed}")
            world.hold(pod, world.decide(pod), bound=False)
    assert wrong == []
    assert sum(kinds.values()) > 15


async def test_pairs_help_where_no_single_change_does() -> None:
    """Both halves together make the pod fit, either alone does not; amounts could nearly never be larger."""
    kinds: Counter[ChangeKind] = Counter()
    larger: Counter[bool] = Counter()
    for seed in range(BLOCKS * 40):
        world = build(Random(seed), FULL)
        for pod in world.asking:
            found = await explained(world, pod)
            assert not (found.changes and found.pairs)
            for pair in found.pairs:
                kinds.update(change.kind for change in pair)
                assert await placed(world, pod, *pair), f"{seed} {pair}"
                for change in pair:
                    assert not await placed(world, pod, change), f"{seed} {change} alone"
                more = [msgspec.structs.replace(each, value=each.value + 1) if each.resource else each for each in pair]
                if more != list(pair):
                    larger[await placed(world, pod, *more)] += 1
    assert len(kinds) >= 5, kinds
    assert larger[True] * 4 <= larger[False], larger


async def test_more_than_two_changes_help_where_no_two_do() -> None:
    """All together make the pod fit, and none of them can be left out."""
    sizes: Counter[int] = Counter()
    kinds: Counter[ChangeKind] = Counter()
    for seed in range(BLOCKS * 30):
        world = build(Random(seed), FULL)
        for pod in world.asking:
            found = await explained(world, pod)
            changes = found.together
            if not changes:
                continue
            assert not found.changes
            assert not found.pairs
            sizes[len(changes)] += 1
            kinds.update(change.kind for change in changes)
            assert await placed(world, pod, *changes), f"{seed} {changes}"
            assert await useful(world, pod, changes) == changes, f"{seed} {changes}: one can be left out"
    assert min(sizes) == 3
    assert sizes[3] > 10
    assert max(sizes) > 4
    assert len(kinds) >= 5, kinds


async def useful(world: World, pod: Object, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Those without which the others do not help."""
    others = {each: [one for one in changes if one is not each] for each in changes}
    return tuple([each for each, rest in others.items() if not await placed(world, pod, *rest)])


async def test_where_no_change_is_named_none_helps() -> None:
    """Nothing else runs, no card is cordoned, no quota holds; then every choice of annotations and least amounts."""
    nothing = 0
    for seed in range(BLOCKS * 30):
        world = build(Random(seed), FULL)
        for pod in world.asking:
            found = await explained(world, pod)
            names = [node.name for node in found.nodes if node.report is not None]
            if found.fits or found.refusal or found.changes or found.pairs or found.together or not names:
                continue
            nothing += 1
            roomy = copy.deepcopy(world)
            roomy.pods, roomy.quotas = [], []
            for node in roomy.nodes:
                node["metadata"].setdefault("annotations", {}).pop(DEVICE_CORDON, None)
            for other in variants(pod):
                answer = (await subject_of(roomy)).decide(other, names)
                assert answer.node is None or answer.passthrough, f"{seed} {pod['metadata']['name']}: {other}"
    assert nothing > 10


def variants(pod: Object) -> Iterator[Object]:
    """The pod with some of its annotations, and with some of its amounts at the least that can be asked for."""
    notes = sorted(pod["metadata"].get("annotations", {}))[:4]
    least = {"nvidia.com/gpumem": "1", "nvidia.com/gpucores": "0", "nvidia.com/gpu": "1"}
    for dropped in subsets(notes):
        for lowered in subsets(list(least)):
            other = copy.deepcopy(pod)
            for key in dropped:
                del other["metadata"]["annotations"][key]
            for container in [*other["spec"].get("initContainers", ()), *other["spec"]["containers"]]:
                limits = container.get("resources", {}).get("limits", {})
                if "nvidia.com/gpu" in limits:
                    limits.update({key: least[key] for key in lowered})
            yield other


def subsets(items: list[str]) -> Iterator[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(items, size) for size in range(len(items) + 1))


async def placed(world: World, pod: Object, *changes: Change) -> bool:
    for change in changes:
        world, pod = apply(world, pod, change)
    return (await subject_of(world)).decide(pod, world.names).node is not None


async def test_amounts_are_the_largest_that_fit() -> None:
    """One more of what was lowered, and the pod does not fit (true where less never fits worse, so nearly always)."""
    larger: Counter[bool] = Counter()
    for seed in range(80):
        world = build(Random(seed), FULL)
        for pod in world.asking:
            for change in (await explained(world, pod)).changes:
                if change.kind in (ChangeKind.MEMORY, ChangeKind.CORES, ChangeKind.CARDS) and change.value:
                    more = msgspec.structs.replace(change, value=change.value + 1)
                    changed_world, changed_pod = apply(world, pod, more)
                    answer = (await subject_of(changed_world)).decide(changed_pod, world.names)
                    larger[answer.node is not None] += 1
    assert larger[False] > 20
    assert larger[True] * 10 <= larger[False]


async def test_every_kind_of_change_comes_up() -> None:
    kinds: Counter[ChangeKind] = Counter()
    for seed in range(220):
        world = build(Random(seed), FULL)
        for pod in world.asking:
            kinds.update(change.kind for change in (await explained(world, pod)).changes)
        if len(kinds) == len(ChangeKind):
            return
    assert set(kinds) == set(ChangeKind)


async def test_explaining_changes_nothing_outside() -> None:
    """The same world explains the same twice, and still places the pod where it said."""
    for seed in range(10):
        world = build(Random(seed), FULL)
        subject = await subject_of(world)
        explainer = Explainer(subject.placement)
        for pod in world.asking:
            first, second = explainer.explain(typed_pod(pod)), explainer.explain(typed_pod(pod))
            assert first == second
            assert subject.decide(pod, world.names).node == (first.node or None)
