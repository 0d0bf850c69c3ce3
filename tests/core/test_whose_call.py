"""Whose Allocate is it (design 3, spec/node 2.6 to 2.8 and 12, reports B79, B80, B82, B83)."""

import msgspec
import pytest

from hami.core.objects import Pod
from hami.core.token import Token
from hami.core.whose_call import Call, CallRefusal, ahead_of, whose_call
from tests.core.build import REGISTRY, gpu, pod, share

(NVIDIA,) = REGISTRY
TO_ALLOCATE, ALLOCATED = NVIDIA.to_allocate_key, NVIDIA.allocated_key
ONE = "GPU-a,NVIDIA,3000,30:"
TWO = "GPU-b,NVIDIA,3000,30:GPU-c,NVIDIA,3000,30:"


def waiting(
    name: str, text: str, *containers: dict[str, object], node: str = "n1", phase: str = "Pending", **keys: str
) -> Pod:
    annotations = {TO_ALLOCATE: text, ALLOCATED: keys.get("record", text), "hami.io/bind-phase": "allocating"}
    annotations["hami.io/bind-phase"] = keys.get("bind_phase", "allocating")
    made = pod(*(containers or (gpu(),)), annotations=annotations, name=name)
    spec = msgspec.structs.replace(made.spec, node_name=node)
    return msgspec.structs.replace(made, spec=spec, status=msgspec.structs.replace(made.status, phase=phase))


def token(name: str) -> Token:
    return Token(0, "default", name)


def served(outcome: Call | CallRefusal) -> tuple[str, int, int, str]:
    assert isinstance(outcome, Call), outcome
    return outcome.pod.metadata.name, outcome.container_index, len(outcome.shares), outcome.rest_text


@pytest.mark.parametrize(
    ("holder", "count", "expected"),
    [
        # The token's pod is served, although another one waits for the same count.
        ("p1", 1, ("p1", 0, 1, ";")),
        ("p2", 1, ("p2", 0, 1, ";")),
        # B79: the token's pod waits for another count; the only pod with that count is served.
        ("p1", 2, ("p3", 0, 2, ";")),
        (None, 2, ("p3", 0, 2, ";")),
        ("gone", 2, ("p3", 0, 2, ";")),
    ],
)
def test_b79_who_is_served(holder: str | None, count: int, expected: tuple[str, int, int, str]) -> None:
    pods = [waiting("p1", ONE + ";"), waiting("p2", ONE + ";"), waiting("p3", TWO + ";")]
    assert served(whose_call(token(holder) if holder else None, pods, "n1", count, NVIDIA)) == expected


def test_nobody_is_harmed_when_the_pod_cannot_be_told() -> None:
    pods = [waiting("p2", ONE + ";"), waiting("p1", ONE + ";"), waiting("p3", "??")]
    outcome = whose_call(None, pods, "n1", 1, NVIDIA)
    assert isinstance(outcome, CallRefusal)
    assert outcome.message.startswith(
        "device number not matched: on node n1 an Allocate of 1 nvidia.com/gpu fits not exactly one of "
        "default/p1 (waits for 1); default/p2 (waits for 1); default/p3 (pod annotation format error"
    )


def test_an_unreadable_pod_of_the_token_lets_nobody_be_served() -> None:
    pods = [waiting("p1", "??"), waiting("p2", ONE + ";")]
    assert isinstance(whose_call(token("p1"), pods, "n1", 1, NVIDIA), CallRefusal)


@pytest.mark.parametrize(
    "stranger",
    [
        waiting("p", ONE + ";", node="n2"),
        waiting("p", ONE + ";", node=""),
        waiting("p", ONE + ";", phase="Running"),
        waiting("p", ONE + ";", phase="Failed"),
        waiting("p", ONE + ";", bind_phase="success"),
        waiting("p", ONE + ";", bind_phase=""),
    ],
)
def test_b80_pods_that_the_scheduler_did_not_hand_over_are_never_served(stranger: Pod) -> None:
    outcome = whose_call(token("p"), [stranger], "n1", 1, NVIDIA)
    assert isinstance(outcome, CallRefusal)
    assert outcome.message.startswith("no binding pod found on node n1 for an Allocate of 1 nvidia.com/gpu")


def test_b82_containers_are_served_one_after_another() -> None:
    first = whose_call(token("p"), [waiting("p", f"{ONE};;{TWO};", gpu(), {}, gpu(2))], "n1", 1, NVIDIA)
    assert served(first) == ("p", 0, 1, f";;{TWO};")
    assert isinstance(first, Call)
    assert (first.container_name, first.complete) == ("c0", False)
    second = whose_call(token("p"), [waiting("p", first.rest_text, gpu(), {}, gpu(2))], "n1", 2, NVIDIA)
    assert served(second) == ("p", 2, 2, ";;;")
    assert isinstance(second, Call)
    assert (second.container_name, second.complete, second.shares[0]) == ("c2", True, share("GPU-b"))
    third = whose_call(token("p"), [waiting("p", second.rest_text, gpu(), {}, gpu(2))], "n1", 2, NVIDIA)
    assert isinstance(third, CallRefusal)
    assert "default/p (waits for 0)" in third.message


