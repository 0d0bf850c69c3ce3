"""config.json: what one node's plugin does differently (spec/node 1.4). Upstream's file, read unchanged.

All entries whose name equals the node's name apply in file order. Unlike upstream's merge, a value that is given
counts even when it is 0 or false.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
from pydantic import ConfigDict, Field

from hami.core.errors import ConfigError
from hami.core.model import INT32_MAX
from hami.vendors.nvidia.config import NvidiaConfig


class _FilterDevices(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    uuid: list[str] | None = None
    index: list[Annotated[int, Field(ge=0)]] | None = None


class _Entry(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    operatingmode: Literal["hami-core", "mig", "mps", ""] | None = None
    devicememoryscaling: Annotated[float, Field(ge=0, le=1000)] | None = None
    devicecorescaling: Annotated[float, Field(ge=0, le=1000)] | None = None
    devicesplitcount: Annotated[int, Field(ge=0, le=10_000)] | None = None
    preconfigureddevicememory: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    libcudaloglevel: Annotated[str, Field(pattern=r"^[0-9]*$", coerce_numbers_to_str=True)] | None = None
    enablenumatopology: bool | None = None
    migstrategy: Literal["none", "single", "mixed", ""] | None = None
    filterdevices: _FilterDevices | None = None
    enablegetpreferredallocation: bool | None = None


class _File(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    nodeconfig: list[_Entry] | None = None


class NodeConfig(msgspec.Struct, frozen=True):
    """The effective values of one node, and notes worth an event."""

    nvidia: NvidiaConfig
    mode: str = "hami-core"
    mig_strategy: str = ""
    """none, single or mixed; empty where the node has none of its own."""
    hidden_uuids: tuple[str, ...] = ()
    hidden_indexes: tuple[int, ...] = ()
    preferred_allocation: bool = True
    notes: tuple[str, ...] = ()


def read(path: Path | None, node_name: str, nvidia: NvidiaConfig) -> NodeConfig:
    """The node's values over the global `nvidia` section. Raises ConfigError naming entry, key and value.

    Without a file, or without an entry for this node, the global values hold; the latter is said in `notes`.
    """
    if path is None:
        return NodeConfig(nvidia)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return NodeConfig(nvidia, notes=(f"node configuration {path} does not exist: global values hold",))
    except OSError as error:
        raise ConfigError(f"node configuration {path} cannot be read: {error}") from error
    try:
        document = _File.model_validate_json(text)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_problem(item) for item in error.errors())) from error
    return _effective(document.nodeconfig or [], node_name, nvidia, str(path))


def _effective(entries: list[_Entry], node_name: str, nvidia: NvidiaConfig, source: str) -> NodeConfig:
    config = NodeConfig(nvidia)
    matching = [entry for entry in entries if entry.name == node_name]
    for entry in matching:
        config = _apply(config, entry)
    if entries and not matching:
        near = difflib.get_close_matches(node_name, [entry.name for entry in entries], 1, cutoff=0.5)
        hint = f" The nearest is {near[0]!r}: the name must equal the node's name exactly." if near else ""
        note = f"The name in config.json does not match: no entry of {source} is for node {node_name!r}.{hint}"
        return msgspec.structs.replace(config, notes=(*config.notes, note))
    return config


def _apply(config: NodeConfig, entry: _Entry) -> NodeConfig:
    changes: dict[str, Any] = {
        "device_memory_scaling": entry.devicememoryscaling or None,
        "device_core_scaling": entry.devicecorescaling or None,
        "device_split_count": entry.devicesplitcount or None,
        "pre_configured_device_memory": entry.preconfigureddevicememory,
        "lib_cuda_log_level": entry.libcudaloglevel,
        "enable_numa_topology": entry.enablenumatopology,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    hidden = entry.filterdevices
    uuids = tuple(text.strip() for text in (hidden and hidden.uuid) or () if text.strip())
    preferred = entry.enablegetpreferredallocation
    return msgspec.structs.replace(
        config,
        nvidia=msgspec.structs.replace(config.nvidia, **given),
        mode=entry.operatingmode or config.mode,
        mig_strategy=entry.migstrategy or config.mig_strategy,
        hidden_uuids=uuids or config.hidden_uuids,
        hidden_indexes=tuple((hidden and hidden.index) or config.hidden_indexes),
        preferred_allocation=config.preferred_allocation if preferred is None else preferred,
    )


def _problem(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"]) or "file"
    found = "" if item["type"] in ("extra_forbidden", "json_invalid", "missing") else f"{item['input']!r}: "
    return f"{where}: {found}{item['msg']}"
