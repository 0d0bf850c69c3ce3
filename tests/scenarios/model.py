"""What a scenario file may say. Unknown keys are refused where the file is read."""

from __future__ import annotations

from typing import Any

import msgspec

A100 = "NVIDIA A100-SXM4-80GB"
PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"

Limits = dict[str, int | str]
"""Resource limits of one container; keys are the part after `nvidia.com/`, or a whole name such as `cpu`."""


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a scenario: no key may be misspelt."""


class Card(Strict, frozen=True):
    """One registered card; the defaults are those of the worked vectors (spec/scheduler.md 12). Memory in MiB."""

    memory: int = 16384
    cores: int = 100
    slots: int = 10
    model: str = A100
    numa: int = 0
    healthy: bool = True
    mode: str = "hami-core"
    mig: list[dict[str, Any]] = []
    """Entries of `migProfiles`, as on the wire."""


class Node(Strict, frozen=True):
    """A node that exists in the API only, or with `plugin` a hardware profile with kubelet stand-in and our plugin."""

    cards: list[Card] = []
    plugin: str = ""
    form: str = "json"
    """Of the register annotation: json, csv9 or csv7."""
    register: str = ""
    """Text of the register annotation where it shall not be made from `cards`."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    unschedulable: bool = False
    later: bool = False
    """Added by a step, not there at the start."""
    allocates: bool = True
    """False: nobody does on it what plugin and kubelet do, so pods stay Pending and the node's token stays held."""


class Share(Strict, frozen=True, array_like=True):
    """What a container holds of one card: index on its node, MiB, percent of its cores."""

    card: int
    memory: int
    cores: int


class Present(Strict, frozen=True):
    """A pod that exists before the first step."""

    node: str = ""
    phase: str = RUNNING
    shares: list[list[Share]] | None = None
    """By container, init containers first."""
    init: int = 0
    """How many of the containers are init containers."""
    init_done: bool = False
    id_suffix: str = ""
    """Appended to the card's id in the annotation, as HAMi 2.5 to 2.9 did with MIG."""
    allocated: str = ""
    """Text of the allocated annotation where it shall not be made from `shares`."""
    slices: str = ""
    """Text of hami.io/vgpu-mig-allocations."""
    terminating: bool = False
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class NewPod(Strict, frozen=True):
    """A pod as its user writes it; it is kept on the scenario's nodes by a node selector."""

    name: str
    copies: int = 0
    """With a number, the pods `<name>-1` to `<name>-<copies>` are made at once."""
    containers: list[Limits] = msgspec.field(default_factory=lambda: [{}])
    init: list[Limits] = []
    sidecars: list[Limits] = []
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    """Of the first container."""
    privileged: bool = False
    scheduler: str = ""
    node_name: str = ""


class Finish(Strict, frozen=True):
    """A running pod ends."""

    pod: str
    phase: str = SUCCEEDED


class Annotate(Strict, frozen=True):
    """Somebody writes annotations of a node; null removes one."""

    node: str
    annotations: dict[str, str | None]


class Register(Strict, frozen=True):
    """A node's plugin registers other cards."""

    node: str
    cards: list[Card]


class Expect(Strict, frozen=True):
    """What is true of a pod. With `copies`, of the pods made from one description together."""

    refused: list[str] = []
    """Words of the refusal at admission."""
    node: str = ""
    shares: list[list[Share]] | None = None
    phase: str = ""
    """Given a node, Running is the default, else Pending."""
    waits: list[str] | None = None
    """The pod has no node, and kube-scheduler gives these reasons."""
    reason: str = "Unschedulable"
    """Of the condition PodScheduled of a pod that waits; empty where nobody looked at it."""
    terminating: bool = False
    gone: bool = False
    waited: bool = False
    """It found no node at first, so it has those events too."""
    events: list[str] | None = None
    """Exactly these reasons; by default what an ordinary pod of that outcome has."""
    says: list[str] = []
    """Messages that occur among the events, whole."""
    environment: dict[str, dict[str, str | None]] = {}
    """Container → variables after our webhook; null means absent."""
    annotations: dict[str, str | None] = {}
    copies: dict[str, int] = {}
    """How many copies are `bound` and how many `waiting`."""


class Step(Strict, frozen=True):
    """One thing that happens; exactly one key."""

    create: NewPod | None = None
    replace: NewPod | None = None
    """Delete the pod of that name and create another at once."""
    delete: str = ""
    terminate: str = ""
    """Delete with a grace period that no kubelet ends."""
    finish: Finish | None = None
    init_done: str = ""
    """The pod's init containers have ended well."""
    annotate: Annotate | None = None
    register: Register | None = None
    unschedulable: str = ""
    """Cordon the node as `kubectl cordon` does."""
    schedulable: str = ""
    quota: dict[str, int] = {}
    """The namespace's quota becomes this."""
    remove_node: str = ""
    add_node: str = ""
    extender: str = ""
    """`kill` or `start` our scheduler process; it serves the webhook too."""
    failure_policy: str = ""
    """Of the webhook: Ignore or Fail, and wait until kube-apiserver acts on it."""
    expect: dict[str, Expect] | None = None
    """Must come true before the next step."""


class Differs(Strict, frozen=True):
    """Why the two worlds do not end alike, and what holds on the real control plane instead."""

    why: str
    real: dict[str, Expect] = {}
    loose: list[str] = []
    """Fields of outcomes (`events`, `says`, …) that are not compared."""


class Scenario(Strict, frozen=True):
    """State in (`nodes`, `pods`), steps, state out (`out`)."""

    name: str
    source: str
    """Where the rule is written."""
    out: dict[str, Expect]
    nodes: dict[str, Node] = {}
    pods: dict[str, Present] = {}
    steps: list[Step] = []
    namespace_labels: dict[str, str] = {}
    quota: dict[str, int] = {}
    """`hard` of a ResourceQuota in the namespace; keys are the part after `limits.nvidia.com/`."""
    alone: bool = False
    """It disturbs others, or they would disturb it: nothing else runs meanwhile."""
    limit_s: float = 120.0
    """For each expectation."""
    differs: Differs | None = None
