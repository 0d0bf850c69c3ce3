"""Values without a value, of odd text and of extreme size, found by trying every key.

A key with nothing under it takes the chart's default away (helm's rule); text reaches templates that are YAML. helm
must render objects that Kubernetes can read, or name the key: never end with a line number of a template.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml

from hami.config import device_config, device_plugin, monitor, scheduler
from scripts import chart
from tests.chart.rendering import Object, RenderError, container, notes, one, pod_spec, render

LEAVES: Final = sorted(path for path, (kind, _) in chart.leaves().items() if kind != chart.NO_EFFECT)
GROUPS: Final = sorted({path.rpartition(".")[0] for path in LEAVES} - {""})
ODD_TEXTS: Final = ("a\nb", "{{ x }}", "#x", "- x", "*", '"')
SOME_TEXTS: Final = (
    "nameOverride",
    "global.gpuHookPath",
    "global.imageRegistry",
    "schedulerName",
    "scheduler.nodeName",
)
NUMBER_LIKE: Final = ("123", "0x1f", "true", "null")
TEXT_PLACES: Final = ("labels", "annotations", "nodeSelector", "matchLabels", "data")
TEXT_FIELDS: Final = frozenset(
    ("name", "namespace", "schedulerName", "runtimeClassName", "priorityClassName", "nodeName", "secretName", "image")
)


def values(path: str, value: object) -> Object:
    found: Any = value
    for key in reversed(path.split(".")):
        found = {key: found}
    result: Object = found
    return result


def unreadable(place: Any, path: str = "") -> list[str]:
    """Where a field that Kubernetes takes text in has something else."""
    found: list[str] = []
    if isinstance(place, list):
        for index, each in enumerate(place):
            found += unreadable(each, f"{path}[{index}]")
    if not isinstance(place, dict):
        return found
    for key, value in place.items():
        here = f"{path}.{key}"
        if key in TEXT_PLACES and isinstance(value, dict):
            found += [f"{here}.{each}" for each, text in value.items() if not isinstance(text, str)]
        elif key in TEXT_FIELDS and not isinstance(value, str | dict | list):
            found.append(here)
        elif key in ("args", "command"):
            found += [here for each in value if not isinstance(each, str)]
        found += unreadable(value, here)
    return found


def check(objects: list[Object]) -> None:
    """Kubernetes can read what was rendered, and our own processes start with it."""
    assert not [(each["kind"], path) for each in objects for path in unreadable(each)]
    scheduler.load(container(objects, "Deployment", "vgpu-scheduler-extender")["args"][1:], {})
    device_config.parse(one(objects, "ConfigMap", "hami-scheduler-device")["data"]["device-config.yaml"], "chart")
    for name, load in (("device-plugin", device_plugin.load), ("vgpu-monitor", monitor.load)):
        load(container(objects, "DaemonSet", name)["args"][1:], {"NODE_NAME": "n"})


def render_or_named(path: str, value: object, **options: Any) -> list[Object] | None:
    """The objects, or None where helm refused the value in words that name its key."""
    try:
        return render(values(path, value), **options)
    except RenderError as refused:
        text = str(refused)
        assert "YAML parse error" not in text
        assert "nil pointer" not in text
        assert "wrong type" not in text
        assert path.rpartition(".")[2] in text
        return None


@pytest.mark.parametrize("path", LEAVES)
def test_every_key_without_a_value_is_the_default_or_is_named(path: str) -> None:
    """`tolerations:` is none; `schedulerName:` cannot be nothing."""
    objects = render_or_named(path, None)
    if objects is not None and path not in ("devicePlugin.enabled", "devicePlugin.monitor.enabled"):
        check(objects)


@pytest.mark.parametrize("path", GROUPS)
def test_a_group_of_keys_with_nothing_under_it_is_named(path: str) -> None:
    objects = render_or_named(path, None)
    if objects is not None:
        check(objects)


@pytest.mark.parametrize("path", ["scheduler", "devicePlugin.image", "global", "devices", "scheduler.service"])
def test_the_name_of_an_empty_group_is_in_the_message(path: str) -> None:
    with pytest.raises(RenderError, match=f"missing property '{path.rpartition('.')[2]}'"):
        render(values(path, None))


@pytest.mark.parametrize(
    "path", [path for path, (kind, _) in chart.leaves().items() if kind in ("name", "name+", "label")]
)
@pytest.mark.parametrize("text", NUMBER_LIKE)
def test_names_that_look_like_numbers_stay_text(path: str, text: str) -> None:
    objects = render_or_named(path, text)
    if objects is not None and path not in ("nameOverride", "fullnameOverride"):
        check(objects)
    elif objects is not None:
        assert not [(each["kind"], where) for each in objects for where in unreadable(each)]


@pytest.mark.parametrize("name", NUMBER_LIKE)
def test_a_release_and_a_namespace_that_look_like_numbers(name: str) -> None:
    objects = render(release=name, namespace=name)
    assert {each["metadata"]["labels"]["app.kubernetes.io/instance"] for each in objects} == {name}
    assert not [(each["kind"], path) for each in objects for path in unreadable(each)]


@pytest.mark.parametrize("path", LEAVES)
def test_a_colon_in_a_value_ends_in_no_broken_template(path: str) -> None:
    render_or_named(path, "a: b")


@pytest.mark.parametrize("text", ODD_TEXTS)
@pytest.mark.parametrize("path", SOME_TEXTS)
def test_odd_text_ends_in_no_broken_template(path: str, text: str) -> None:
    render_or_named(path, text)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("scheduler.replicas", 1_000_000),
        ("scheduler.certificates.days", 1_000_000),
        ("devicePlugin.deviceSplitCount", 1_000_000),
        ("devicePlugin.deviceMemoryScaling", 1_000_000),
        ("scheduler.kubeQPS", 1_000_000),
        ("scheduler.service.httpPort", 65_536),
        ("devicePlugin.service.httpPort", 0),
        ("devices.nvidia.libCudaLogLevel", 1_000_000),
        ("devicePlugin.opsBindAddress", ":0"),
        ("devicePlugin.opsBindAddress", "9396"),
        ("device-config.content", "# nothing"),
        ("device-config.content", "abc"),
        ("scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy", "random"),
        ("devicePlugin.deviceListStrategy", "envvars"),
        ("devicePlugin.extraEnvs", [{"name": "A", "value": 1}]),
        ("scheduler.tolerations", ["Exists"]),
        ("scheduler.nodeSelector", {"zone": "a b"}),
        ("global.imagePullSecrets", [{}]),
    ],
)
def test_what_kubernetes_or_our_processes_would_refuse_is_refused_by_helm(path: str, number: object) -> None:
    with pytest.raises(RenderError) as refused:
        render(values(path, number))
    assert path.rpartition(".")[2] in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("devicePlugin.deviceSplitCount", 10_000),
        ("devicePlugin.preConfiguredDeviceMemory", 12_345_678),
        ("devicePlugin.deviceListStrategy", "cdi-annotations,envvar"),
        ("scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy", "numa,spread"),
        ("global.imageRegistry", "registry.example:5000/team/gpu"),
        ("scheduler.extender.image.tag", "v1@sha256:" + "0" * 64),
        ("global.imagePullSecrets", ["one", {"name": "two"}]),
        ("devicePlugin.extraEnvs", {"LD_DEBUG": 1}),
        ("devicePlugin.nvidiaNodeSelector", {"gpu": ""}),
        ("devicePlugin.pluginPath", "/var/lib/k0s/kubelet/device-plugins"),
        ("scheduler.nodeLockRetryTimeout", "1m30s"),
    ],
)
def test_values_at_the_edge_of_what_is_allowed_work(path: str, value: object) -> None:
    check(render(values(path, value)))


def test_a_key_of_no_value_means_none_where_there_can_be_none() -> None:
    objects = render(
        {
            "devicePlugin": {"tolerations": None, "nvidiaNodeSelector": None, "priorityClassName": None},
            "scheduler": {"podSecurityContext": None, "hostNetwork": None, "extender": {"extraArgs": None}},
        }
    )
    spec = pod_spec(objects, "DaemonSet")
    assert {"tolerations", "nodeSelector", "priorityClassName"}.isdisjoint(spec)
    assert "securityContext" not in pod_spec(objects, "Deployment")
    assert "hostNetwork" not in pod_spec(objects, "Deployment")
    check(objects)


def test_every_pattern_is_one_that_helm_and_python_read_alike() -> None:
    """helm's are Go's regular expressions: no look-ahead."""
    text = (chart.CHART / "values.schema.json").read_text()
    patterns = set(re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', text))
    assert patterns
    for pattern in patterns:
        source = yaml.safe_load(pattern)
        re.compile(source)
        assert "(?" not in source


OLD_VALUES: Final = {
    "version": "v2.4.1",
    "imagePullSecrets": ["a"],
    "scheduler": {
        "kubeScheduler": {"imageTag": "v1.28.0", "imagePullPolicy": "Always"},
        "extender": {"imagePullPolicy": "Always"},
        "customWebhook": {"enabled": True, "host": "10.0.0.1", "port": 31998, "path": "/webhook"},
        "patch": {"imagePullPolicy": "Always", "runAsUser": None},
    },
    "devicePlugin": {
        "imagePullPolicy": "Always",
        "monitorimage": "projecthami/hami",
        "monitorctrPath": "/usr/local/vgpu/containers",
        "nvidianodeSelector": {"gpu": "on"},
        "mlunodeSelector": {"mlu": "on"},
        "hygonnodeSelector": {"dcu": "on"},
        "service": {"schedulerPort": 31992},
    },
}


def test_hunted_1378_keys_of_hami_2_4_are_named_with_their_new_place() -> None:
    """Its documentation had `--set scheduler.kubeScheduler.imageTag=…`, which people still type (#377, #815, #1378)."""
    said = notes(OLD_VALUES)
    assert "does not know" not in said
    for old, new in {
        "scheduler.kubeScheduler.imageTag": "scheduler.kubeScheduler.image.tag",
        "scheduler.customWebhook": "scheduler.admissionWebhook.customURL",
        "devicePlugin.monitorimage": "devicePlugin.monitor.image",
        "devicePlugin.service.schedulerPort": "devicePlugin.service.httpPort",
    }.items():
        assert any(line.strip().startswith(f"- {old}: ") and new in line for line in said.splitlines())


@pytest.mark.parametrize("path", ["scheduler.kubeScheduler.image", "scheduler.extender.image", "devicePlugin.image"])
def test_images_as_text_as_in_hami_2_4_are_refused_by_name(path: str) -> None:
    with pytest.raises(RenderError, match=rf"at '/{path.replace('.', '/')}': got string, want object"):
        render(values(path, "projecthami/hami"))
