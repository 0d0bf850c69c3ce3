"""Hardware profiles as frozen values: which cards a simulated node has.

The files in `hami/sim/profiles/` (schema in its README) are also read by `hami.nvml.simulated`, on its own: the world
and our process share the file, not the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from hami.core import yaml_text
from hami.core.errors import ConfigError

FOLDER: Final = Path(__file__).parent / "profiles"


class MigProfile(msgspec.Struct, frozen=True):
    """One `Ng.…` profile; placements are (first memory slice, number of slices)."""

    slices: int
    memory_mib: int
    slice_count: int
    multiprocessors: int = 0
    placements: tuple[tuple[int, int], ...] = ()


class CardKind(msgspec.Struct, frozen=True):
    """Equal cards of one machine."""

    model: str
    memory_mib: int | None
    count: int = 1
    numa: int | tuple[int, ...] = 0
    nvlink: int = 0
    nvswitch_links: int = 0
    mig: bool = False
    uuids: tuple[str, ...] = ()
    mig_profiles: tuple[MigProfile, ...] = ()


class Profile(msgspec.Struct, frozen=True):
    """One machine."""

    name: str
    cards: tuple[CardKind, ...]
    description: str = ""
    driver_version: str = ""
    cuda_version: str = ""

    @property
    def card_count(self) -> int:
        return sum(kind.count for kind in self.cards)

    @property
    def memory_mib(self) -> int:
        """Of all cards together; cards without a number count as nothing."""
        return sum(kind.count * (kind.memory_mib or 0) for kind in self.cards)


def names() -> list[str]:
    """The profiles that come with hami, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Profile:
    """A profile by its name, or by the path of a YAML file. Raises ConfigError."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"hardware profile {name!r}: no such file; known names are {', '.join(names())}")
    try:
        found = yaml_text.document(path.read_text(encoding="utf-8"), f"hardware profile {path}")
        return msgspec.convert(found, Profile)
    except (OSError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"hardware profile {path}: {error}") from error
