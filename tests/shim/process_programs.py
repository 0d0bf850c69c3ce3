"""Which test programs there are for one process and for several."""

from __future__ import annotations

ONE_PROCESS = (
    "unknown_free",
    "null_outputs",
    "no_context",
    "address_reuse",
    "many_blocks",
    "threads_start_together",
    "async_churn",
    "managed_is_managed",
    "process_untouched",
    "export_table_untouched",
)
SEVERAL = (
    "fork_leaves_parent",
    "fork_child_tries",
    "fork_before_init",
    "exec_forgets",
    "vfork_exec",
    "ipc_charged_once",
    "vmm_import_charged_once",
)
REPLAYS = (
    "expandable_segments",
    "nccl_buffers",
    "graph_capture",
    "captured_temporaries",
    "graph_without_trim",
    "pinned_offload",
    "caching_allocator",
)
