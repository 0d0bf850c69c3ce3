"""Hardware profiles of simulated cards: YAML files, read and checked.

A profile is a name and a list of cards:

    name: a100
    driver_version: 580.65.06
    cards:
      - model: NVIDIA A100-SXM4-40GB      # NVML's name
        count: 4                          # that many equal cards, 1 if left out
        memory_mib: 40960                 # null: the memory query is not supported
        numa: [0, 0, 1, 1]                # one number, or one per card; -1 for none
        nvlink: 4                         # links from each of these cards to each other one
        nvswitch_links: 0                 # links of each of these cards to a switch
        mig: false
        mig_layout: [[3, 0], [1, 4]]      # instances that each of these cards has at first: slices and start
        used_mib: 0                       # memory in use on each of these cards
        gpu_percent: 0                    # how busy each of them is
        uuids: [GPU-...]                  # else made from the node's name, equal at every start
        mig_profiles:
          - {slices: 1, memory_mib: 4864, slice_count: 1, multiprocessors: 14, placements: [[0, 1], [1, 1]]}
    faults:                               # optional; read again whenever the file changes
      driver: ok                          # gone: every call fails; slow: every call takes 30 s
      lost: [1]                           # indexes of cards that do not answer
      unreadable: [2]                     # indexes of cards whose query fails
      damaged: [3]                        # indexes of cards with memory that cannot be repaired
      ecc: [{index: 0, id: a}]            # double-bit errors; each `id` happens once
      no_events: [1]                      # indexes of cards that report no error events
      xids: [{index: 0, xid: 79, id: a}]  # error events; each `id` happens once
      in_use: [MIG-...]                   # cards and MIG devices that a process uses
      mig_step_s: 0.0                     # how long each step of making or taking away an instance lasts
      mig_refused: ""                     # what the driver says to every such step; empty: it works
"""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import ConfigDict, Field

import hami
from hami.core import yaml_text
from hami.core.errors import ConfigError

_MOST_TOLD: Final = 5


class _Model(pydantic.BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class MigProfile(_Model):
    """One `Ng.…` profile."""

    slices: int
    media: bool = False
    memory_mib: int
    slice_count: int
    multiprocessors: int = 0
    placements: list[tuple[int, int]] = []


class CardKind(_Model):
    """Equal cards."""

    model: str
    count: Annotated[int, Field(ge=1, le=64)] = 1
    memory_mib: Annotated[int, Field(ge=0)] | None
    numa: int | list[int] = 0
    nvlink: int = 0
    nvswitch_links: int = 0
    used_mib: int = 0
    gpu_percent: int = 0
    mig: bool = False
    uuids: list[str] = []
    mig_layout: list[tuple[int, int]] = []
    mig_profiles: list[MigProfile] = []


class XidFault(_Model):
    """An error event that happens once for each `id`."""

    index: int
    xid: int
    id: str = ""


class EccFault(_Model):
    """A double-bit error that happens once for each `id`."""

    index: int
    id: str = ""


class Faults(_Model):
    """What is wrong with driver and cards now."""

    driver: Literal["ok", "gone", "slow"] = "ok"
    lost: list[int] = []
    unreadable: list[int] = []
    damaged: list[int] = []
    ecc: list[EccFault] = []
    no_events: list[int] = []
    xids: list[XidFault] = []
    in_use: list[str] = []
    mig_step_s: Annotated[float, Field(ge=0)] = 0.0
    mig_refused: str = ""


class Profile(_Model):
    """A profile as read."""

    name: str = ""
    driver_version: str = "580.65.06"
    cards: Annotated[list[CardKind], Field(min_length=1)]
    faults: Faults = Faults()


def profiles_dir() -> Path:
    """Where the profiles lie that come with hami."""
    return Path(hami.__file__).parent / "sim" / "profiles"


def find_profile(name: str, folder: Path | None = None) -> Path:
    """The file of a profile's name, or the path itself. Raises ConfigError with the names that exist."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name)
        if path.is_file():
            return path
        raise ConfigError(f"profile {name}: no such file")
    folder = folder or profiles_dir()
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.yaml"))) or "none"
        raise ConfigError(f"profile {name!r} is not known; known are {known}, or a path to a YAML file")
    return path


def read_profile(path: Path) -> Profile:
    """Raises ConfigError naming the file, the key and the value."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"profile {path} cannot be read: {error}") from error
    try:
        return Profile.model_validate(yaml_text.document(text, f"profile {path}"))
    except pydantic.ValidationError as error:
        raise ConfigError(
            f"profile {path}: " + "; ".join(_problem(item) for item in error.errors()[:_MOST_TOLD])
        ) from error


def _problem(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"]) or "file"
    return f"{where}: {reprlib.repr(item['input'])}: {item['msg']}"
