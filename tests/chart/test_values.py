"""Values: HAMi's file unchanged, refusals that a person understands, notes, and the generated files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import chart
from tests.chart import rendering
from tests.chart.nesting import nested
from tests.chart.rendering import CHART, CI_VALUES, UPSTREAM_VALUES, RenderError, images, notes, render, render_text


def leaf_paths(values: dict[str, Any], known: Any, prefix: str = "") -> set[str]:
    """Paths of values down to where the source of the schema has a leaf."""
    found = set()
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and isinstance(known, dict) and isinstance(known.get(key), dict):
            found |= leaf_paths(value, known[key], f"{path}.")
        else:
            found.add(path)
    return found


def test_generated_files_are_current() -> None:
    rendering.helm()
    assert chart.main(["--check"]) == 0


def test_values_and_schema_name_the_same_keys() -> None:
    known = json.loads((CHART / "files" / "values.json").read_text())
    source: dict[str, str] = yaml.safe_load((CHART / "values.schema.yaml").read_text())
    given = leaf_paths(yaml.safe_load((CHART / "values.yaml").read_text()), known["known"])
    wanted = {path for path, leaf in source.items() if not leaf.startswith(("NONE", "optional "))}
    assert given == wanted


def test_upstreams_values_file_holds_every_key_of_upstreams_chart_that_we_know() -> None:
    """Ours are added beside upstream's: a key that is neither in upstream's file nor declared as ours is a typo."""
    known = json.loads((CHART / "files" / "values.json").read_text())
    theirs = leaf_paths(yaml.safe_load(UPSTREAM_VALUES.read_text()), known["known"])
    source: dict[str, str] = yaml.safe_load((CHART / "values.schema.yaml").read_text())
    assert theirs <= set(source), "a key of upstream's file is unknown to the schema"


def test_upstreams_file_renders_and_our_images_are_used() -> None:
    assert images(render(None, UPSTREAM_VALUES)) == {
        "hami-scheduler:0.1.0",
        "hami-device-plugin:0.1.0",
        "mirror.example/google_containers/kube-scheduler:v1.34.4",
    }


def test_keys_without_effect_are_named_with_the_reason() -> None:
    text = notes(None, UPSTREAM_VALUES)
    assert "Values of HAMi's chart without effect here:" in text
    assert "migStrategy" not in text
    assert "scheduler.patch.imageNew: no other image makes the certificate" in text
    assert "names HAMi's own image, which holds other programs" in text
    assert "does not know" not in text, "upstream's own keys are all known"


def test_misspelt_keys_are_named_and_not_fatal() -> None:
    text = notes({"scheduler": {"replicaz": 3}, "device_plugin": {"enabled": True}})
    section = text.partition("does not know")[2]
    assert "  - scheduler.replicaz" in section
    assert "  - device_plugin" in section


def test_default_notes_have_nothing_without_effect() -> None:
    text = notes()
    assert "without effect" not in text
    assert "does not know" not in text
    assert "failurePolicy is Ignore" in text


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        (nested("scheduler.admissionWebhook.failurePolicy", "Fail"), "no pod can be created outside"),
        (nested("scheduler.admissionWebhook.enabled", False), "nothing is checked"),
        (nested("scheduler.admissionWebhook.manageNamespaceSelector", False), "also sees pods of kube-system"),
        (nested("scheduler.kubeScheduler.enabled", False), "nobody elects a leader"),
        (nested("scheduler.patch.enabled", False), "hami certs patch --ca-file"),
        (nested("scheduler.allowDisableControl", True), "lift all limits"),
        (nested("devicePlugin.deviceMemoryScaling", 1.5), "memory is oversold"),
        (nested("devicePlugin.simulate", "t4"), "cards that do not exist"),
    ],
)
def test_risky_choices_are_warned_of(values: dict[str, Any], warning: str) -> None:
    assert warning in notes(values)
    assert warning not in notes()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (nested("scheduler.leaderElect", "maybe"), "at '/scheduler/leaderElect': got string, want boolean"),
        (nested("scheduler.replicas", 0), "at '/scheduler/replicas': minimum: got 0, want 1"),
        (
            nested("scheduler.admissionWebhook.failurePolicy", "ignore"),
            "at '/scheduler/admissionWebhook/failurePolicy': value must be one of 'Ignore', 'Fail'",
        ),
        (nested("resourceName", "gpu"), "at '/resourceName': 'gpu' does not match pattern"),
        (nested("scheduler.nodeLockExpire", "5 minutes"), "at '/scheduler/nodeLockExpire'"),
        (nested("devicePlugin.deviceMemoryScaling", 0), "at '/devicePlugin/deviceMemoryScaling'"),
        (
            nested("devicePlugin.libPath", "/opt/vgpu"),
            'devicePlugin.libPath is "/opt/vgpu", but with global.gpuHookPath',
        ),
        (nested("devicePlugin.monitor.ctrPath", "/x"), 'the folder is "/usr/local/vgpu/containers"'),
        (nested("scheduler.kubeScheduler.image.tag", "v1.24.3"), "kube-scheduler before v1.25 does not read"),
        (nested("scheduler.kubeScheduler.image.tag", "v1.35.0"), "newer than the cluster's v1.34.4"),
        (nested("scheduler.kubeScheduler.image.tag", "latest"), "expected a version as v1.31.4"),
        (
            {"scheduler": {"metricsBindAddress": ":9999", "service": {"monitorTargetPort": 9395}}},
            "a port where nobody listens",
        ),
        (nested("scheduler.metricsBindAddress", "none"), "expected an address and a port, as :9395"),
        (nested("devicePlugin.nvidiaNodeSelector.gpu", True), "at '/devicePlugin/nvidiaNodeSelector/gpu': got boolean"),
        (nested("scheduler.podAnnotations.port", 9395), "at '/scheduler/podAnnotations/port': got number, want string"),
        (nested("devicePlugin.nodeConfiguration.config", '{"nodeconfig": ['), "nodeConfiguration.config is no JSON"),
        (
            {"scheduler": {"hostNetwork": True, "service": {"httpTargetPort": 443}}},
            "a program that is not root cannot listen below 1024",
        ),
    ],
)
def test_wrong_values_are_refused_with_key_value_and_what_is_allowed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RenderError) as refused:
        render_text(values)
    assert message in str(refused.value)


@pytest.mark.parametrize("file", CI_VALUES, ids=lambda path: path.stem)
def test_scenarios_render(file: Path) -> None:
    objects = render(None, file)
    assert {"Deployment", "DaemonSet"} <= {each["kind"] for each in objects}
    assert "does not know" not in notes(None, file)


def test_documents_name_values_that_exist() -> None:
    source: dict[str, str] = yaml.safe_load((CHART / "values.schema.yaml").read_text())
    places = {path.rsplit(".", up)[0] for path in source for up in range(path.count(".") + 1)}
    documents = [
        rendering.ROOT / "docs" / "how-to" / f"{name}.md" for name in ("install", "upgrade", "migrate-from-hami")
    ]
    named = {
        (file.name, match.rstrip("."))
        for file in documents
        for match in re.findall(r"\b(?:scheduler|devicePlugin|admissionPolicy|global)\.[\w.]+", file.read_text())
    }
    assert len(named) > 15
    assert {name for name in named if name[1] not in places} == set()


def test_the_test_pod_asks_for_the_renamed_resources() -> None:
    objects = render(None, CHART / "ci" / "renamed-values.yaml")
    pod = rendering.one(objects, "Pod")
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"example.com/gpu": 1, "example.com/gpumem": 100}
    assert pod["spec"]["schedulerName"] == "sharing-scheduler"
