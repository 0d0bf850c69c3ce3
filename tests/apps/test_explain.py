"""`hami explain` as people call it: from a dump, from a cluster, for a pod file; exit statuses; a pod's story."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.apps import cli
from hami.core import keys
from hami.core.codec import RegisterForm, encode_register
from hami.kube.access import context_namespace
from hami.kube.client import ApiClient
from hami.sim.apiserver import ApiServer
from tests.placement.fakes import NVIDIA, card

Object = dict[str, Any]


def node(name: str, *, cordon: str = "", unschedulable: bool = False, lock: str = "") -> Object:
    notes = {NVIDIA.register_key: encode_register([card(0, node=name), card(1, node=name)], RegisterForm.JSON)}
    notes |= {keys.DEVICE_CORDON: cordon} if cordon else {}
    notes |= {keys.NODE_LOCK: lock} if lock else {}
    meta = {"name": name, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"unschedulable": unschedulable}}


def pod(name: str, *, annotations: dict[str, str] | None = None, node_name: str = "", **limits: object) -> Object:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations or {}}
    wanted = {f"nvidia.com/{key}": str(value) for key, value in limits.items()}
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "none", "resources": {"limits": wanted}}]}
    if node_name:
        spec["nodeName"] = node_name
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


def holding(name: str, text: str, node_name: str, phase: str = "success") -> Object:
    notes = {
        keys.VGPU_NODE: node_name,
        NVIDIA.allocated_key: text,
        keys.BIND_PHASE: phase,
        keys.BIND_TIME: "1800000000",
    }
    return pod(name, annotations=notes, node_name=node_name, gpu=1)


def quota(limit: str) -> Object:
    meta = {"name": "q", "namespace": "default"}
    return {"kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {"limits.nvidia.com/gpumem": limit}}}


class Cli:
    """Runs commands over one dump; remembers what they printed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.dump = folder / "dump.json"
        self._capsys = capsys
        self.out = self.err = ""

    def holds(self, *items: Object) -> None:
        self.dump.write_text(json.dumps({"kind": "List", "items": items}))

    def __call__(self, *argv: str, dump: bool = True, program: str = "hami") -> int:
        status = cli.run(program, ["explain", *argv, *(("--dump", str(self.dump)) if dump else ())])
        self.out, self.err = self._capsys.readouterr()
        return status

    def json(self, *argv: str) -> Object:
        self(*argv, "-o", "json")
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


def test_fits(run: Cli) -> None:
    run.holds(node("n1"), node("n2"), pod("p", gpu=1, gpumem=1000))
    assert run("default/p") == 0
    assert run.out.splitlines()[0] == "pod default/p: fits, node n1 would take it"
    assert "container main would get card 0 (GPU-n10): 1000 MiB, 0 % cores" in run.out
    assert run("p", "-n", "default", program="kubectl hami") == 0


def test_does_not_fit_says_why_and_what_would_help(run: Cli) -> None:
    held = holding("old", "GPU-n10,NVIDIA,9000,0:;", "n1")
    run.holds(node("n1", cordon="GPU-n11"), node("n2", cordon="GPU-n20,GPU-n21"), held, pod("p", gpu=1, gpumem=12000))
    assert run("default/p") == 1
    assert run.out.splitlines()[0] == "pod default/p: does not fit on any of 2 nodes"
    assert "node n1: 1/2 CardCordoned, 1/2 CardInsufficientMemory" in run.out
    rows = [line.split() for line in run.out.splitlines() if "CardInsufficientMemory" in line and "MiB" in line]
    assert any("12000 MiB 7384 of 16384 MiB" in " ".join(row) for row in rows)
    changes = {change["kind"]: change for change in run.json("default/p")["changes"]}
    assert set(changes) == {"memory", "uncordon", "wait"}
    assert changes["memory"]["value"] == 7384
    assert changes["memory"]["text"] == "ask for nvidia.com/gpumem: 7384 instead of 12000 in container main"
    assert changes["uncordon"]["card"] == "GPU-n11"
    assert changes["wait"]["pod"] == "default/old"


def test_two_changes_where_no_single_one_would_do(run: Cli) -> None:
    """Both cards are held and the pod wants a model that is not there."""
    held = [
        holding(name, f"GPU-n1{at},NVIDIA,{size},0:;", "n1")
        for at, (name, size) in enumerate((("a", 9000), ("b", 8000)))
    ]
    asking = pod("p", annotations={"nvidia.com/use-gputype": "H100"}, gpu=1, gpumem=12000)
    run.holds(node("n1"), *held, asking)
    assert run("default/p") == 1
    assert "No single change" in run.out
    lines = run.out.splitlines()
    after = lines[lines.index("Two together would:") + 1 :]
    assert after[0].endswith("(then: node n1)")
    lowered = "ask for nvidia.com/gpumem: 8384 instead of 12000 in container main"
    dropped = "drop the annotation nvidia.com/use-gputype: H100"
    assert any(f"{lowered}, and {dropped}" in line for line in after)
    assert any(dropped in line and "wait until pod default/b ends" in line for line in after)
    found = run.json("default/p")
    assert found["changes"] == []
    assert [[each["kind"] for each in pair] for pair in found["pairs"]] == [
        ["memory", "annotation"],
        ["annotation", "wait"],
    ]


