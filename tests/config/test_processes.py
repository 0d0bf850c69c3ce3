"""Settings of the two daemons: upstream's flags, what is required, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.apps.device_plugin import effective
from hami.config import device_plugin, scheduler
from hami.core.errors import ConfigError
from hami.core.model import Policies
from hami.web.server import Address, parse_address

UPSTREAM_SCHEDULER = [
    "--http_bind=0.0.0.0:443",
    "--cert_file=/tls/tls.crt",
    "--key_file=/tls/tls.key",
    "--scheduler-name=hami-scheduler",
    "--metrics-bind-address=:9395",
    "--node-scheduler-policy=binpack",
    "--gpu-scheduler-policy=spread",
    "--force-overwrite-default-scheduler=true",
    "--device-config-file=/device-config.yaml",
    "--enable-ascend=true",
    "--enable-iluvatar=false",
    "--leader-elect=false",
    "--node-label-selector=gpu=on",
    "--debug",
    "-v=4",
]


def test_the_charts_arguments_are_taken() -> None:
    settings, ignored = scheduler.load(UPSTREAM_SCHEDULER, {})
    assert settings.listen == (Address(True, "0.0.0.0", 443),)
    assert settings.metrics_listen == Address(False, "", 9395)
    assert settings.policies == Policies()
    assert settings.node_label_selector == (("gpu", "on"),)
    assert settings.verbosity == 5
    assert ignored == ["enable-ascend", "enable-iluvatar"]


def test_two_listeners_with_a_scheme_each() -> None:
    flags = ["--http_bind=https://0.0.0.0:9443", "--http_bind=http://127.0.0.1:8080", "--device-config-file=f"]
    settings, _ = scheduler.load([*flags, "--cert_file=c", "--key_file=k"], {})
    assert settings.listen == (Address(True, "0.0.0.0", 9443), Address(False, "127.0.0.1", 8080))


def test_leader_election_names_kube_schedulers_lease() -> None:
    flags = ["--device-config-file=f", "--leader-elect=true"]
    plain = scheduler.load(flags, {"POD_NAME": "hami-0", "POD_NAMESPACE": "gpu"})[0]
    assert (plain.leader_elect, plain.lease_namespace, plain.lease_name) == (True, "kube-system", "kube-scheduler")
    assert (plain.identity, plain.pod_name, plain.pod_namespace) == ("", "hami-0", "gpu")
    named = [*flags, "--leader-elect-resource-name=hami-scheduler", "--leader-elect-resource-namespace=hami"]
    charts, ignored = scheduler.load(named, {})
    assert (charts.lease_namespace, charts.lease_name, ignored) == ("hami", "hami-scheduler", [])


def test_expiry_by_flag_and_by_environment() -> None:
    flags = ["--device-config-file=f"]
    assert scheduler.load(flags, {})[0].node_lock_timeout_s == 300
    assert scheduler.load(flags, {"HAMI_NODELOCK_EXPIRE": "90s"})[0].node_lock_timeout_s == 90
    both = scheduler.load([*flags, "--node-lock-timeout=1m"], {"HAMI_NODELOCK_EXPIRE": "90s"})
    assert both[0].node_lock_timeout_s == 60


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--device-config-file is required"]),
        (["--device-config-file=f", "--cert_file=c"], ["--key_file", "go together"]),
        (["--device-config-file=f", "--http_bind=nowhere"], ["--http_bind", "'nowhere'", "HOST:PORT"]),
        (["--device-config-file=f", "--http_bind=a:99999"], ["'a:99999'"]),
        (["--device-config-file=f", "--gpu-scheduler-policy=spred"], ["'spred'", "did you mean spread"]),
        (["--device-config-file=f", "--node-scheduler-policy=pack"], ["'pack'", "binpack or spread"]),
        (["--device-config-file=f", "--node-label-selector=gpu"], ["'gpu'", "key=value"]),
        (["--device-config-file=f", "--bogus"], ["'--bogus'"]),
    ],
)
def test_scheduler_refusals(flags: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        scheduler.load(flags, {})
    for word in words:
        assert word in str(refusal.value)


def test_the_plugins_arguments_are_taken(tmp_path: Path) -> None:
    (tmp_path / "device-config.yaml").write_text("nvidia: {deviceSplitCount: 4}")
    flags = [
        f"--config-file={tmp_path / 'device-config.yaml'}",
        "--mig-strategy=mixed",
        "--disable-core-limit=false",
        "-v=4",
    ]
    environment = {"NODE_NAME": "gpu-1", "HOOK_PATH": "/opt/hami", "DEVICE_LIST_STRATEGY": "envvar,cdi-cri"}
    settings, ignored = device_plugin.load([*flags, "--gds-enabled"], environment)
    plugin = effective(settings)
    assert (plugin.node_name, plugin.nvidia.device_split_count) == ("gpu-1", 4)
    assert plugin.vgpu_dir == Path("/opt/hami/vgpu")
    assert plugin.device_list_strategies == ("envvar", "cdi-cri")
    assert plugin.feature_envs == (("NVIDIA_GDS", "enabled"),)
    assert plugin.mig_strategy == "mixed"
    assert "disable-core-limit" in ignored


@pytest.mark.parametrize(
    ("entry", "flag", "strategy", "note"),
    [
        ('{"name": "n"}', "mixed", "mixed", ""),
        ('{"name": "n", "migstrategy": ""}', "mixed", "mixed", ""),
        ('{"name": "n", "migstrategy": "single"}', "none", "single", "migstrategy single of config.json holds"),
        ('{"name": "n", "migstrategy": "none"}', "mixed", "none", "not --mig-strategy mixed"),
        ('{"name": "n", "migstrategy": "none"}', "none", "none", ""),
        ('{"name": "other", "migstrategy": "single"}', "none", "none", "does not match"),
        ('{"name": "n", "migstrategy": "mixed", "operatingmode": "mig"}', "none", "mixed", "has no effect"),
        ('{"name": "n", "operatingmode": "mig"}', "none", "none", ""),
        ('{"name": "n", "operatingmode": "mps"}', "none", "none", "no MPS server is started"),
    ],
)
def test_the_nodes_mig_strategy_and_the_flag(tmp_path: Path, entry: str, flag: str, strategy: str, note: str) -> None:
    (tmp_path / "c.yaml").write_text("nvidia: {deviceSplitCount: 4}")
    (tmp_path / "config.json").write_text(f'{{"nodeconfig": [{entry}]}}')
    flags = [f"--config-file={tmp_path / 'c.yaml'}", f"--node-config-file={tmp_path / 'config.json'}"]
    plugin = effective(device_plugin.load(flags, {"NODE_NAME": "n", "MIG_STRATEGY": flag})[0])
    assert plugin.mig_strategy == strategy
    assert len(plugin.notes) == bool(note)
    assert all(note in each for each in plugin.notes)


def test_mode_mig_needs_a_register_with_profiles(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("nvidia: {deviceSplitCount: 4}")
    (tmp_path / "config.json").write_text('{"nodeconfig": [{"name": "n", "operatingmode": "mig"}]}')
    flags = [f"--config-file={tmp_path / 'c.yaml'}", f"--node-config-file={tmp_path / 'config.json'}"]
    for form, said in (("json", False), ("csv9", True)):
        settings, _ = device_plugin.load([*flags, f"--register-format={form}"], {"NODE_NAME": "n"})
        assert any("cannot say which MIG profiles" in note for note in effective(settings).notes) is said


def test_health_checks_by_environment(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("nvidia: {deviceSplitCount: 4}")
    environment = {"NODE_NAME": "n", "CONFIG_FILE": str(tmp_path / "c.yaml"), "DP_DISABLE_HEALTHCHECKS": "48,79"}
    health = effective(device_plugin.load([], environment)[0]).health
    assert {48, 79} <= health.ignored_xids
    environment["DP_DISABLE_HEALTHCHECKS"] = "all"
    assert not effective(device_plugin.load([], environment)[0]).health.enabled


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--node-name is required"]),
        (["--node-name=n"], ["--device-config-file is required"]),
        (
            ["--node-name=n", "--device-config-file=f", "--device-list-strategy=envar"],
            ["'envar'", "did you mean envvar"],
        ),
        (["--node-name=n", "--device-config-file=f", "--register-format=xml"], ["'xml'", "json"]),
        (["--node-name=n", "--device-config-file=f", "--heartbeat=never"], ["'never'", "on-change"]),
    ],
)
def test_plugin_refusals(flags: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        device_plugin.load(flags, {})
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9395", Address(False, "", 9395)),
        ("[::1]:80", Address(False, "::1", 80)),
        ("https://h:1", Address(True, "h", 1)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text, default_https=False, flag="x") == address


@pytest.mark.parametrize(
    "text", ["", ":", "h", "h:", "h:65536", "h:-1", "h:²", "h:٣", "h:" + "9" * 5000, "[::1:80", "::1]:80", "ftp://h:1"]
)
def test_what_is_no_address_is_told_what_one_is(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--x: .* is no address"):
        parse_address(text, default_https=False, flag="x")
