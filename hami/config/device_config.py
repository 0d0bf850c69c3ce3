"""device-config.yaml: upstream's file, read unchanged into strict models (spec/scheduler 7.1, 7.2).

A key that nobody knows is refused with the nearest known one; keys of older releases and sections of vendors that
are not served are accepted and named in `notes`.
"""

from __future__ import annotations

import difflib
import reprlib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import pydantic
from pydantic import ConfigDict, Field

from hami.config import reading, unique_keys
from hami.core import yaml_text
from hami.core.errors import ConfigError
from hami.core.model import INT32_MAX
from hami.vendors.nvidia.config import MigAllowlistEntry, NvidiaConfig

OTHER_VENDORS: Final = frozenset(
    {
        "cambricon",
        "hygon",
        "metax",
        "mthreads",
        "iluvatar",
        "iluvatars",
        "enflame",
        "kunlun",
        "awsneuron",
        "amd",
        "vastai",
        "biren",
        "vnpus",
    }
)
NVIDIA_PLUGIN_KEYS: Final = frozenset({"version", "flags", "resources", "sharing", "imex"})
"""Top-level keys of NVIDIA's own plugin configuration, which upstream reads from the same file (spec/node 1.3)."""
RETIRED_KEYS: Final = frozenset({"knownMigGeometries"})

Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
ResourceName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]

_MOST_TOLD: Final = 5
_MOST_SHOWN_CHARS: Final = 200
_repr: Final = reprlib.Repr()
_repr.maxstring = _repr.maxother = _MOST_SHOWN_CHARS
_MOST_NAME_CHARS: Final = 63
_NAMES: Final = (
    "resource_count_name",
    "resource_memory_name",
    "resource_memory_percentage_name",
    "resource_core_name",
    "resource_priority_name",
)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_DEFAULTS: Final = NvidiaConfig()


class _Strict(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=_camel)


class _MigAllowlist(_Strict):
    models: Annotated[list[str], Field(min_length=1)]
    profiles: Annotated[list[Annotated[str, Field(pattern=r"^[0-9]+g\..+$")]], Field(min_length=1)]


class _Nvidia(_Strict):
    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """`defaultGPUNum: yes` is no number, though Python takes it for 1."""
        if isinstance(value, bool) and info.field_name and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("true and false are no value for this key")
        return value

    resource_count_name: ResourceName = _DEFAULTS.resource_count_name
    resource_memory_name: ResourceName = _DEFAULTS.resource_memory_name
    resource_memory_percentage_name: ResourceName = _DEFAULTS.resource_memory_percentage_name
    resource_core_name: ResourceName = _DEFAULTS.resource_core_name
    resource_priority_name: ResourceName = _DEFAULTS.resource_priority_name
    overwrite_env: bool = _DEFAULTS.overwrite_env
    default_memory: Count = _DEFAULTS.default_memory
    default_cores: Annotated[int, Field(ge=0, le=100)] = _DEFAULTS.default_cores
    default_gpu_num: Annotated[Count, Field(alias="defaultGPUNum")] = _DEFAULTS.default_gpu_num
    memory_factor: Annotated[int, Field(ge=1, le=INT32_MAX)] = _DEFAULTS.memory_factor
    device_split_count: Annotated[int, Field(ge=1, le=10_000)] = _DEFAULTS.device_split_count
    device_memory_scaling: Annotated[float, Field(gt=0, le=1000)] = _DEFAULTS.device_memory_scaling
    device_core_scaling: Annotated[float, Field(gt=0, le=1000)] = _DEFAULTS.device_core_scaling
    pre_configured_device_memory: Count = _DEFAULTS.pre_configured_device_memory
    lib_cuda_log_level: Annotated[str, Field(pattern=r"^[0-9]*$", coerce_numbers_to_str=True)] = (
        _DEFAULTS.lib_cuda_log_level
    )
    enable_numa_topology: bool = _DEFAULTS.enable_numa_topology
    disable_core_limit: bool = _DEFAULTS.disable_core_limit
    gpu_core_policy: Literal["default", "force", "disable", ""] = "default"
    runtime_class_name: Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", max_length=253)] = (
        _DEFAULTS.runtime_class_name
    )
    mig_profile_allowlist: list[_MigAllowlist] = []


class DeviceConfig(msgspec.Struct, frozen=True):
    """What device-config.yaml says, and what in it has no effect here."""

    nvidia: NvidiaConfig
    notes: tuple[str, ...] = ()


