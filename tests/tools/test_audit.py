"""The auditor's own rules: what it must call a fault, and what it must not."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools import audit
from tests.tools.audit import Use

REGISTER = json.dumps(
    [
        {"id": "GPU-a", "count": 10, "devmem": 16384, "devcore": 100, "type": "NVIDIA A100", "health": True},
        {"id": "GPU-b", "index": 1, "count": 2, "devmem": 16384, "devcore": 100, "type": "NVIDIA A100", "health": True},
    ]
)


def node(register: str = REGISTER, name: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": register}}}


def pod(name: str, allocated: str, **changes: Any) -> dict[str, Any]:
    containers = allocated.count(";") - len(changes.get("init", []))
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"hami.io/vgpu-devices-allocated": allocated, "hami.io/vgpu-node": "n1"},
        },
        "spec": {
            "nodeName": changes.get("node", "n1"),
            "initContainers": changes.get("init", []),
            "containers": [{"name": f"c{index}"} for index in range(containers)],
        },
        "status": {"phase": changes.get("phase", "Running"), "initContainerStatuses": changes.get("statuses", [])},
    }


A = "GPU-a,NVIDIA"
B = "GPU-b,NVIDIA"
INIT = [{"name": "i"}]
SIDECAR = [{"name": "s", "restartPolicy": "Always"}]
INIT_DONE = [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]
INIT_FAILED = [{"name": "i", "state": {"terminated": {"exitCode": 3}}}]


@pytest.mark.parametrize(
    ("pods", "fault"),
    [
        pytest.param([pod("p", f"{A},16384,100:;")], None, id="whole card"),
        pytest.param([pod("p", f"{A},8000,50:;"), pod("q", f"{A},8384,50:;")], None, id="exactly full"),
        pytest.param([pod("p", f"{A},8000,0:;"), pod("q", f"{A},8385,0:;")], "memory_mib 16385 of 16384", id="memory"),
        pytest.param([pod("p", f"{A},1,60:;"), pod("q", f"{A},1,41:;")], "cores 101 of 100", id="cores"),
        pytest.param([pod(f"p{i}", f"{B},1,1:;") for i in range(3)], "slots 3 of 2", id="slots"),
        pytest.param([pod("p", f"{A},1,100:;"), pod("q", f"{A},1,0:;")], "exclusive to default/p", id="exclusive"),
        pytest.param([pod("p", f"{A},9000,0:;{A},9000,0:;")], "memory_mib 18000", id="two containers on one card"),
        pytest.param([pod("p", f"{A},9000,0:;;{B},9000,0:;")], None, id="empty container between"),
        pytest.param([pod("p", f"{A},9000,0:;"), pod("q", f"{A},9000,0:;", phase="Succeeded")], None, id="finished"),
        pytest.param([pod("p", f"{A},9000,0:;"), pod("q", f"{A},9000,0:;", phase="Failed")], None, id="failed"),
        pytest.param(
            [pod("p", f"{A},9000,0:;"), pod("q", f"{A},9000,0:;", node=None)], "memory_mib 18000", id="reserved"
        ),
        pytest.param([pod("p", f"{A},9000,0:;{A},9000,0:;", init=INIT)], None, id="init, then app: the larger"),
        pytest.param(
            [pod("p", f"{A},16000,0:;{A},100,0:;", init=INIT), pod("q", f"{A},385,0:;")], "16385", id="init peak"
        ),
        pytest.param(
            [pod("p", f"{A},16000,0:;{A},100,0:;", init=INIT, statuses=INIT_DONE), pod("q", f"{A},385,0:;")],
            None,
            id="init done",
        ),
        pytest.param(
            [pod("p", f"{A},16000,0:;{A},100,0:;", init=INIT, statuses=INIT_FAILED), pod("q", f"{A},385,0:;")],
            "16385",
            id="init failed holds on",
        ),
        pytest.param([pod("p", f"{A},9000,0:;{A},9000,0:;", init=SIDECAR)], "18000", id="sidecar runs beside"),
        pytest.param(
            [pod("p", f"{A},9000,0:;{A},9000,0:;;", init=SIDECAR + INIT)], "18000", id="sidecar beside a later init"
        ),
        pytest.param(
            [pod("p", f"{A},9000,0:;{A},9000,0:;;", init=INIT + SIDECAR)], None, id="sidecar after an earlier init"
        ),
        pytest.param([pod("p", "GPU-x,NVIDIA,1,1:;")], "not registered", id="unknown card"),
        pytest.param([pod("p", "GPU-a,NVIDIA,1:;")], "has 3 fields", id="missing field"),
        pytest.param([pod("p", "GPU-a,NVIDIA,x,1:;")], "invalid literal", id="no number"),
        pytest.param([pod("p", f"{A},5,5:;,,0,0:;")], None, id="v2.4.1's empty device"),
    ],
)
def test_faults(pods: list[dict[str, Any]], fault: str | None) -> None:
    report = audit.audit([node()], pods)
    if fault is None:
        assert report.faults == []
    else:
        assert len(report.faults) == 1
        assert fault in report.faults[0]


def test_old_allocation_lists_app_containers_only() -> None:
    old = pod("p", f"{A},9000,0:;{A},100,0:;", init=INIT)
    old["spec"]["containers"].append({"name": "second"})
    (hold,) = audit.audit([node()], [old]).holders[("n1", "GPU-a")]
    assert hold.use == Use(2, 9100, 0)


@pytest.mark.parametrize(
    ("text", "card"),
    [
        ("GPU-a,10,32768,100,V100,0,true:", audit.Card(0, "V100", Use(10, 32768, 100), True)),
        ("GPU-a,10,32768,100,V100,0,false,3,hami-core:", audit.Card(3, "V100", Use(10, 32768, 100), False)),
        ('[{"id":"GPU-a"}]', audit.Card(0, "", Use(0, 0, 0), False)),
    ],
)
def test_register_forms(text: str, card: audit.Card) -> None:
    assert audit.read_register(text) == [("GPU-a", card)]


@pytest.mark.parametrize("text", ["GPU-a,10,1:", "[{}]", "[", "GPU-a,x,1,1,V,0,true:"])
def test_unreadable_register_is_a_fault(text: str) -> None:
    (fault,) = audit.audit([node(text)], []).faults
    assert "node n1" in fault


def test_two_nodes_may_use_the_same_card_id() -> None:
    pods = [pod("p", f"{A},9000,0:;"), pod("q", f"{A},9000,0:;", node="n2")]
    assert audit.audit([node(), node(name="n2")], pods).faults == []


def test_text_names_card_pod_and_summary() -> None:
    text = audit.audit([node()], [pod("p", f"{A},16384,100:;")]).text()
    assert "n1 0 GPU-a NVIDIA A100: slots 1/10, memory 16384/16384 MiB, cores 100/100" in text
    assert "    default/p: 1 slots, 16384 MiB, 100 cores" in text
    assert text.endswith("2 cards, 1 holds, 0 faults")


def test_imports_nothing_but_the_standard_library_and_yaml() -> None:
    source = ast.parse(Path(audit.__file__).read_text())
    names = {alias.name for item in ast.walk(source) if isinstance(item, ast.Import) for alias in item.names}
    names |= {item.module or "" for item in ast.walk(source) if isinstance(item, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"yaml"}
