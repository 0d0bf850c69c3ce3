"""`hami dev scheduler-config`: the kube-scheduler configuration for an extender at a given URL (workflows 4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from hami.config import device_config, flags
from hami.config.flags import Flag
from hami.core.errors import ConfigError
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia

FLAGS: Final = (
    Flag("extender-url", "where kube-scheduler reaches the extender, http or https", "", metavar="URL"),
    Flag("scheduler-name", "name of the scheduler profile", "hami-scheduler"),
    Flag("device-config-file", "device-config.yaml, for renamed resources", "", metavar="FILE"),
    Flag("http-timeout", "time limit of one extender call", "30s", lambda text: text, metavar="DURATION"),
    Flag("kubeconfig", "kubeconfig that kube-scheduler shall use", "", metavar="FILE"),
    Flag("leader-elect", "elect a leader among several kube-schedulers", False, flags.boolean, switch=True),
)
USAGE: Final = "usage: hami dev scheduler-config --extender-url URL [FLAGS]\n\nPrints a KubeSchedulerConfiguration."


def main(argv: Sequence[str]) -> int:
    """Prints the configuration. Raises ConfigError."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if argv else 2
    if argv[0] != "scheduler-config":
        raise ConfigError(f"unknown command {argv[0]!r}: expected scheduler-config")
    values, _ = flags.parse(
        "hami dev scheduler-config", "Prints a KubeSchedulerConfiguration.", FLAGS, argv[1:], flags.environment()
    )
    nvidia = NvidiaConfig()
    if values["device_config_file"]:
        nvidia = device_config.read(Path(values["device_config_file"])).nvidia
    print(yaml.safe_dump(scheduler_config(values, Nvidia(nvidia).managed_resources), sort_keys=False), end="")
    return 0


def scheduler_config(values: dict[str, Any], resources: Sequence[str]) -> dict[str, Any]:
    """The object of spec/scheduler 1.8 for Kubernetes >= 1.25."""
    url = values["extender_url"].rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--extender-url: {url!r} is not allowed: expected http://HOST:PORT or https://HOST:PORT")
    https = url.startswith("https://")
    extender = {
        "urlPrefix": url,
        "filterVerb": "filter",
        "bindVerb": "bind",
        "weight": 1,
        "nodeCacheCapable": True,
        "enableHTTPS": https,
        "httpTimeout": values["http_timeout"],
        **({"tlsConfig": {"insecure": True}} if https else {}),
        "managedResources": [{"name": name, "ignoredByScheduler": True} for name in resources],
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": values["leader_elect"]},
        **({"clientConnection": {"kubeconfig": values["kubeconfig"]}} if values["kubeconfig"] else {}),
        "profiles": [{"schedulerName": values["scheduler_name"]}],
        "extenders": [extender],
    }
