"""Rights: exactly what the code calls, no more. A call that is new in the code fails here until both know it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from hami.config import scheduler
from hami.config.upkeep import ObjectName
from tests.chart.rendering import CHART, Object, one, render

HAMI: Final = Path(__file__).resolve().parents[2] / "hami"
ROOMS: Final = ("apps", "certs", "deviceplugin", "kube", "monitor", "placement", "web")
"""Rooms whose code runs in the cluster. `ctl` runs with the rights of the person who calls it."""

CALLS: Final = {
    "certs/publish.py": {"GET": 1, "PATCH": 1},
    "certs/secret.py": {"GET": 1, "POST": 1, "PATCH": 1},
    "kube/events.py": {"POST": 1, "PATCH": 1},
    "kube/leader.py": {"GET": 1},
    "kube/listing.py": {"GET": 2},
    "kube/writer.py": {"GET": 2, "POST": 1, "PATCH": 2},
    "apps/quota_watch.py": {"GET": 1},
}
"""Requests by method and file. Who adds one: does the chart's role of that process allow it?"""
ADMISSION: Final = "mutatingwebhookconfigurations"
REFLECTED: Final = {
    "apps/scheduler.py": {"NODES", "PODS"},
    "apps/quota_watch.py": {"RESOURCE_QUOTAS"},
    "apps/monitor.py": {"PODS"},
    "deviceplugin/node_watch.py": {"NODES", "PODS"},
    "kube/leader.py": {"leases_in"},
}
"""What is listed and watched, by file."""
FOLLOWED: Final = {"config_map": "configmaps", "secret": "secrets", "webhook_configuration": ADMISSION}
"""What kopf lists and watches, each with a field selector for one name: by the functions of controllers/watched.py.
tests/controllers looks at its requests."""
WRITER: Final = {
    "get_node": ("nodes", "get"),
    "get_pod": ("pods", "get"),
    "list_pods_on_node": ("pods", "list"),
    "pod_uids_on_node": ("pods", "list"),
    "list_disruption_budgets": ("poddisruptionbudgets", "list"),
    "pod_pages": ("pods", "list"),
    "patch_node_annotations": ("nodes", "patch"),
    "drop_node_annotation": ("nodes", "patch"),
    "patch_pod_annotations": ("pods", "patch"),
    "bind": ("pods/binding", "create"),
}
"""What a method of KubeWriter needs."""

SCHEDULER: Final = {
    ("nodes", "get"),
    ("nodes", "list"),
    ("nodes", "watch"),
    ("nodes", "patch"),
    ("pods", "get"),
    ("pods", "list"),
    ("pods", "watch"),
    ("pods/binding", "create"),
    ("events", "create"),
    ("events", "patch"),
    ("resourcequotas", "get"),
    ("resourcequotas", "list"),
    ("resourcequotas", "watch"),
}
CERTIFICATE: Final = {("mutatingwebhookconfigurations", verb) for verb in ("get", "list", "watch", "patch")}
PLUGIN: Final = {
    ("nodes", "get"),
    ("nodes", "list"),
    ("nodes", "watch"),
    ("nodes", "patch"),
    ("pods", "get"),
    ("pods", "list"),
    ("pods", "watch"),
    ("pods", "patch"),
    ("events", "create"),
    ("events", "patch"),
}


def sources() -> dict[str, str]:
    files = (path for room in ROOMS for path in sorted((HAMI / room).rglob("*.py")))
    return {str(path.relative_to(HAMI)): path.read_text() for path in files}


def rights(role: Object) -> set[tuple[str, str]]:
    return {(what, verb) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}


def test_every_request_in_the_code_is_known_here() -> None:
    found = {
        file: dict(Counter(re.findall(r"\b_?request\(\s*\"(\w+)\"|_Call\(\s*\"(?!GET)(\w+)\"", text)))
        for file, text in sources().items()
    }
    plain = {file: {method: n for (method, _), n in calls.items()} for file, calls in found.items() if calls}
    plain.pop("apps/doctor.py", None)
    assert plain == CALLS


def test_every_list_and_watch_in_the_code_is_known_here() -> None:
    found = {
        file: set(re.findall(r"\bReflector(?:\[\w+\])?\(\s*[\w.]+,\s*paths\.(\w+)", text))
        for file, text in sources().items()
    }
    assert {file: what for file, what in found.items() if what} == REFLECTED


def test_every_object_that_kopf_follows_is_known_here_and_may_be_listed_and_watched() -> None:
    called_ = {file: set(re.findall(rf"\b({'|'.join(FOLLOWED)})\(", text)) for file, text in sources().items()}
    assert {file: what for file, what in called_.items() if what} == {"apps/upkeep.py": set(FOLLOWED)}
    objects = render()
    allowed = rights(one(objects, "ClusterRole", "hami-scheduler")) | rights(one(objects, "Role", "hami-scheduler"))
    assert {(kind, verb) for kind in FOLLOWED.values() for verb in ("list", "watch")} <= allowed


