"""Names on the wire that belong to no single vendor: annotation and label keys, phases, event reasons.

Source: spec/contract 3.2, 3.3, 3.5 and spec/scheduler 2.1, 2.2. Vendor keys and resource names live with the vendor.
"""

from __future__ import annotations

from typing import Final

NODE_LOCK: Final = "hami.io/mutex.lock"
"""Node annotation: the hand-off token `<RFC 3339>,<namespace>,<pod>` (core.token)."""
BIND_EPOCH: Final = "hami.io/bind-epoch"
"""Node annotation: which scheduler in which term wrote the token last, and for which Binding (core.token)."""
ROOM_FREED: Final = "hami.io/room-freed"
"""Node annotation: Unix seconds; written to make kube-scheduler try refused pods again (design 3)."""
DEVICE_CORDON: Final = "hami.io/device-cordon"
"""Node annotation: comma list of card ids that take no new shares."""

VGPU_NODE: Final = "hami.io/vgpu-node"
"""Pod annotation and label: the chosen node."""
VGPU_TIME: Final = "hami.io/vgpu-time"
"""Pod annotation: Unix seconds of the decision."""
BIND_PHASE: Final = "hami.io/bind-phase"
BIND_TIME: Final = "hami.io/bind-time"
MIG_ALLOCATIONS: Final = "hami.io/vgpu-mig-allocations"

NODE_SCHEDULER_POLICY: Final = "hami.io/node-scheduler-policy"
GPU_SCHEDULER_POLICY: Final = "hami.io/gpu-scheduler-policy"
DEVICE_SCORING_WEIGHTS: Final = "hami.io/device-scoring-weights"

PHASE_ALLOCATING: Final = "allocating"
PHASE_SUCCESS: Final = "success"
PHASE_FAILED: Final = "failed"

WEBHOOK_NAME: Final = "vgpu.hami.io"
"""The entry of a MutatingWebhookConfiguration that is HAMi's, upstream's and ours (spec/contract 3.4)."""
WEBHOOK_LABEL: Final = "hami.io/webhook"
WEBHOOK_IGNORE: Final = "ignore"
SCHEDULER_ROLE_LABEL: Final = "hami.io/scheduler-role"
ROLE_LEADER: Final = "leader"
ROLE_FOLLOWER: Final = "follower"

MAX_LABEL_VALUE_CHARS: Final = 63
"""A node name longer than this is no legal label value, so the label is left out (spec/scheduler 11.1 no. 23)."""

EVENT_FILTERING_FAILED: Final = "FilteringFailed"
EVENT_FILTERING_SUCCEED: Final = "FilteringSucceed"
EVENT_BINDING_FAILED: Final = "BindingFailed"
EVENT_BINDING_SUCCEED: Final = "BindingSucceed"
EVENT_AUDIT_DIFFERENCE: Final = "AuditDifference"
EVENT_PODS_REJECTED: Final = "PodsRejected"
EVENT_INVALID_CONFIGURATION: Final = "InvalidConfiguration"
EVENT_WEBHOOK_REPAIRED: Final = "WebhookRepaired"
EVENT_WEBHOOK_UNTRUSTED: Final = "WebhookUntrusted"
