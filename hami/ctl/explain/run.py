"""Answers one question about one pod; the exit status says it, too."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final

import msgspec

from hami.core.admission import AdmissionSettings, admitted
from hami.core.device_type import Refusal, Registry
from hami.core.errors import ConfigError
from hami.core.model import Policies
from hami.core.objects import Pod
from hami.ctl.console import json_text
from hami.ctl.explain import words
from hami.ctl.explain.cluster import Snapshot, world_of
from hami.ctl.explain.document import document, story_document
from hami.ctl.explain.show import Screen
from hami.ctl.explain.story import story_of
from hami.placement.explain import Explainer, Explanation

FITS: Final = 0
DOES_NOT_FIT: Final = 1


class Question(msgspec.Struct, frozen=True):
    """What is asked. `pod` is a name in `namespace`; `new_pod` is a pod that does not exist yet."""

    namespace: str
    name: str
    new_pod: Pod | None = None
    as_json: bool = False
    everything: bool = False


class Rules(msgspec.Struct, frozen=True):
    """How the scheduler of the cluster is configured."""

    registry: Registry
    policies: Policies = Policies()
    scheduler_name: str = "hami-scheduler"
    node_label_selector: tuple[tuple[str, str], ...] = ()


def run(question: Question, snapshot: Snapshot, rules: Rules, write: Callable[[str], object] = print) -> int:
    """0: it fits or has a node; 1: it does not fit. Raises ConfigError for a pod that does not exist."""
    pod = question.new_pod or snapshot.pod(question.namespace, question.name)
    if pod is None:
        raise ConfigError(_unknown(question, snapshot))
    screen = Screen(everything=question.everything)
    if question.new_pod is None and (pod.spec.node_name or pod.finished):
        return _tell_story(question, snapshot, rules, pod, screen, write)
    found = explanation_of(pod, snapshot, rules, new=question.new_pod is not None)
    notes = snapshot.notes + words.notes(found.pod, rules.scheduler_name, snapshot.node(found.node))
    if question.as_json:
        write(json_text(document(found, notes)))
    else:
        screen.explanation(found, notes)
    return FITS if found.fits else DOES_NOT_FIT


def explanation_of(pod: Pod, snapshot: Snapshot, rules: Rules, *, new: bool) -> Explanation:
    """Explains a pod against a snapshot; a `new` one goes through admission first."""

    def prepare(changed: Pod) -> Pod | Refusal:
        settings = AdmissionSettings(scheduler_name=rules.scheduler_name)
        return admitted(changed, changed.metadata.namespace, rules.registry, settings)

    world = world_of(snapshot, rules.registry, rules.policies, rules.node_label_selector)
    return Explainer(world, prepare if new else None).explain(pod)


def _tell_story(
    question: Question, snapshot: Snapshot, rules: Rules, pod: Pod, screen: Screen, write: Callable[[str], object]
) -> int:
    world = world_of(snapshot, rules.registry, rules.policies, rules.node_label_selector)
    view = world.view(pod.spec.node_name)
    devices = view.state.devices if view is not None else ()
    story = story_of(pod, snapshot.node(pod.spec.node_name), rules.registry, devices)
    if question.as_json:
        write(json_text(story_document(story)))
    else:
        screen.story(story)
    return FITS


def _unknown(question: Question, snapshot: Snapshot) -> str:
    key = f"{question.namespace}/{question.name}"
    known = [pod.key for pod in snapshot.pods]
    same_name = [each for each in known if each.endswith(f"/{question.name}")]
    near = same_name[:1] or difflib.get_close_matches(key, known, 1)
    return f"there is no pod {key}" + (f"; did you mean {near[0]}?" if near else "")
