"""Pods, annotations, tokens and calls of kubelet's, as nobody should send them and as they should be."""

from __future__ import annotations

from hypothesis import strategies as st

from hami.core.keys import BIND_PHASE, PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS
from hami.core.model import INT32_MAX
from hami.core.objects import Container, ObjectMeta, Pod, PodSpec, PodStatus
from hami.core.token import encode_token
from hami.vendors.nvidia.names import ALLOCATED_KEY, TO_ALLOCATE_KEY
from tests.deviceplugin.bench import NODE, A, B

ids = st.sampled_from([f"{A}-0", f"{A}-1", f"{B}-0", f"{B}-7", f"{A}::2", A])
odd_ids = st.one_of(st.sampled_from(["", "GPU-gone-1", f"{A}-x", "\u00e9", "::"]), st.text(max_size=20))
requests = st.lists(
    st.one_of(st.lists(ids, min_size=1, max_size=2), st.lists(st.one_of(ids, odd_ids), max_size=3)),
    min_size=1,
    max_size=2,
)
numbers = st.one_of(
    st.integers(0, 20_000).map(str),
    st.sampled_from(["-1", "0", str(INT32_MAX), str(INT32_MAX + 1), "9" * 40, "1e3", "", "x", " 1", "\u0663"]),
)
share = st.builds(
    lambda *parts: ",".join(parts) + ":",
    st.sampled_from([A, B, A, B, A, "GPU-gone", ""]),
    st.sampled_from(["NVIDIA", "NVIDIA", "GPU", "DCU", ""]),
    st.one_of(st.integers(0, 20_000).map(str), numbers),
    st.one_of(st.integers(0, 100).map(str), numbers),
)
good_share = st.builds(
    lambda card, memory, core: f"{card},NVIDIA,{memory},{core}:",
    st.sampled_from([A, B]),
    st.integers(0, 20_000),
    st.integers(0, 100),
)
segments = st.lists(st.lists(good_share, max_size=2).map("".join), max_size=4).map(
    lambda parts: "".join(part + ";" for part in parts)
)
odd_text = st.one_of(
    st.lists(st.lists(share, max_size=2).map("".join), max_size=4).map(";".join),
    st.text(alphabet=",:;-0159AGNPUVDI", max_size=60),
    st.text(max_size=30),
)
work = st.one_of(segments, segments, segments, odd_text)
phases = st.sampled_from([PHASE_ALLOCATING] * 6 + [PHASE_SUCCESS, PHASE_FAILED, "", "unheard-of"])


def pod(name: str) -> st.SearchStrategy[Pod]:
    """A pod as somebody left it."""
    return st.builds(_pod, st.just(name), work, phases, kinds, where)


kinds = st.sampled_from(
    [(record, containers, init) for record in ("same", "same", "", "garbage,", "none") for containers in (1, 2, 3)
     for init in (0, 1)]
)  # fmt: skip
where = st.sampled_from(
    [(node, phase) for node in [NODE] * 5 + ["n2", ""] for phase in ["Pending"] * 6 + ["", "Running", "Failed"]]
)


def _pod(name: str, text: str, bind_phase: str, kind: tuple[str, int, int], place: tuple[str, str]) -> Pod:
    record, containers, init = kind
    annotations = {BIND_PHASE: bind_phase, ALLOCATED_KEY: text if record == "same" else record}
    if record != "none":
        annotations[TO_ALLOCATE_KEY] = text
    return Pod(
        ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", resource_version="1", annotations=annotations),
        spec=PodSpec(
            node_name=place[0],
            containers=tuple(Container(name=f"c{number}") for number in range(containers)),
            init_containers=tuple(Container(name=f"i{number}") for number in range(init)),
        ),
        status=PodStatus(phase=place[1]),
    )


pods_on_a_node = st.one_of(
    st.tuples(pod("p0")), st.tuples(pod("p0"), pod("p1")), st.tuples(pod("p0"), pod("p1"), pod("p2"))
)
tokens = st.one_of(
    st.none(),
    st.sampled_from([encode_token("default", f"p{number}", 1_800_000_000) for number in range(4)]),
    st.sampled_from(["2026-01-02T03:04:05Z", "", "a,b,c,d", "no time,default,p0"]),
    st.text(max_size=20),
)
