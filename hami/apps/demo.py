"""`hami demo`: reads the flags of the tour in `ctl.demo`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hami.config import flags
from hami.config.flags import Flag
from hami.ctl.demo import run
from hami.ctl.demo.tour import PROFILES
from hami.sim import profiles

FLAGS: Final = (
    Flag("json", "print pods, nodes, cards and events as JSON", False, flags.boolean, switch=True),
    Flag("serve", "stay up after the tour and print a kubeconfig", False, flags.boolean, switch=True),
    Flag("pods", "run these pods (YAML) instead of the tour's", "", metavar="FILE"),
    Flag(
        "containers",
        "real processes under the limiter where this machine can have them (auto), or simulated",
        "auto",
        flags.Choice("auto", "simulated"),
    ),
    Flag("cache", "folder of what is slow to build", "", env="HAMI_CACHE", metavar="DIR"),
    Flag(
        "profiles",
        "hardware of the nodes, comma separated, of " + ", ".join(profiles.names()),
        ",".join(PROFILES),
        metavar="NAMES",
    ),
)


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 if every pod ended as the tour says. Raises HamiError when the stage cannot be set."""
    values, _ = flags.parse("hami demo", "A tour of GPU sharing on this machine.", FLAGS, argv, flags.environment())
    names = [name.strip() for name in values["profiles"].split(",") if name.strip()]
    pods = Path(values["pods"]) if values["pods"] else None
    cache = Path(values["cache"]) if values["cache"] else Path.home() / ".cache" / "hami"
    options = run.Options(values["json"], values["serve"], values["containers"], cache)
    return run.run(names, pods, options)
