"""The checker refuses what cannot be, the comparison sees what is not alike."""

from __future__ import annotations

import dataclasses

import pytest

from tests.scenarios.check import problems
from tests.scenarios.load import ScenarioError, load, parse
from tests.scenarios.model import Expect, Share
from tests.scenarios.objects import Names
from tests.scenarios.outcome import Outcome, mismatches, reasons
from tests.scenarios.report import failures, table
from tests.scenarios.runner import Report, Result, differences

GOOD = """
- name: sound
  source: nowhere
  nodes: {n1: {cards: [{}]}}
  pods: {load: {node: n1, shares: [[[0, 4096, 30]]]}}
  steps: [{create: {name: p, containers: [{gpu: 1}]}}]
  out: {p: {node: n1}}
"""
FEWEST = 60


def test_the_set_is_sound_and_large_enough() -> None:
    scenarios = load()
    assert problems(scenarios) == []
    assert len(scenarios) >= FEWEST


def test_a_sound_scenario_has_no_problems() -> None:
    assert problems(parse(GOOD, "good.yaml")) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{node: n1, shares: [[[0", "{shares: [[[0", "runs without a node"),
        ("[[[0, 4096, 30]]]", "[[[1, 4096, 30]]]", "holds card 1 of node n1, which registers 1"),
        ("[[[0, 4096, 30]]]", "[[[0, 99999, 30]]]", "held beyond its size"),
        ("[[[0, 4096, 30]]]", "[[[0, 4096, 101]]]", "held beyond its size"),
        ("{node: n1, shares: [[[0, 4096, 30]]]}", "{node: n9}", "node n9, which is not in the scenario"),
        ("{node: n1, shares", "{node: n1, phase: Happy, shares", "phase Happy is none of"),
        ("{node: n1, shares", "{node: n1, allocated: x, shares", "both shares and allocated"),
        ("{node: n1, shares", "{node: n1, init: 1, shares", "no app container"),
        ("load: {node: n1,", "load: {node: '', phase: Pending, terminating: true,", "terminates without a node"),
        ("name: p,", "name: load,", "exists already"),
        ("name: p,", "name: P_1,", "no legal name"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{delete: q}", "pod q does not exist here"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{remove_node: n7}", "node n7 is not in the scenario"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{}", "must say exactly one thing, says nothing"),
        ("{create:", "{delete: load, create:", "must say exactly one thing"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{extender: kill}", "set alone"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{extender: kill}", "down at the end"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{extender: start}", "cannot start it now"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{failure_policy: Maybe}", "neither Ignore nor Fail"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{replace: {name: q}}", "cannot be replaced"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{add_node: n1}", "mark it later"),
        ("{create: {name: p, containers: [{gpu: 1}]}}", "{quota: {gpumem: 1}}", "quota that is not there"),
        ("containers: [{gpu: 1}]", "copies: 1", "copies must be 2 or more"),
        ("containers: [{gpu: 1}]", "containers: []", "no containers"),
        ("containers: [{gpu: 1}]", "annotations: {a: '{n2}'}", "{n2} names no node"),
        ("containers: [{gpu: 1}]", "annotations: {a: '{n1/4}'}", "{n1/4}: the node registers 1 cards"),
        ("containers: [{gpu: 1}]", "node_name: n2", "names node n2"),
        ("out: {p: {node: n1}}", "out: {}", "nothing would be checked"),
        ("out: {p: {node: n1}}", "out: {p: {}}", "exactly one of refused, node, waits, gone, copies"),
        ("out: {p: {node: n1}}", "out: {p: {node: n1, gone: true}}", "exactly one of"),
        ("out: {p: {node: n1}}", "out: {p: {node: n3}}", "expects node n3"),
        ("out: {p: {node: n1}}", "out: {q: {node: n1}}", "expects pod q, which is never made"),
        ("out: {p: {node: n1}}", "out: {p: {node: n1, shares: [[[3, 1, 0]]]}}", "holds card 3 of node n1"),
        ("out: {p: {node: n1}}", "out: {p: {copies: {half: 1}}}", "copies are bound or waiting"),
        ("cards: [{}]", "cards: [{mode: mig}]", "mode mig without profiles"),
        ("cards: [{}]", "cards: [{memory: -1}]", "negative size"),
        ("cards: [{}]", "cards: [{}], form: csv8", "form csv8"),
        ("cards: [{}]", "cards: [{}], plugin: t4", "its cards are those of the profile"),
        ("source: nowhere", "source: ''", "source is empty"),
        ("source: nowhere", "source: x\n  differs: {why: short, loose: [events]}", "without a reason"),
        ("source: nowhere", "source: x\n  differs: {why: a long and honest reason}", "says why but not what"),
        ("name: sound", "name: Not Sound", "lower case with hyphens"),
    ],
)
def test_impossible_scenarios_are_refused(old: str, new: str, words: str) -> None:
    assert old in GOOD
    found = problems(parse(GOOD.replace(old, new), "bad.yaml"))
    assert any(words in problem for problem in found), found


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: p,", "nmae: p,", "unknown field `nmae`"),
        ("source: nowhere", "sauce: nowhere", "unknown field `sauce`"),
        ("cards: [{}]", "cards: [{memroy: 1}]", "unknown field `memroy`"),
        ("{p: {node: n1}}", "{p: {node: n1}, p: {node: n1}}", "'p' is there twice"),
        ("{n1: {cards: [{}]}}", "{n1: {cards: [{}]}, n1: {cards: []}}", "'n1' is there twice"),
        ("[[[0, 4096, 30]]]", "[[[0, many, 30]]]", "Expected `int`"),
        ("- name", "name: [", "bad.yaml"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(old: str, new: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=r"bad\.yaml|line") as caught:
        parse(GOOD.replace(old, new), "bad.yaml")
    assert words in str(caught.value)


def test_two_scenarios_of_one_name() -> None:
    assert problems(parse(GOOD + GOOD, "twice.yaml")) == ["sound: 2 scenarios have this name"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0/1 nodes are available: 1 node unregistered.", ("1 node unregistered",)),
        (
            "0/9 nodes are available: 1 1/2 A, 1/2 B, 8 node(s) didn't match Pod's node affinity/selector. "
            "no new claims to deallocate, preemption: 0/9 nodes are available: 9 Preemption is not helpful.",
            ("1 1/2 A", "1/2 B"),
        ),
        ("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: none.", ()),
        ("0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 Insufficient x.", ("1 Insufficient x",)),
        ("no nodes available to schedule pods", ("no nodes available to schedule pods",)),
    ],
)
def test_reasons_of_a_scenario_do_not_depend_on_its_neighbours(text: str, expected: tuple[str, ...]) -> None:
    assert reasons(text) == expected


RUNS = Outcome(node="n1", phase="Running", scheduled="True", shares=(((0, 1, 2),),), events=("Scheduled",))


@pytest.mark.parametrize(
    "change",
    [
        {"node": "n2"},
        {"phase": "Pending"},
        {"scheduled": "Unschedulable"},
        {"shares": (((1, 1, 2),),)},
        {"events": ()},
        {"terminating": True},
        {"gone": True},
        {"refused": "no"},
    ],
)
def test_every_field_counts(change: dict[str, object]) -> None:
    (scenario,) = parse(GOOD, "good.yaml")
    expect = Expect(node="n1", shares=[[Share(0, 1, 2)]])
    assert mismatches(expect, RUNS, Names(scenario), ["Scheduled"]) == []
    assert mismatches(expect, dataclasses.replace(RUNS, **change), Names(scenario), ["Scheduled"])  # type: ignore[arg-type]


def test_worlds_that_differ_are_told_with_the_pod_and_the_field() -> None:
    (scenario,) = parse(GOOD, "good.yaml")
    sim = Report("sim", {"sound": Result(scenario, (), {"p": RUNS}, 1.0)}, 1.0)
    other = dataclasses.replace(RUNS, events=("Scheduled", "Surprise"))
    real = Report("real", {"sound": Result(scenario, (), {"p": other}, 1.0)}, 1.0)
    assert differences(sim, sim) == {}
    unlike = differences(sim, real)
    assert failures([sim, real], unlike) == [
        "worlds differ: sound: p: events: ('Scheduled',) against ('Scheduled', 'Surprise')"
    ]
    assert "1 unexplained, 0 with a written reason" in table([sim, real], unlike)


def test_a_reason_for_a_difference_that_is_none() -> None:
    text = GOOD + "  differs: {why: the real one evicts the pod, real: {p: {node: n1, phase: Failed}}}\n"
    (scenario,) = parse(text, "differs.yaml")
    assert problems([scenario]) == []
    alike = Report("sim", {"sound": Result(scenario, (), {"p": RUNS}, 1.0)}, 1.0)
    assert "but do not" in differences(alike, alike)["sound"][0]
