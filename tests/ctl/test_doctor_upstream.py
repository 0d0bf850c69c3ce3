"""`hami doctor` on clusters that run upstream's HAMi, release by release: sound ones are called sound, and what goes
wrong there by upstream's own doing is found (spec/scheduler 2.1 to 2.8, 11.1)."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.doctor_clusters import (
    ALLOCATED,
    BIND_TIME,
    HANDSHAKE,
    LOCK,
    PHASE,
    REGISTER,
    Obj,
    ago,
    cluster,
    examined,
    node,
    pod,
    stamp,
    told,
)
from tests.ctl.doctor_webhooks import MINE, bundle, configuration, pair, serving

CSV7 = "GPU-a,10,16384,100,NVIDIA-Tesla V100-PCIE-16GB,0,true:"
CSV9 = "GPU-a,10,16384,100,NVIDIA-Tesla V100-PCIE-16GB,0,true,0,hami-core:"
MIG = (
    '[{"id":"GPU-a","count":7,"devmem":81920,"devcore":100,"type":"NVIDIA A100-SXM4-80GB","mode":"mig","migProfiles":'
    '[{"name":"1g.10gb","memoryMB":9728,"core":14,"sliceCount":1,"placements":[{"start":0,"size":1},{"start":1,"size":1'
    '}]}],"health":true}]'
)

STATIC = {"kubernetes.io/config.mirror": "0123", "kubernetes.io/config.source": "file"}


def requested(seconds_ago: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """The scheduler's stamp, in its local time."""
    then = datetime.datetime.fromtimestamp(time.time() - seconds_ago, datetime.timezone(datetime.timedelta(hours=8)))
    return f"Requesting_{then:{form}}"


def upstreams(
    name: str, allocated: str, *, phase: str = "success", running: bool = True, more: Obj | None = None
) -> Obj:
    """A pod as upstream's filter and bind leave it: annotations and label, work list consumed or not."""
    done = phase == "success"
    notes = {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": ago(30),
        ALLOCATED: allocated,
        "hami.io/vgpu-devices-to-allocate": ";;" if done else allocated,
        PHASE: phase,
        BIND_TIME: ago(29),
        **(more or {}),
    }
    made = pod(name, notes, phase="Running" if running else "Pending", labels={"hami.io/vgpu-node": "n1"})
    made["spec"]["schedulerName"] = "hami-scheduler"
    return made


def sound() -> dict[str, list[Obj]]:
    """Made when asked for: its stamps are of now, and the tests may have waited their turn for minutes."""
    return {
        "2.4.1": [
            node({REGISTER: CSV7, HANDSHAKE: requested(20, "%Y.%m.%d %H:%M:%S")}),
            upstreams("a", "GPU-a,NVIDIA,1000,0:;,,0,0:;"),
        ],
        "2.7": [
            node({REGISTER: CSV9, HANDSHAKE: "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777"}),
            upstreams("a", "GPU-a,NVIDIA,1000,0:;;"),
        ],
        "2.9, MIG": [node({REGISTER: MIG, HANDSHAKE: requested(4000)}), upstreams("a", "GPU-a[0-1],NVIDIA,9728,14:;")],
        "2.10, handshake asked long ago": [
            node({HANDSHAKE: requested(86_400)}),
            upstreams("a", "GPU-a,NVIDIA,1000,0:;"),
        ],
        "2.10, by model": [node(), upstreams("a", "GPU-a,NVIDIA,1000,0:;")],
        "2.10, MIG": [
            node({REGISTER: MIG}),
            upstreams(
                "a",
                "GPU-a,NVIDIA,9728,14:;",
                more={
                    "hami.io/vgpu-mig-allocations": '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":'
                    '"1g.10gb","placement":{"start":0,"size":1}}]'
                },
            ),
        ],
        "another vendor's register beside": [
            node(
                {"hami.io/node-dcu-register": "DCU-0,4,32768,100,DCU-Z100,0,true:", "hami.io/node-handshake-dcu": "x"}
            ),
            upstreams("a", "GPU-a,NVIDIA,1000,0:;", more={"hami.io/dcu-devices-allocated": "DCU-0,DCU,1,1:;"}),
        ],
        "between filter and bind": [node(), upstreams("a", "GPU-a,NVIDIA,1000,0:;", phase="", running=False)],
        "between bind and Allocate": [
            node({LOCK: f"{stamp(5)},default,a"}),
            upstreams("a", "GPU-a,NVIDIA,1000,0:;", phase="allocating", running=False),
        ],
        "old lock in use": [
            node({LOCK: stamp(5)}),
            upstreams("a", "GPU-a,NVIDIA,1000,0:;", phase="allocating", running=False),
        ],
    }


