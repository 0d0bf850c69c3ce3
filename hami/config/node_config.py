"""config.json: what one node's plugin does differently (spec/node 1.4). Upstream's file, read unchanged.

All entries whose name equals the node's name apply in file order. Unlike upstream's merge, a value that is given
counts even when it is 0 or false. Keys are read in any case, as Go does. One file serves all nodes: what is wrong in an
entry for another node is said and does not stop this one.
"""

from __future__ import annotations

import codecs
import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pydantic_core
from pydantic import ConfigDict, Field

from hami.config import reading
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
    nodeconfig: list[dict[str, Any]] | None = None


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
        text = reading.read_bytes(path)
    except FileNotFoundError:
        return NodeConfig(nvidia, notes=(f"node configuration {path} does not exist: global values hold",))
    except OSError as error:
        raise ConfigError(f"node configuration {path} cannot be read: {error}") from error
    try:
        # Editors of some systems begin a file with a mark of its encoding.
        document = _File.model_validate(_lower(pydantic_core.from_json(text.removeprefix(codecs.BOM_UTF8))))
    except ValueError as error:
        raise ConfigError(f"{path}: {_problems(error)}") from error
    return _effective(document.nodeconfig or [], node_name, nvidia, str(path))


def _lower(value: Any) -> Any:
    """The same with keys in lower case."""
    if isinstance(value, dict):
        return {str(key).lower(): _lower(each) for key, each in value.items()}
    return [_lower(each) for each in value] if isinstance(value, list) else value


def _effective(found: list[dict[str, Any]], node_name: str, nvidia: NvidiaConfig, source: str) -> NodeConfig:
    config = NodeConfig(nvidia)
    entries, notes = _entries(found, node_name, source)
    matching = [entry for entry in entries if entry.name == node_name]
    for entry in matching:
        config = _apply(config, entry)
    config = msgspec.structs.replace(config, notes=notes)
    if entries and not matching:
        near = difflib.get_close_matches(node_name, [entry.name for entry in entries], 1, cutoff=0.5)
        hint = f" The nearest is {near[0]!r}: the name must equal the node's name exactly." if near else ""
        note = f"The name in config.json does not match: no entry of {source} is for node {node_name!r}.{hint}"
        return msgspec.structs.replace(config, notes=(*config.notes, note))
    return config


def _entries(found: list[dict[str, Any]], node_name: str, source: str) -> tuple[list[_Entry], tuple[str, ...]]:
    """The entries, and what is wrong in those of other nodes. Raises ConfigError for one of this node."""
    entries, notes = [], []
    for number, each in enumerate(found):
        try:
            entries.append(_Entry.model_validate(each))
        except pydantic.ValidationError as error:
            problem = f"{source}: {_problems(error, f'nodeconfig.{number}.')}"
            if each.get("name") == node_name:
                raise ConfigError(problem) from error
            notes.append(f"{problem}: the entry is not for this node and has no effect here")
    return entries, tuple(notes)


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


def _problems(error: ValueError, prefix: str = "") -> str:
    if isinstance(error, pydantic.ValidationError):
        return "; ".join(_problem(item, prefix) for item in error.errors())
    return f"file: Invalid JSON: {error}"


def _problem(item: Any, prefix: str) -> str:
    where = prefix + ".".join(str(part) for part in item["loc"]) or "file"
    if item["type"] == "extra_forbidden":
        return f"{where}: unknown key{_known_keys(item['loc'], inside_entry=bool(prefix))}"
    found = "" if item["type"] in ("json_invalid", "missing") else f"{item['input']!r}: "
    return f"{where}: {found}{item['msg']}"


def _known_keys(place: tuple[int | str, ...], *, inside_entry: bool) -> str:
    """What may stand there: `filterdevice` would hide no card, and nobody would be told (volcano-vgpu #100)."""
    model: type[pydantic.BaseModel] = _File
    if inside_entry:
        model = _FilterDevices if len(place) > 1 else _Entry
    known = list(model.model_fields)
    near = difflib.get_close_matches(str(place[-1]), known, 1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
