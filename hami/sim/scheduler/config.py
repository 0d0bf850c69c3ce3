"""Settings of the kube-scheduler stand-in, readable from a KubeSchedulerConfiguration file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from hami.core.errors import ConfigError
from hami.sim.objects import Obj


@dataclass(frozen=True, slots=True)
class ExtenderConfig:
    """One entry of `extenders`; always cache-capable, so it is sent node names only.

    `managed`: resources that make a pod interesting; empty means every pod. `ignored`: those among them that the
    scheduler's own resource check skips. `verify_tls` false is tlsConfig.insecure.
    """

    url_prefix: str
    filter_verb: str = "filter"
    bind_verb: str = "bind"
    managed: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    http_timeout_s: float = 5.0
    ignorable: bool = False
    verify_tls: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The profiles' scheduler names, extenders, sampling and backoff; defaults are kube-scheduler's."""

    scheduler_names: tuple[str, ...] = ("default-scheduler",)
    extenders: tuple[ExtenderConfig, ...] = ()
    percentage_of_nodes_to_score: int = 0
    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    unschedulable_flush_s: float = 300.0
    pop_from_backoff: bool = True
    """SchedulerPopFromBackoffQ, on since 1.33: an idle scheduler does not wait for a refused pod's backoff to end."""

    @property
    def ignored(self) -> frozenset[str]:
        """Resources that the node check skips."""
        return frozenset().union(*(extender.ignored for extender in self.extenders))


_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}


def _duration_s(value: str | int | float) -> float:
    """A metav1.Duration such as `30s`; a bare number is seconds."""
    text = str(value)
    for unit in ("ms", "s", "m"):
        if text.endswith(unit):
            return float(text[: -len(unit)]) * _UNITS_S[unit]
    return float(text)


def _extender(entry: Obj) -> ExtenderConfig:
    if not entry.get("nodeCacheCapable"):
        raise ConfigError("extenders[].nodeCacheCapable: false; the stand-in sends node names only, so it must be true")
    managed = entry.get("managedResources") or []
    return ExtenderConfig(
        url_prefix=entry["urlPrefix"],
        filter_verb=entry.get("filterVerb", ""),
        bind_verb=entry.get("bindVerb", ""),
        managed=frozenset(one["name"] for one in managed),
        ignored=frozenset(one["name"] for one in managed if one.get("ignoredByScheduler")),
        http_timeout_s=_duration_s(entry.get("httpTimeout", 5)),
        ignorable=bool(entry.get("ignorable")),
        verify_tls=not (entry.get("tlsConfig") or {}).get("insecure", False),
    )


def load(path: Path) -> SchedulerConfig:
    """Read a KubeSchedulerConfiguration. Raises ConfigError on what the stand-in cannot do, OSError, YAMLError."""
    document: Obj = yaml.safe_load(path.read_text()) or {}
    profiles = document.get("profiles") or [{}]
    return SchedulerConfig(
        scheduler_names=tuple(profile.get("schedulerName", "default-scheduler") for profile in profiles),
        extenders=tuple(_extender(entry) for entry in document.get("extenders") or []),
        percentage_of_nodes_to_score=int(document.get("percentageOfNodesToScore") or 0),
        initial_backoff_s=float(document.get("podInitialBackoffSeconds") or 1),
        max_backoff_s=float(document.get("podMaxBackoffSeconds") or 10),
    )