def test_three_changes_where_no_two_would_do(run: Cli) -> None:
    """Two cards, two pods on them, and the pod wants both whole and a model that is not there."""
    held = [holding(name, f"GPU-n1{at},NVIDIA,9000,50:;", "n1") for at, name in enumerate("ab")]
    asking = pod("p", annotations={"nvidia.com/use-gputype": "H100"}, gpu=2, gpumem=16384, gpucores=100)
    run.holds(node("n1"), *held, asking)
    assert run("default/p") == 1
    lines = run.out.splitlines()
    after = lines[lines.index("These 3 together would, and none of them can be left out:") + 1 :]
    assert [line.strip() for line in after[:3]] == [
        "1. drop the annotation nvidia.com/use-gputype: H100 (then: node n1)",
        "2. ask for nvidia.com/gpucores: 50 instead of 100 in container main (then: node n1)",
        "3. ask for nvidia.com/gpumem: 7384 instead of 16384 in container main (then: node n1)",
    ]
    found = run.json("default/p")
    assert (found["changes"], found["pairs"]) == ([], [])
    assert [each["kind"] for each in found["together"]] == ["annotation", "cores", "memory"]


@pytest.mark.parametrize(
    ("memory", "words"), [(12000, "node n1 if that were empty"), (20000, "not fit even on an empty")]
)
def test_says_whether_an_empty_node_would_do(run: Cli, memory: int, words: str) -> None:
    held = [holding(name, f"GPU-n1{at},NVIDIA,9000,0:;", "n1") for at, name in enumerate(("a", "b"))]
    run.holds(node("n1"), *held, pod("p", gpu=2, gpumem=memory))
    assert run("default/p") == 1
    assert words in run.out


def test_json_has_every_check(run: Cli) -> None:
    run.holds(node("n1"), pod("p", gpu=3))
    found = run.json("default/p")
    assert (found["fits"], found["node"]) == (False, "")
    (answer,) = found["nodes"]
    assert answer["text"] == "NodeInsufficientDevice"
    assert answer["requests"][0]["together"] == [
        {
            "reason": "NodeInsufficientDevice",
            "passed": False,
            "required": "3 different cards",
            "available": "2 different cards",
        }
    ]
    assert len(answer["requests"][0]["checked"][0]["checks"]) >= 5


def test_quota_and_annotation(run: Cli) -> None:
    run.holds(node("n1"), quota("500"), pod("p", gpu=1, gpumem=1000))
    assert run("default/p") == 1
    assert "used 0 MiB, requested 1000 MiB, limit 500 MiB" in run.out
    assert "500 MiB, any cores for the pod" in run.out
    raised = next(change for change in run.json("default/p")["changes"] if change["kind"] == "quota")
    assert raised["raises"] == [{"quota": "q", "key": "limits.nvidia.com/gpumem", "old": 500, "new": 1000}]
    run.holds(node("n1"), pod("p", annotations={"nvidia.com/use-gputype": "H100"}, gpu=1))
    assert run.json("default/p")["changes"][0]["annotation"] == "nvidia.com/use-gputype"


def test_a_file_goes_through_admission_first(run: Cli, tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    body = pod("new", gpumem=1000)
    del body["metadata"]["namespace"]
    file.write_text(json.dumps(body))
    run.holds(node("n1"))
    assert run("-f", str(file), "-n", "team") == 0
    assert run.out.startswith("pod team/new: fits, node n1 would take it")
    file.write_text(json.dumps(pod("new", gpu=1, gpumem="16Gi")))
    assert run("-f", str(file)) == 1
    assert "refused: invalid nvidia.com/gpumem value 16Gi in container main" in run.out
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": {"spec": pod("x", gpu=9)["spec"]}},
    }
    file.write_text(json.dumps(deployment))
    assert run("-f", str(file)) == 1
    assert run.out.startswith("pod default/d: does not fit on any of 1 nodes")


def test_a_whole_card_from_a_file_may_ask_for_less(run: Cli, tmp_path: Path) -> None:
    """Admission adds 100 cores to a whole card; with a size it would not, so the size alone helps."""
    file = tmp_path / "new.json"
    file.write_text(json.dumps(pod("new", gpu=1)))
    run.holds(
        node("n1"), holding("a", "GPU-n10,NVIDIA,9000,10:;", "n1"), holding("b", "GPU-n11,NVIDIA,9000,10:;", "n1")
    )
    assert run("-f", str(file)) == 1
    assert (
        "1. ask for nvidia.com/gpumem: 7384 instead of 100 % of the card in container main (then: node n1)" in run.out
    )