def read(path: Path) -> DeviceConfig:
    """Reads and checks the file. Raises ConfigError naming file, key, value and what is allowed."""
    try:
        text = reading.read_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"device configuration {path} cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> DeviceConfig:
    """The same from text. Raises ConfigError."""
    try:
        document, twice = unique_keys.load(text, "nvidia")
    except yaml_text.LOADER_ERRORS as error:
        raise ConfigError(f"{source} is no YAML: {_short(str(error) or type(error).__name__)}") from error
    if not isinstance(document, dict) or not any(document.values()):
        raise ConfigError(f"{source}: all configurations are empty; expected at least the section nvidia")
    if twice:
        raise ConfigError(f"{source}: {'; '.join(twice[:5])}")
    known = {"nvidia", *OTHER_VENDORS, *NVIDIA_PLUGIN_KEYS}
    for key in document:
        if key not in known:
            raise ConfigError(f"{source}: unknown section {_shown(key)}{_near(str(key), known)}")
    notes = [f"{source}: section {key} is read and has no effect here" for key in document if key in OTHER_VENDORS]
    section = document.get("nvidia") or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{source}: nvidia: expected a mapping, found {_shown(section)}")
    retired = sorted(RETIRED_KEYS & section.keys())
    notes += [f"{source}: nvidia.{key} has no effect any more: use migProfileAllowlist" for key in retired]
    return DeviceConfig(_nvidia({k: v for k, v in section.items() if k not in RETIRED_KEYS}, source), tuple(notes))


def _nvidia(section: dict[str, Any], source: str) -> NvidiaConfig:
    try:
        model = _Nvidia.model_validate({key: value for key, value in section.items() if value is not None})
    except pydantic.ValidationError as error:
        raise ConfigError(f"{source}: {_problems('nvidia', error)}") from error
    _check_names(model, source)
    values = model.model_dump(exclude={"mig_profile_allowlist"})
    allowlist = tuple(
        MigAllowlistEntry(tuple(item.models), tuple(item.profiles)) for item in model.mig_profile_allowlist
    )
    return NvidiaConfig(**values, mig_profile_allowlist=allowlist)


def _check_names(model: _Nvidia, source: str) -> None:
    """Raises ConfigError where two resources have one name: their amounts would be taken for each other. And for a name
    that Kubernetes keeps for itself (its `IsExtendedResourceName`): kubelet would not let the plugin register it."""
    seen: dict[str, str] = {}
    for field in _NAMES:
        name, key = getattr(model, field), _camel(field)
        if "kubernetes.io/" in name or name.startswith("requests."):
            problem = "Kubernetes keeps names of kubernetes.io, and those that begin with requests., for itself"
            raise ConfigError(f"{source}: nvidia.{key}: {name!r} is not allowed: {problem}")
        if len(name.partition("/")[2]) > _MOST_NAME_CHARS:
            problem = f"expected at most {_MOST_NAME_CHARS} characters after the /"
            raise ConfigError(f"{source}: nvidia.{key}: {name!r} is not allowed: {problem}")
        if name in seen:
            raise ConfigError(
                f"{source}: nvidia.{key}: {name!r} is the name of {seen[name]} already; each needs its own"
            )
        seen[name] = key


def _problems(section: str, error: pydantic.ValidationError) -> str:
    """The first few: the text goes into a log line and an event."""
    more = error.error_count() - _MOST_TOLD
    told = [_problem(section, item) for item in error.errors(include_url=False)[:_MOST_TOLD]]
    return "; ".join(told + ([f"and {more} more"] if more > 0 else []))


def _problem(section: str, item: Any) -> str:
    path = ".".join([section, *(_short(str(part)) for part in item["loc"])])
    if item["type"] == "extra_forbidden":
        known = {_alias(name, field) for name, field in _Nvidia.model_fields.items()}
        return f"{path}: unknown key{_near(str(item['loc'][-1]), known)}"
    return f"{path}: {_shown(item['input'])} is not allowed: {_short(item['msg'])}"


def _shown(value: Any) -> str:
    """A value of the file as Python writes it, however large it is, and however often it contains itself."""
    try:
        return _short(_repr.repr(value))
    except ValueError:
        return "a number of thousands of digits"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN_CHARS else f"{text[:_MOST_SHOWN_CHARS]}… ({len(text)} characters)"


def _alias(name: str, field: pydantic.fields.FieldInfo) -> str:
    return field.alias or _camel(name)


def _near(key: str, known: set[str]) -> str:
    key = key[:_MOST_NAME_CHARS]
    near = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
