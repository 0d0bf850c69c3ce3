"""Admission of one container and of NVIDIA's pod annotations (spec/scheduler 3.2, reports B08 to B22)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from hami.core.codec import parse_bool
from hami.core.device_type import ContainerChange, Refusal
from hami.core.objects import Container, EnvVar
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.names import (
    DOMAIN,
    ENV_AUDIT,
    ENV_CORE_POLICY,
    ENV_DISABLE_CONTROL,
    ENV_MEMORY_LIMIT,
    ENV_PRELOAD,
    ENV_SHARED_CACHE,
    ENV_SM_LIMIT,
    ENV_TASK_PRIORITY,
    ENV_VISIBLE_DEVICES,
    MODES,
    NUMA_BIND,
    VGPU_MODE,
)
from hami.vendors.nvidia.requests import (
    WHOLE_CARD_PERCENT,
    read_cores,
    read_count,
    read_memory_mib,
    read_percentage,
    read_priority,
    resource,
)

_DEFAULT_POLICY: Final = "default"
_NO_DEVICES: Final = "none"
_LIFTING_PREFIXES: Final = (ENV_MEMORY_LIMIT, ENV_SM_LIMIT)
_LIFTING_NAMES: Final = (ENV_PRELOAD, ENV_AUDIT, ENV_SHARED_CACHE)
_SUSPECT_STARTS: Final = tuple({f"\n{name[:6]}" for name in (*_LIFTING_PREFIXES, *_LIFTING_NAMES, ENV_DISABLE_CONTROL)})


def admit(container: Container, config: NvidiaConfig) -> ContainerChange | Refusal:
    """Rules 1 to 7 of spec/scheduler 3.2 for one container, after every number in it was checked.

    Differences on purpose: resources count in limits and in requests; a count of 0 asks for nothing (report B22);
    GPU_CORE_UTILIZATION_POLICY goes only into containers that ask for cards; a user's NVIDIA_VISIBLE_DEVICES is
    removed from those, because it would override what the device plugin sets.
    """
    for read in (read_percentage, read_count, read_memory_mib, read_cores, read_priority):
        value = read(container, config)
        if isinstance(value, Refusal):
            return value
    priority = resource(container, config.resource_priority_name)
    env: tuple[tuple[str, str], ...] = ()
    if priority is not None:
        env = ((ENV_TASK_PRIORITY, str(read_priority(container, config))),)
    limits = _limits(container, config)
    if isinstance(limits, Refusal):
        return limits
    if limits is None:
        env += hiding_env(container, config, foreign=False)
        return ContainerChange(found=False, env=env, warnings=tuple(_warnings_without_cards(container, config)))
    if config.gpu_core_policy not in ("", _DEFAULT_POLICY):
        env += ((ENV_CORE_POLICY, config.gpu_core_policy),)
    sets_visible = ENV_VISIBLE_DEVICES in [variable.name for variable in container.env or ()]
    return ContainerChange(
        found=True,
        limits=limits,
        env=env,
        runtime_class_name=config.runtime_class_name,
        drop_env=(ENV_VISIBLE_DEVICES,) if sets_visible else (),
        warnings=tuple(_warnings(container, sets_visible=sets_visible)),
    )


def hiding_env(container: Container, config: NvidiaConfig, *, foreign: bool) -> tuple[tuple[str, str], ...]:
    """`NVIDIA_VISIBLE_DEVICES=none` for a container without cards, where the operator wants that (report B22).

    Containers that may get NVIDIA cards by another way are left alone, because the variable would take these from them:
    a resource claim, another resource of the same domain (`nvidia.com/mig-1g.10gb`), and in pods of another scheduler
    any extended resource.
    """
    asked = container.resources
    if not config.overwrite_env or (asked is not None and asked.claims):
        return ()
    cards = (config.resource_count_name.partition("/")[0] + "/", DOMAIN)
    ours = () if foreign else config.resource_names
    for name, quantity in {**container.requests, **container.limits}.items():
        other = name not in ours and (name.startswith(cards) or (foreign and _is_extended(name)))
        if other and str(quantity) != "0":
            return ()
    return ((ENV_VISIBLE_DEVICES, _NO_DEVICES),)


def check_env(container: Container, *, allow_disable_control: bool) -> Refusal | None:
    """Refuses variables that would lift limits: their own limits, preloading, another region file, the opt-out."""
    # Containers may have hundreds of variables: they are looked at one by one only where one may be meant.
    names = "\n" + "\n".join([variable.name for variable in container.env or ()])
    if not any(start in names for start in _SUSPECT_STARTS):
        return None
    for variable in container.env or ():
        if _lifts_limits(variable, allow_disable_control=allow_disable_control):
            problem = "which would lift the limits of its devices: remove it"
            return Refusal(f"container {container.name} sets {variable.name}, {problem}")
    return None


def check_annotations(annotations: Mapping[str, str]) -> Refusal | None:
    """Refuses a NUMA flag that is no boolean and a mode list that names no mode."""
    numa = annotations.get(NUMA_BIND, "").strip()
    if numa and parse_bool(numa) is None:
        return Refusal(f"invalid {NUMA_BIND} value '{numa}': must be true or false")
    modes = annotations.get(VGPU_MODE, "").strip()
    if modes and not any(mode in modes for mode in MODES):
        return Refusal(f"invalid {VGPU_MODE} value '{modes}': must contain one of {', '.join(MODES)}")
    return None


def _warnings(container: Container, *, sets_visible: bool) -> Iterator[str]:
    if sets_visible:
        yield f"container {container.name}: {ENV_VISIBLE_DEVICES} is removed, the device plugin sets it"
    if container.env_from:
        problem = f"if it sets {ENV_VISIBLE_DEVICES}, the container sees other cards than its own"
        yield f"container {container.name}: what envFrom brings cannot be checked here; {problem}"


def _warnings_without_cards(container: Container, config: NvidiaConfig) -> Iterator[str]:
    """Of a count of 0 beside an amount: the pod stays with its scheduler, to which no node offers the amount."""
    wish = _wish_without_count(container, config)
    if wish and str(resource(container, wish)) != "0":
        count = config.resource_count_name
        yield f"container {container.name} asks for {wish} of no card: {count} is 0. Leave both out, or ask for a card"


def _is_extended(resource_name: str) -> bool:
    return "/" in resource_name and not resource_name.startswith("kubernetes.io/")


def _limits(container: Container, config: NvidiaConfig) -> tuple[tuple[str, str], ...] | Refusal | None:
    """Resources to add; None if the container asks for no card."""
    added: list[tuple[str, str]] = []
    written = resource(container, config.resource_count_name)
    if written is None:
        wish = _wish_without_count(container, config)
        if not wish:
            return None
        if config.default_gpu_num <= 0:
            name = config.resource_count_name
            return Refusal(f"container {container.name} asks for {wish} without {name}: add {name}")
        added.append((config.resource_count_name, str(config.default_gpu_num)))
    elif read_count(container, config) == 0:
        return None
    if resource(container, config.resource_core_name) is None and _whole_memory(container, config):
        added.append((config.resource_core_name, str(WHOLE_CARD_PERCENT)))
    return tuple(added)


def _wish_without_count(container: Container, config: NvidiaConfig) -> str:
    names = (config.resource_core_name, config.resource_memory_name, config.resource_memory_percentage_name)
    asked = [name for name in names if resource(container, name) is not None]
    return next((name for name in asked if str(resource(container, name)) != "0"), asked[0] if asked else "")


def _whole_memory(container: Container, config: NvidiaConfig) -> bool:
    """Default exclusive cores: the whole memory of a card is asked for (spec/scheduler 3.2, no. 5)."""
    percent = read_percentage(container, config)
    if percent is not None:
        return percent == WHOLE_CARD_PERCENT
    return resource(container, config.resource_memory_name) is None


def _lifts_limits(variable: EnvVar, *, allow_disable_control: bool) -> bool:
    if variable.name in _LIFTING_NAMES or variable.name.startswith(_LIFTING_PREFIXES):
        return True
    if variable.name != ENV_DISABLE_CONTROL or allow_disable_control:
        return False
    # A value from elsewhere cannot be read here and may be true.
    return variable.value_from is not None or parse_bool(variable.value) is True