def test_notes_about_what_is_not_a_card(run: Cli) -> None:
    other = pod("p", gpu=1, gpumem=1000)
    other["spec"]["schedulerName"] = "default-scheduler"
    run.holds(node("n1", unschedulable=True), other)
    assert run("default/p") == 0
    assert "schedulerName is default-scheduler" in run.out
    assert "node n1 is cordoned" in run.out


def test_plain_pods_and_all(run: Cli) -> None:
    run.holds(node("n1"), {"kind": "Node", "metadata": {"name": "cpu"}}, pod("plain"), pod("p", gpu=1, gpumem=1000))
    assert run("default/plain") == 0
    assert "asks for no devices" in run.out
    assert run("default/p", "--all") == 0
    assert "node cpu: node unregistered" in run.out


def test_story_of_a_bound_pod(run: Cli) -> None:
    lock = "2027-01-15T08:00:00Z,default,p"
    run.holds(node("n1", lock=lock), holding("p", "GPU-n11,NVIDIA,3000,30:;", "n1", "allocating"))
    assert run("default/p") == 0
    assert run.out.splitlines() == [
        "pod default/p: Pending on node n1",
        "  phase: allocating, bound 2027-01-15 08:00:00Z",
        "  hand-off token of the node: held by this pod: its device plugin has not handed over the cards yet",
        "  container main: card 1 NVIDIA A100-SXM4-80GB (GPU-n11), 3000 MiB, 30 % cores",
    ]
    assert run.json("default/p")["story"]["cards"][0]["memory_mib"] == 3000
    run.holds(node("n1"), holding("p", "?", "n1"))
    assert run("default/p") == 0
    assert "its allocation cannot be read" in run.out


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ([], "name one pod"),
        (["default/p", "-f", "x"], "name one pod"),
        (["default/pp"], "there is no pod default/pp; did you mean default/p?"),
        (["team/p"], "there is no pod team/p; did you mean default/p?"),
        (["default/p", "-n", "team"], "two namespaces"),
        (["default/p", "--nonsense"], "--nonsense"),
        (["default/p", "-o", "yaml"], "yaml"),
        (["-f", "/nonexistent.yaml"], "No such file"),
        (["default/p", "--node-scheduler-policy", "spred"], "--node-scheduler-policy: unknown policy 'spred'"),
        (["default/p", "--gpu-scheduler-policy", "spread,nope"], "--gpu-scheduler-policy: unknown policy 'nope'"),
        (
            ["default/p", "--node-label-selector", "gpu"],
            "--node-label-selector: 'gpu' is not allowed: expected key=value",
        ),
    ],
)
def test_bad_use_is_2(run: Cli, argv: list[str], problem: str) -> None:
    run.holds(node("n1"), pod("p", gpu=1))
    assert run(*argv) == 2
    assert run.err.startswith("hami explain: ")
    assert problem in run.err


@pytest.mark.parametrize(("text", "problem"), [("nonsense", "is no output of"), ('{"items": []}', "has no nodes")])
def test_a_dump_that_is_none(run: Cli, text: str, problem: str) -> None:
    run.dump.write_text(text)
    assert run("default/p") == 2
    assert problem in run.err


async def test_live(run: Cli, tmp_path: Path) -> None:
    async with ApiServer() as api:
        config = api.write_kubeconfig(tmp_path / "kubeconfig")
        async with await ApiClient.load(str(config), qps=1000, burst=1000) as client:
            await client.request("POST", "/api/v1/nodes", msgspec.json.encode(node("n1")))
            body = pod("p", gpu=1, gpumem=99000)
            await client.request("POST", "/api/v1/namespaces/default/pods", msgspec.json.encode(body))
        config.write_text(config.read_text().replace("user: hami-sim", "namespace: default\n    user: hami-sim"))
        arguments = ("p", "--kubeconfig", str(config))
        assert await asyncio.to_thread(lambda: run(*arguments, dump=False)) == 1
        assert "pod default/p: does not fit on any of 1 nodes" in run.out
        assert "ask for nvidia.com/gpumem: 16384 instead of 99000" in run.out


def test_the_contexts_namespace_counts(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    assert context_namespace(str(config)) == "default"
    config.write_text("no: kubeconfig")
    assert context_namespace(str(config)) == "default"
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    body = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [context]}
    parts = {"clusters": [{"name": "c", "cluster": {"server": "http://c"}}], "users": [{"name": "u", "user": {}}]}
    config.write_text(json.dumps(body | parts))
    assert context_namespace(str(config)) == "team"


def test_nodes_without_the_schedulers_labels_take_nothing(run: Cli) -> None:
    run.holds(node("n1"), pod("p", gpu=1, gpumem=1000))
    assert run("default/p", "--node-label-selector", "gpu=on") == 1
    assert "node n1: node unregistered" in run.out
    assert run("default/p", "--node-label-selector", "gpu") == 2