def sick() -> dict[str, tuple[list[Obj], tuple[str, str, str], str]]:
    """What upstream's own rules bring about: its numbers in spec/scheduler 11.1."""
    gib16 = "GPU-a,NVIDIA,16384,0:;"
    return {
        "two filters at once took the last slot (30)": (
            [node(), upstreams("a", gib16), upstreams("b", gib16)],
            ("error", "over-allocated", "node n1 card GPU-a"),
            "memory MiB 32768 of 16384",
        ),
        "the lock of a pod that failed (7)": (
            [node({LOCK: f"{stamp(100)},default,a"}), {**upstreams("a", gib16), "status": {"phase": "Failed"}}],
            ("warning", "orphaned-token", "node n1"),
            "owner default/a has ended (Failed)",
        ),
        "a lock that nobody took off": (
            [node({LOCK: f"{stamp(400)},default,a"}), upstreams("a", gib16, phase="allocating", running=False)],
            ("warning", "orphaned-token", "node n1"),
            "was not served within 300 s",
        ),
        "a malformed lock lets every bind fail (2.7)": (
            [node({LOCK: "a,b,c,d"})],
            ("warning", "orphaned-token", "node n1"),
            "is not '<time>,<namespace>,<pod>'",
        ),
        "a register of another release": (
            [node({REGISTER: "GPU-a,10,16384,100,V100:"})],
            ("error", "undecodable", "node n1"),
            "hami.io/node-nvidia-register",
        ),
        "a negative number in an allocation (19)": (
            [node(), upstreams("a", "GPU-a,NVIDIA,-5,0:;")],
            ("error", "undecodable", "pod default/a"),
            "-5",
        ),
        "a plugin that is gone and flaps in the scheduler (13)": (
            [node({HANDSHAKE: requested(100)}, offered="0"), upstreams("a", "GPU-a,NVIDIA,1000,0:;")],
            ("error", "stale-registration", "node n1"),
            "kubelet offers no nvidia.com/gpu",
        ),
        "a static pod, which no scheduler sees": (
            [node(), pod("a", {"kubernetes.io/config.mirror": "0123"}, phase="Failed"), pod("b", STATIC)],
            ("warning", "unaccounted-pod", "pod default/b"),
            "is a static pod",
        ),
        "a pod that the failover gap let through (22)": (
            [node(), pod("a")],
            ("warning", "unaccounted-pod", "pod default/a"),
            "is not counted",
        ),
    }


@pytest.mark.parametrize("release", sound())
async def test_a_sound_cluster_of_upstreams_is_called_sound(tmp_path: Path, release: str) -> None:
    async with serving(MINE, tmp_path / "certs") as port:
        config = configuration({"url": f"https://127.0.0.1:{port}/webhook", "caBundle": bundle(MINE)})
        async with cluster(tmp_path, *sound()[release], config) as client:
            report = await examined(client)
    assert [each for each in report.findings if each.severity != "note"] == []
    assert report.ok
    assert report.cards == 1


@pytest.mark.parametrize("name", sick())
async def test_what_upstream_leaves_behind_is_found_with_what_to_do(tmp_path: Path, name: str) -> None:
    objects, expected, words = sick()[name]
    async with cluster(tmp_path, *objects) as client:
        report = await examined(client)
    assert expected in told(report)
    (finding,) = (each for each in report.findings if (each.severity, each.check, each.subject) == expected)
    assert words in finding.problem
    assert len(finding.advice) > 20
    assert not report.ok


async def test_upstreams_service_has_the_leader_behind_it_only(tmp_path: Path) -> None:
    """Its Service selects `hami.io/scheduler-role: leader`: in the gap after a failover nobody is behind it (22)."""
    served = pair(host="hami-scheduler.default.svc")
    selector = {"app.kubernetes.io/component": "hami-scheduler", "hami.io/scheduler-role": "leader"}
    service: Obj = {"kind": "Service", "metadata": {"name": "hami-scheduler"}, "spec": {"selector": selector}}
    service["spec"]["ports"] = [{"port": 443}]
    reference = {"namespace": "default", "name": "hami-scheduler", "path": "/webhook", "port": 443}
    replica: dict[str, Any] = pod("hami-scheduler-0", labels={**selector, "hami.io/scheduler-role": "follower"})
    replica["spec"] = {"containers": [{"name": "c", "image": "none"}], "nodeName": "n1"}
    replica["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    config = configuration({"service": reference, "caBundle": bundle(served)})
    async with cluster(tmp_path, node(), service, replica, config) as client:
        (finding,) = (each for each in (await examined(client)).findings if each.severity == "error")
    assert finding.check == "webhook"
    assert "no ready pod is behind Service default/hami-scheduler: new pods are created without HAMi" in finding.problem
    assert "hami.io/scheduler-role=leader" in finding.advice
