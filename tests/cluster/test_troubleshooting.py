"""Every message that docs/how-to/troubleshoot.md quotes is provoked here, and matches what the page says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import ApiError, Object
from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import Workspace, gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "troubleshoot.md"
QUOTED = re.findall(r"^```message\n(.+)\n```$", PAGE.read_text(), re.M)
SHARE = {"gpu": 1, "gpumem": 3000}


def quoted(text: str) -> str:
    """The one message of the page that this text is an example of."""
    found = [line for line in QUOTED if re.search(_pattern(line), text, re.S)]
    assert len(found) == 1, text
    SEEN.update(found)
    return str(found[0])


def _pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split("…")))


SEEN: set[str] = set()


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x4"])
        yield cluster


def refusal(workspace: Workspace, pod: Object) -> str:
    """What a person is told whose pod is not taken."""
    with pytest.raises(ApiError) as refused:
        workspace.add(pod)
    return str(json.loads(refused.value.body)["message"])


def wait_refusal(workspace: Workspace, text: str) -> str:
    """The refusal of a pod with a share, once it has this text: a changed webhook takes a moment to be seen."""

    def told() -> str | None:
        try:
            workspace.add(gpu_pod("p", SHARE))
        except ApiError as error:
            return str(json.loads(error.body)["message"]) if text in error.body else None
        workspace.remove("p")
        return None

    message = wait_until(told, PATIENCE_S, f"a refusal with {text!r}")
    assert message is not None
    return message


@pytest.fixture
def webhook_again(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.scheduler.install_webhook()


def test_wrong_unit(workspace: Workspace) -> None:
    pod = gpu_pod("p", {"gpu": 1})
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "16Gi"
    told = refusal(workspace, pod)
    quoted(told)
    assert told.endswith("write 16384")


def test_quota(workspace: Workspace) -> None:
    hard = {"limits.nvidia.com/gpumem": "2000"}
    quota = {"metadata": {"name": "team"}, "spec": {"hard": hard}}
    workspace.api.post(f"{workspace.path}/resourcequotas", quota)
    quoted(wait_refusal(workspace, "exceeding resource quota"))


@pytest.mark.usefixtures("webhook_again")
def test_unknown_authority(cluster: Cluster, workspace: Workspace) -> None:
    cluster.kubectl("apply", "-f", str(cluster.plane.webhook_manifest(cluster.plane.authority.cert)))
    quoted(wait_refusal(workspace, "x509"))


@pytest.mark.usefixtures("webhook_again")
def test_nobody_answers(cluster: Cluster, workspace: Workspace) -> None:
    ca = cluster.scheduler.certificates / "ca.crt"
    cluster.kubectl("apply", "-f", str(cluster.plane.webhook_manifest(ca, "https://127.0.0.1:1")))
    quoted(wait_refusal(workspace, "connection refused"))


def test_not_enough_memory(workspace: Workspace) -> None:
    workspace.add(gpu_pod("p", {"gpu": 1, "gpumem": 2_000_000}))
    quoted(workspace.wait_event("p", "FilteringFailed", "CardInsufficientMemory").message)


def test_past_the_webhook(workspace: Workspace) -> None:
    pod = gpu_pod("p", SHARE)
    pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    workspace.add(pod)
    quoted(workspace.wait_event("p", "FailedScheduling", "Insufficient").message)


def test_a_stranger_at_the_plugin(workspace: Workspace) -> None:
    pod = gpu_pod("p", {"gpu": 1})
    pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    workspace.add(pod)
    failed = workspace.wait_phase("p", "Failed")
    assert failed["status"]["reason"] == "UnexpectedAdmissionError"
    quoted(failed["status"]["message"])


def test_name_in_the_node_configuration(cluster: Cluster) -> None:
    (node,) = cluster.nodes.values()
    path = node.folder / "config.json"
    held = path.read_text()
    put(path, json.dumps({"nodeconfig": [{"name": node.name.upper(), "devicesplitcount": 5}]}))
    try:
        quoted(wait_until(lambda: _node_warning(cluster, node.name), PATIENCE_S, "a warning on the node"))
    finally:
        put(path, held)


def put(path: Path, text: str) -> None:
    """All at once: the plugin may read at any moment."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def _node_warning(cluster: Cluster, node: str) -> str:
    events = cluster.api.items("/api/v1/events", fieldSelector=f"involvedObject.name={node}")
    said = {one["message"] for one in events if "config.json" in one.get("message", "")}
    assert len(said) == 1, said
    (message,) = said
    return str(message)


def test_every_quoted_message_was_seen() -> None:
    assert set(QUOTED) == SEEN
