"""Settings of the monitor: upstream's flags and variables, both meanings of the hook path, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.config import monitor
from hami.core.errors import ConfigError
from hami.web.server import Address


def test_upstreams_arguments_and_variables_are_taken() -> None:
    environment = {"NODE_NAME": "n1", "HOOK_PATH": "/usr/local/vgpu", "HAMI_RESYNC_INTERVAL": "1m30s"}
    arguments = ["--metrics-bind-address=:9394", "--legacy-metrics=true", "--logtostderr", "-v=4"]
    settings, ignored = monitor.load(arguments, environment)
    assert (settings.node_name, settings.vgpu_dir) == ("n1", Path("/usr/local/vgpu"))
    assert (settings.metrics_listen, settings.legacy_metrics) == (Address(False, "", 9394), True)
    assert (settings.resync_interval_s, settings.verbosity) == (90.0, 4)
    assert ignored == ["logtostderr"]


def test_defaults() -> None:
    settings, ignored = monitor.load(["--node-name=n1"], {})
    assert settings.metrics_listen == Address(False, "", 9394)
    assert (settings.legacy_metrics, settings.resync_interval_s, settings.nvml) == (False, 300.0, "real")
    assert (settings.vgpu_dir, ignored) == (Path("/usr/local/vgpu"), [])


@pytest.mark.parametrize(
    ("hook_path", "folder"),
    [("/usr/local", "/usr/local/vgpu"), ("/usr/local/vgpu", "/usr/local/vgpu"), ("/opt/x/", "/opt/x/vgpu")],
)
def test_hook_path_of_the_plugin_or_of_upstreams_monitor(hook_path: str, folder: str) -> None:
    assert monitor.vgpu_dir(Path(hook_path)) == Path(folder)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--node-name"),
        (["--node-name=n", "--metrics-bind-address=nine"], "metrics-bind-address"),
        (["--node-name=n", "--resync-interval=5"], "resync-interval"),
        (["--node-name=n", "--legacy-metric"], "did you mean --legacy-metrics"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        monitor.load(arguments, {})