def test_arguments_name_the_objects_that_the_role_allows() -> None:
    objects = render()
    container = next(
        each
        for each in one(objects, "Deployment", "hami-scheduler")["spec"]["template"]["spec"]["containers"]
        if each["name"] == "vgpu-scheduler-extender"
    )
    settings, _ = scheduler.load(container["args"][1:], {})
    upkeep = settings.upkeep
    assert (upkeep.tls_secret, upkeep.device_config_map) == (
        ObjectName("kube-system", "hami-scheduler-tls"),
        ObjectName("kube-system", "hami-scheduler-device"),
    )
    assert upkeep.webhook_configuration == "hami-webhook"
    assert upkeep.certificate_hosts[0] == "hami-scheduler.kube-system.svc"
    for name, kind in (("hami-scheduler-device", "ConfigMap"), ("hami-scheduler-tls", "Secret")):
        assert one(objects, kind, name)["metadata"]["namespace"] == "kube-system"


def test_every_method_of_the_writer_is_known_here() -> None:
    text = (HAMI / "kube" / "writer.py").read_text()
    assert set(re.findall(r"async def ([a-z]\w+)", text)) == set(WRITER)


def test_scheduler_has_the_rights_that_its_calls_need_and_no_others() -> None:
    objects = render()
    assert rights(one(objects, "ClusterRole", "hami-scheduler")) == SCHEDULER | CERTIFICATE
    used = {WRITER[name] for file, text in sources().items() if file.startswith("placement/") for name in called(text)}
    assert used - {("pods", "patch"), ("poddisruptionbudgets", "list")} <= SCHEDULER
    assert ("poddisruptionbudgets", "list") in used, "for --preempt only"
    assert ("pods", "patch") in used, "labels and fences: tried, and done without where it is forbidden"


def test_plugin_has_the_rights_that_its_calls_need_and_no_others() -> None:
    assert rights(one(render(), "ClusterRole", "hami-device-plugin")) == PLUGIN
    used = {
        WRITER[name] for file, text in sources().items() if file.startswith("deviceplugin/") for name in called(text)
    }
    assert used <= PLUGIN


def called(text: str) -> set[str]:
    return set(re.findall(r"\.(" + "|".join(WRITER) + r")\(", text)) & set(WRITER)


@pytest.mark.parametrize(
    ("values", "may"),
    [({}, False), ({"patchInFilter": True}, True), ({"patchPods": True}, True)],
)
def test_scheduler_may_patch_pods_only_where_asked(values: dict[str, Any], may: bool) -> None:
    role = one(render({"scheduler": values}), "ClusterRole", "hami-scheduler")
    assert (("pods", "patch") in rights(role)) is may


def test_budgets_are_listed_only_for_preemption() -> None:
    for preemption in (False, True):
        role = one(render({"scheduler": {"preemption": preemption}}), "ClusterRole", "hami-scheduler")
        assert (("poddisruptionbudgets", "list") in rights(role)) is preemption


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, {("leases", v) for v in ("create", "get", "list", "watch", "update")} | {("pods", "patch")}),
        ({"roleLabel": False}, {("leases", v) for v in ("create", "get", "list", "watch", "update")}),
        ({"leaderElect": False}, set()),
    ],
)
def test_rights_in_our_own_namespace(values: dict[str, Any], wanted: set[tuple[str, str]]) -> None:
    objects = render({"scheduler": values})
    followed = {("secrets", verb) for verb in ("get", "list", "watch", "patch")}
    followed |= {("configmaps", verb) for verb in ("list", "watch")}
    role = one(objects, "Role", "hami-scheduler")
    assert rights(role) == wanted | followed
    names = {rule["resources"][0]: rule.get("resourceNames") for rule in role["rules"]}
    assert names["secrets"] == ["hami-scheduler-tls"]
    assert names["configmaps"] == ["hami-scheduler-device"]
    configurations = [
        rule["resourceNames"]
        for rule in one(objects, "ClusterRole", "hami-scheduler")["rules"]
        if rule["resources"] == [ADMISSION]
    ]
    assert configurations == [["hami-webhook"]]


def test_other_certificates_need_no_rights_on_secrets_and_only_a_look_at_the_webhook() -> None:
    objects = render(None, CHART / "ci" / "own-certificate-values.yaml")
    look = {(ADMISSION, "list"), (ADMISSION, "watch")}
    assert rights(one(objects, "ClusterRole", "hami-scheduler")) == SCHEDULER | look
    without = render(None, CHART / "ci" / "no-webhook-values.yaml")
    assert not {right for right in rights(one(without, "ClusterRole", "hami-scheduler")) if right[0] == ADMISSION}
    assert not {right for right in rights(one(objects, "Role", "hami-scheduler")) if right[0] == "secrets"}


def test_no_role_has_wildcards() -> None:
    for role in (each for each in render() if each["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