def test_node_12_an_init_container_without_devices_comes_first() -> None:
    subject = waiting("p", f";{ONE};;", gpu(), {})
    with_init = msgspec.structs.replace(
        subject, spec=msgspec.structs.replace(subject.spec, init_containers=pod({}).spec.containers)
    )
    outcome = whose_call(token("p"), [with_init], "n1", 1, NVIDIA)
    assert served(outcome)[1] == 1
    assert isinstance(outcome, Call)
    assert outcome.container_name == "c0"


@pytest.mark.parametrize(
    ("text", "record", "count", "index"),
    [
        # 2.10 on cards named by model: no segment for the containers without devices.
        (f"{ONE};{TWO};", f"{ONE};{TWO};", 1, 1),
        (f"{ONE};{TWO};", f"{ONE};{TWO};", 2, 3),
        # The same after the first was served: the record tells that the second is left.
        (f";{TWO};", f"{ONE};{TWO};", 2, 3),
        # A record that does not help.
        (f"{ONE};{TWO};", "??", 2, 3),
        (f"{ONE};{TWO};", "", 2, 3),
    ],
)
def test_b83_left_out_segments_go_by_the_containers_that_ask(text: str, record: str, count: int, index: int) -> None:
    subject = waiting("p", text, {}, gpu(), {}, gpu(2), record=record)
    assert served(whose_call(token("p"), [subject], "n1", count, NVIDIA))[1] == index


def test_more_segments_than_containers_that_ask_fall_back_to_their_position() -> None:
    subject = waiting("p", f"{ONE};{TWO};", {}, {}, gpu())
    assert served(whose_call(token("p"), [subject], "n1", 2, NVIDIA))[1] == 1


def test_a_segment_without_container_has_no_name() -> None:
    outcome = whose_call(token("p"), [waiting("p", f";;{ONE};")], "n1", 1, NVIDIA)
    assert isinstance(outcome, Call)
    assert outcome.container_name == ""


# --- a token that was given on while its first owner still waits (HAMi #3096) ---


def bound_at(pod: Pod, unix_s: str, *, deleted: bool = False) -> Pod:
    notes = pod.annotations | ({"hami.io/bind-time": unix_s} if unix_s else {})
    gone = "2027-01-15T08:00:00Z" if deleted else None
    meta = msgspec.structs.replace(pod.metadata, annotations=notes, uid=f"uid-{pod.key}", deletion_timestamp=gone)
    return msgspec.structs.replace(pod, metadata=meta)


@pytest.mark.parametrize(
    ("other", "count", "ahead"),
    [
        (bound_at(waiting("p1", ONE + ";"), "1000"), 1, True),
        (bound_at(waiting("p1", f"{ONE};{TWO};", gpu(), gpu(2)), "1000"), 2, True),
        (bound_at(waiting("p1", f"{ONE};{TWO};", gpu(), gpu(2)), "1000"), 1, True),
        (bound_at(waiting("p1", TWO + ";"), "1000"), 1, False),
        (bound_at(waiting("p1", ONE + ";"), "1300"), 1, False),
        (bound_at(waiting("p1", ONE + ";"), "1301"), 1, False),
        (bound_at(waiting("p1", ONE + ";"), ""), 1, False),
        (bound_at(waiting("p1", ONE + ";"), "soon"), 1, False),
        (bound_at(waiting("p1", "??"), "1000"), 1, False),
        (bound_at(waiting("p1", ONE + ";", node="n2"), "1000"), 1, False),
        (bound_at(waiting("p1", ONE + ";", phase="Failed"), "1000"), 1, False),
        (bound_at(waiting("p1", ";", bind_phase="success"), "1000"), 1, False),
        (bound_at(waiting("p1", ONE + ";", bind_phase="failed"), "1000"), 1, False),
        (bound_at(waiting("p1", ONE + ";"), "1000", deleted=True), 1, False),
    ],
)
def test_who_is_ahead_of_the_tokens_pod(other: Pod, count: int, ahead: bool) -> None:
    found = bound_at(waiting("p2", ONE + ";"), "1300")
    first = ahead_of(found, [found, other], "n1", count, NVIDIA)
    assert first == (other if ahead else None)


def test_the_first_of_those_ahead_is_named() -> None:
    pods = [bound_at(waiting(name, ONE + ";"), at) for name, at in (("b", "900"), ("c", "800"), ("a", "900"))]
    found = bound_at(waiting("p", ONE + ";"), "1300")
    assert ahead_of(found, [*pods, found], "n1", 1, NVIDIA) is pods[1]
    assert ahead_of(pods[1], [*pods, found], "n1", 1, NVIDIA) is None
