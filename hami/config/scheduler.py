"""Settings of `hami scheduler`. Flags are upstream's where upstream has them (spec/scheduler 1.6, 1.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from hami.config import flags, shared_flags, upkeep
from hami.config.flags import Flag
from hami.config.upkeep import UpkeepSettings
from hami.core.errors import ConfigError
from hami.core.model import Policies
from hami.core.policies import unknown_policy
from hami.core.policy_words import DEVICE_POLICIES, NODE_POLICIES
from hami.web.server import Address, parse_address


class SchedulerSettings(msgspec.Struct, frozen=True):
    """Everything that `hami scheduler` is told."""

    kubeconfig: str
    listen: tuple[Address, ...]
    cert_file: Path | None
    key_file: Path | None
    metrics_listen: Address | None
    scheduler_name: str
    policies: Policies
    device_config_file: Path
    node_label_selector: tuple[tuple[str, str], ...]
    qps: float
    burst: int
    api_timeout_s: float
    node_lock_timeout_s: float
    node_lock_retry_timeout_s: float
    force_overwrite_default_scheduler: bool
    allow_disable_control: bool
    warn_only: bool
    patch_in_filter: bool
    all_feasible: bool
    preempt: bool
    leader_elect: bool
    lease_name: str
    lease_namespace: str
    identity: str
    pod_name: str
    pod_namespace: str
    verbosity: int
    upkeep: UpkeepSettings
    legacy_metrics: bool


FLAGS: Final = (
    shared_flags.KUBECONFIG,
    Flag(
        "http_bind",
        "listener, repeatable: [http://|https://]HOST:PORT",
        ("127.0.0.1:8080",),
        repeatable=True,
        metavar="ADDRESS",
    ),
    Flag("cert_file", "serving certificate (PEM); reloaded when it changes", "", metavar="FILE"),
    Flag("key_file", "key of the serving certificate (PEM)", "", metavar="FILE"),
    Flag("metrics-bind-address", "listener of /metrics; empty: none", ":9395", metavar="ADDRESS"),
    Flag(
        "scheduler-name",
        "spec.schedulerName given to pods, and the source of events",
        "hami-scheduler",
        flags.some,
        metavar="NAME",
    ),
    Flag(
        "node-scheduler-policy",
        "node policy of pods without the annotation",
        "binpack",
        flags.Choice(*NODE_POLICIES),
    ),
    Flag(
        "gpu-scheduler-policy",
        "card policies of pods without the annotation, comma separated: " + ", ".join(DEVICE_POLICIES),
        "spread",
        metavar="WORDS",
    ),
    Flag("device-config-file", "device-config.yaml (upstream's file, unchanged)", "", metavar="FILE"),
    Flag("node-label-selector", "use only nodes with these labels: k=v,k2=v2", (), flags.labels, metavar="LABELS"),
    Flag(
        "kube-qps",
        "API requests a second; four times as many for tokens and for Bindings",
        50.0,
        flags.number(1, 10_000),
        metavar="N",
    ),
    Flag("kube-burst", "API requests at once", 100, flags.whole(1, 10_000), metavar="N"),
    Flag("kube-timeout", "seconds until an API call is given up", 10.0, flags.number(0, 600), metavar="S"),
    shared_flags.NODE_LOCK_TIMEOUT,
    Flag(
        "node-lock-retry-timeout",
        "how long a bind waits for its node's token",
        3.0,
        flags.duration_s,
        metavar="DURATION",
    ),
    Flag(
        "force-overwrite-default-scheduler",
        "take over pods that name default-scheduler",
        True,
        flags.boolean,
        switch=True,
    ),
    Flag(
        "patch-in-filter",
        "write allocations in filter, as upstream does, for others who read them; needs the right to patch pods",
        False,
        flags.boolean,
        switch=True,
    ),
    Flag(
        "all-feasible",
        "filter answers with every node that fits, so that kube-scheduler's own scoring decides; nothing is reserved",
        False,
        flags.boolean,
        switch=True,
    ),
    Flag(
        "preempt",
        "serve kube-scheduler's preempt verb; needs the right to list poddisruptionbudgets",
        False,
        flags.boolean,
        switch=True,
    ),
    Flag("allow-disable-control", "let pods set CUDA_DISABLE_CONTROL", False, flags.boolean, switch=True),
    Flag("admission-warn-only", "warn instead of refusing where upstream accepts", False, flags.boolean, switch=True),
    Flag(
        "leader-elect",
        "several replicas: only the one whose kube-scheduler holds its lease answers filter and bind",
        False,
        flags.boolean,
        switch=True,
    ),
    Flag("leader-elect-resource-name", "name of kube-scheduler's lease", "kube-scheduler", metavar="NAME"),
    Flag("leader-elect-resource-namespace", "namespace of that lease", "kube-system", metavar="NAMESPACE"),
    Flag("identity", "host name that the lease's holder must have; empty: this host's name", ""),
    Flag("pod-name", "own pod, which gets the role label; empty: none", "", env="POD_NAME", metavar="NAME"),
    Flag("pod-namespace", "namespace of the own pod", "", env="POD_NAMESPACE", metavar="NAMESPACE"),
    *upkeep.FLAGS,
    shared_flags.LEGACY_METRICS,
    Flag("debug", "upstream's switch: the same as -v=5", False, flags.boolean, switch=True),
    shared_flags.VERBOSITY,
)

IGNORED: Final = (
    *shared_flags.KLOG,
    "profiling",
    "default-mem",
    "default-cores",
    "default-gpu",
    "enable-ascend",
    "enable-iluvatar",
    "cambricon-mlu-name",
    "cambricon-mlu-memory",
    "cambricon-mlu-cores",
    "dcu-name",
    "dcu-memory",
    "dcu-cores",
    "mthreads-name",
    "mthreads-memory",
    "mthreads-cores",
    "metax-name",
    "metax-vcount",
    "metax-vcore",
    "metax-vmemory",
    "sgpu-topology-aware",
    "enflame-resource-name-drs-gcu",
    "enflame-resource-name-vgcu",
    "kunlun-name",
    "kunlun-vcount",
    "kunlun-vmemory",
)
"""Flags of upstream that have no effect here yet; each one given is named in a log line at start."""


def load(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[SchedulerSettings, list[str]]:
    """Settings and the ignored flags that were given. Raises ConfigError."""
    values, ignored = flags.parse(
        "hami scheduler", "Mutating webhook and kube-scheduler extender.", FLAGS, argv, environment, ignored=IGNORED
    )
    if not values["device_config_file"]:
        raise ConfigError("--device-config-file is required: the path of device-config.yaml")
    files = upkeep.file_pair(values)
    https = files is not None or bool(values["tls_secret"])
    device_policies = tuple(word.strip() for word in values["gpu_scheduler_policy"].split(",") if word.strip())
    metrics = values["metrics_bind_address"]
    policies = Policies(node=values["node_scheduler_policy"], device=device_policies or ("spread",))
    if problem := unknown_policy(policies):
        raise ConfigError(f"--gpu-scheduler-policy: {problem}")
    settings = SchedulerSettings(
        kubeconfig=values["kubeconfig"],
        listen=tuple(parse_address(text, default_https=https, flag="http_bind") for text in values["http_bind"]),
        cert_file=files[0] if files else None,
        key_file=files[1] if files else None,
        metrics_listen=parse_address(metrics, default_https=False, flag="metrics-bind-address") if metrics else None,
        scheduler_name=values["scheduler_name"],
        policies=policies,
        device_config_file=Path(values["device_config_file"]),
        node_label_selector=values["node_label_selector"],
        qps=values["kube_qps"],
        burst=values["kube_burst"],
        api_timeout_s=values["kube_timeout"] or 10.0,
        node_lock_timeout_s=values["node_lock_timeout"],
        node_lock_retry_timeout_s=values["node_lock_retry_timeout"],
        force_overwrite_default_scheduler=values["force_overwrite_default_scheduler"],
        allow_disable_control=values["allow_disable_control"],
        warn_only=values["admission_warn_only"],
        patch_in_filter=values["patch_in_filter"],
        all_feasible=values["all_feasible"],
        preempt=values["preempt"],
        leader_elect=values["leader_elect"],
        lease_name=values["leader_elect_resource_name"] or "kube-scheduler",
        lease_namespace=values["leader_elect_resource_namespace"] or "kube-system",
        identity=values["identity"],
        pod_name=values["pod_name"],
        pod_namespace=values["pod_namespace"],
        verbosity=max(values["v"], 5 if values["debug"] else 0),
        upkeep=upkeep.load(values),
        legacy_metrics=values["legacy_metrics"],
    )
    return settings, ignored
