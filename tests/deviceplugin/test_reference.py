"""docs/reference/device-plugin.md names flags, metrics and events that exist."""

from __future__ import annotations

import re
from pathlib import Path

from hami.config.device_plugin import FLAGS
from hami.deviceplugin import event_reasons
from hami.deviceplugin.allocate import AllocateStats
from hami.deviceplugin.card_watch import HealthStats
from hami.deviceplugin.settings import HealthSettings
from hami.vendors.nvidia.names import RECOVERED_KEY
from tests.deviceplugin.bench import Bench
from tests.deviceplugin.process_life import living

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/device-plugin.md").read_text()


def test_its_flags_are_the_programs() -> None:
    named = set(re.findall(r"`--([a-z-]+)", PAGE)) - {"help"}
    assert named <= {name for flag in FLAGS for name in (flag.name, *flag.aliases)}
    assert len(named) > 10


def test_its_events_annotation_and_numbers_are_the_codes() -> None:
    reasons = {value for name, value in vars(event_reasons).items() if name.isupper()}
    assert set(re.findall(r"`((?:Card|Split|DevicePlugin)[A-Za-z]+)`", PAGE)) <= reasons
    assert RECOVERED_KEY in PAGE
    ignored = re.search(r"but not for ([\d, and]+), which", PAGE)
    assert ignored
    assert {int(number) for number in re.findall(r"\d+", ignored[1])} == HealthSettings().ignored_xids


async def test_its_metrics_are_those_that_are_served(node: Bench) -> None:
    async with living(node) as life:
        served = set(re.findall(r"^hami_plugin_(\w+) ", (await life.get("/metrics"))[1], re.MULTILINE))
    table = PAGE.partition("| metric |")[2]
    named = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == served
    assert {f"allocate_{name}" for name in AllocateStats.__dataclass_fields__} <= served
    assert {f"cards_{name}" for name in HealthStats.__dataclass_fields__} <= served
