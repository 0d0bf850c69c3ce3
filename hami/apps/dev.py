"""`hami dev scheduler-config`: the kube-scheduler configuration for an extender at a given URL (workflows 4)."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from hami.config import device_config, flags
from hami.config.flags import Flag
from hami.core.errors import ConfigError
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia

_AN_URL: Final = "expected http://HOST:PORT or https://HOST:PORT"


def _url(text: str) -> str:
    try:
        parts = urllib.parse.urlsplit(text)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise ValueError(_AN_URL) from error
    if not whole or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", text):
        raise ValueError(_AN_URL)
    return text.rstrip("/")


def _time_limit(text: str) -> str:
    """kube-scheduler reads a duration of Go."""
    flags.longer_than(0.001)(text)
    return text.strip()


FLAGS: Final = (
    Flag("extender-url", "where kube-scheduler reaches the extender, http or https", "", _url, metavar="URL"),
    Flag("scheduler-name", "name of the scheduler profile", "hami-scheduler", flags.some, metavar="NAME"),
    Flag("device-config-file", "device-config.yaml, for renamed resources", "", metavar="FILE"),
    Flag("http-timeout", "time limit of one extender call", "30s", _time_limit, metavar="DURATION"),
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
    url = values["extender_url"]
    if not url:
        raise ConfigError(f"--extender-url is required: {_AN_URL}")
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
