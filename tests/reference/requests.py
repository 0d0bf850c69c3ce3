"""Pod object -> what each container asks for (4.1)."""

from __future__ import annotations

from tests.reference.model import Config, Container, Object, Request
from tests.reference.objects import exact_int, resource, rounded_up

UNSET_PERCENTAGE = 101
INT32_MAX = 2**31 - 1


def containers_of(pod: Object, config: Config) -> list[Container]:
    """All containers in annotation order: init containers (native sidecars at their place), then app containers."""
    spec = pod["spec"]
    found = []
    for item in spec.get("initContainers") or ():
        role = "sidecar" if item.get("restartPolicy") == "Always" else "init"
        found.append(Container(item["name"], role, _request(item, config)))
    found += [Container(item["name"], "app", _request(item, config)) for item in spec.get("containers") or ()]
    return found


def _request(container: Object, config: Config) -> Request | None:
    nums = exact_int(resource(container, config.count_name) or 0)
    if nums is None or nums <= 0:
        return None
    mem = exact_int(resource(container, config.memory_name) or 0)
    if mem is None or not 0 <= mem <= INT32_MAX // max(config.memory_factor, 1):
        return None
    mem *= max(config.memory_factor, 1)
    percentage = _percentage(container, config)
    if mem == 0 and percentage == UNSET_PERCENTAGE:
        mem, percentage = (config.default_memory, percentage) if config.default_memory else (0, 100)
    cores = resource(container, config.cores_name)
    return Request(nums, mem, percentage, config.default_cores if cores is None else rounded_up(cores))


def _percentage(container: Object, config: Config) -> int:
    value = resource(container, config.percentage_name)
    if value is None:
        return UNSET_PERCENTAGE
    number = rounded_up(value)
    if number <= 0:
        return UNSET_PERCENTAGE
    return min(number, 100)
