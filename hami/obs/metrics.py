"""Counters and timings of our own decisions, in one registry. Card metrics are gathered in `web.card_metrics`.

Names: spec/contract 3.6 lists upstream's; those here are ours and carry the prefix `hami_scheduler_` or `hami_plugin_`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

registry: Final = CollectorRegistry(auto_describe=False)

verb_seconds: Final = Histogram(
    "hami_scheduler_verb_seconds",
    "Time to answer, by verb",
    ["verb"],
    registry=registry,
    buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 3, 10, 30),
)
filters: Final = Counter("hami_scheduler_filters", "Filter answers, by outcome", ["outcome"], registry=registry)
binds: Final = Counter("hami_scheduler_binds", "Bind answers, by outcome", ["outcome"], registry=registry)
refused_nodes: Final = Counter(
    "hami_scheduler_refused_nodes",
    "Nodes that filter refused, by reason; a node with several reasons counts for each",
    ["reason"],
    registry=registry,
)
token_wait_seconds: Final = Histogram(
    "hami_scheduler_token_wait_seconds",
    "How long binds waited for their node's token, the queue on the node included",
    registry=registry,
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30),
)
tokens_swept: Final = Counter(
    "hami_scheduler_tokens_swept", "Tokens without an owner that were taken off nodes", registry=registry
)
admissions: Final = Counter(
    "hami_scheduler_admissions", "Admission answers, by verdict", ["verdict"], registry=registry
)
leads: Final = Gauge("hami_scheduler_leads", "1 where this replica answers filter and bind", registry=registry)
audit_differences: Final = Gauge(
    "hami_scheduler_audit_differences",
    "Differences that the newest audit found, by source",
    ["source"],
    registry=registry,
)
audit_time_seconds: Final = Gauge(
    "hami_scheduler_audit_time_seconds", "Unix time of the newest audit, by source", ["source"], registry=registry
)
relists: Final = Gauge("hami_scheduler_relists", "Full lists since the start, by kind", ["kind"], registry=registry)
last_event_age_seconds: Final = Gauge(
    "hami_scheduler_last_event_age_seconds", "Age of the newest watch event, by kind", ["kind"], registry=registry
)
controller_restarts: Final = Counter(
    "hami_scheduler_controller_restarts", "Starts of the controllers after a failure", registry=registry
)
device_config_reloads: Final = Counter(
    "hami_scheduler_device_config_reloads",
    "Device configurations that came while running, by outcome: applied, refused",
    ["outcome"],
    registry=registry,
)
device_config_current: Final = Gauge(
    "hami_scheduler_device_config_current",
    "1 where the newest device configuration is in force, 0 where it is wrong and the last good one stays",
    registry=registry,
)
certificate_writes: Final = Counter(
    "hami_scheduler_certificate_writes",
    "Writes of the certificate's Secret, by step: first, stage, promote",
    ["step"],
    registry=registry,
)
authority_not_after_seconds: Final = Gauge(
    "hami_scheduler_authority_not_after_seconds",
    "Unix time at which the newest authority that signed the served certificate ends",
    registry=registry,
)
ca_bundle_repairs: Final = Counter(
    "hami_scheduler_ca_bundle_repairs", "Writes of the webhook configuration's CA bundle", registry=registry
)
ca_bundle_right: Final = Gauge(
    "hami_scheduler_ca_bundle_right",
    "1 where the webhook configuration trusts what is served, 0 where it is gone or cannot be put right",
    registry=registry,
)
certificate_not_after_seconds: Final = Gauge(
    "hami_scheduler_certificate_not_after_seconds", "Unix time at which the served certificate ends", registry=registry
)
