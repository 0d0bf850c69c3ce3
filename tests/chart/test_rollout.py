"""Rolling updates (report B146): a new scheduler is there before an old one goes, and the Service always has one."""

from __future__ import annotations

from tests.chart.rendering import one, render

DEFAULT_GRACE_S = 30


def test_a_new_pod_is_ready_before_an_old_one_goes() -> None:
    strategy = one(render({"scheduler": {"replicas": 2}}), "Deployment")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_two_replicas_may_share_a_node() -> None:
    pod = one(render({"scheduler": {"replicas": 2}}), "Deployment")["spec"]["template"]["spec"]
    [spread] = pod["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert "affinity" not in pod


def test_the_webhook_answers_until_the_service_has_forgotten_the_pod() -> None:
    pod = one(render(), "Deployment")["spec"]["template"]["spec"]
    [extender] = [each for each in pod["containers"] if each["name"] == "vgpu-scheduler-extender"]
    program, seconds = extender["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert 2 < int(seconds) < pod.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S) / 2
