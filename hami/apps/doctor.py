"""`hami doctor` and `kubectl hami doctor`: reads flags, looks, and says by its exit status whether all is well."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from hami.config import device_config
from hami.core.device_type import Registry
from hami.core.errors import ConfigError, HamiError
from hami.ctl.doctor import show
from hami.ctl.doctor.run import examine
from hami.ctl.doctor.show import Report
from hami.ctl.doctor.webhook import Endpoint
from hami.kube.client import ApiClient
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia

USED_WRONGLY: Final = 2
_LAST_PORT: Final = 65535
_DESCRIPTION: Final = (
    "Looks at a cluster that runs this or upstream's HAMi and says what is wrong and what to do. Reads only."
    " Exit status: 0 all is well, 1 something is wrong, 2 used wrongly or the cluster cannot be read."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the flags")


def main(argv: Sequence[str]) -> int:
    """Exit status as the description says."""
    try:
        flags = _parser().parse_args(list(argv))
        config = (
            device_config.read(Path(flags.device_config_file)).nvidia if flags.device_config_file else NvidiaConfig()
        )
        report = asyncio.run(_examine(flags.kubeconfig, (Nvidia(config),), _dial(flags.webhook_address)))
    except HamiError as error:
        print(f"hami doctor: {error}", file=sys.stderr)
        return USED_WRONGLY
    if flags.output == "json":
        show.print_json(report)
    else:
        show.print_text(report)
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="hami doctor", description=_DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("-o", "--output", default="text", choices=("text", "json"), help="json has every finding with all its fields")
    add("--kubeconfig", default="", metavar="FILE", help="kubeconfig file (default: as kubectl)")
    add("--device-config-file", default="", metavar="FILE", help="device-config.yaml, where resources are renamed")
    add("--webhook-address", default="", metavar="HOST:PORT", help="connect to the webhook here (a port-forward)")
    return parser


async def _examine(kubeconfig: str, registry: Registry, dial: Endpoint | None) -> Report:
    async with await ApiClient.load(kubeconfig or None) as client:
        return await examine(client, registry, dial=dial)


def _dial(text: str) -> Endpoint | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port[:9]) <= _LAST_PORT:
        raise ConfigError(f"--webhook-address: {text!r} is not allowed: expected HOST:PORT")
    return Endpoint(host.strip("[]"), int(port), "")
