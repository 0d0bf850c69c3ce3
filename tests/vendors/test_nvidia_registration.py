"""From probed facts to registered cards (spec/node 3.2, 12, workflows 5, report B86)."""

from pathlib import Path

import pytest

from hami.core.codec import RegisterForm, encode_register
from hami.core.device_type import DeviceType
from hami.core.model import Device, MigPlacement, MigProfile
from hami.vendors.nvidia.device import Nvidia
from hami.vendors.nvidia.registration import (
    ProbedCard,
    RegistrationSettings,
    Skipped,
    card_type,
    registered_device,
    registered_devices,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "annotations"
MIB = 1024 * 1024
PROFILE = MigProfile("1g.10gb", 9728, 14, 1, (MigPlacement(0, 1),))


def card(**fields: object) -> ProbedCard:
    values: dict[str, object] = {
        "uuid": "GPU-a",
        "index": 0,
        "name": "NVIDIA A100",
        "memory_bytes": 81559 * MIB,
        **fields,
    }
    return ProbedCard(**values)  # type: ignore[arg-type]


def registered(facts: ProbedCard, settings: RegistrationSettings) -> Device:
    device = registered_device(facts, settings)
    assert isinstance(device, Device), device
    return device


def test_one_rtx_3090_with_scaling() -> None:
    """The numbers that people check, and the text of 2.4.1 (its driver name doubled the vendor)."""
    facts = card(uuid="GPU-3090", name="NVIDIA GeForce RTX 3090", memory_bytes=24576 * MIB)
    device = registered(facts, RegistrationSettings(split_count=10, memory_scaling=3, core_scaling=3))
    assert (device.slots, device.memory_mib, device.core_percent) == (10, 73728, 300)
    text = encode_register((device,), RegisterForm.CSV7) + "\n"
    assert text == (GOLDEN / "register-2.4.1-rtx3090.csv7").read_text().replace("NVIDIA-NVIDIA", "NVIDIA")


@pytest.mark.parametrize(
    ("scaling", "memory_mib"), [(1.8, 146806), (1.0, 81559), (0.5, 40779)]
)  # fmt: skip
def test_memory_is_scaled_and_cut_off(scaling: float, memory_mib: int) -> None:
    assert registered(card(), RegistrationSettings(memory_scaling=scaling)).memory_mib == memory_mib


@pytest.mark.parametrize(("scaling", "cores"), [(1, 100), (0.29, 28), (0.57, 56), (1.15, 114), (2.3, 229)])
def test_cores_are_scaled_and_cut_off(scaling: float, cores: int) -> None:
    assert registered(card(), RegistrationSettings(core_scaling=scaling)).core_percent == cores


def test_mig_cards_are_not_scaled() -> None:
    settings = RegistrationSettings(10, 2.0, 2.0, mode="mig")
    device = registered(card(mig_profiles=(PROFILE,), mig_instances=7), settings)
    assert (device.slots, device.memory_mib, device.core_percent) == (7, 81559, 100)
    assert (device.mode, device.mig_profiles) == ("mig", (PROFILE,))
    assert registered(card(mig_profiles=(PROFILE,)), RegistrationSettings()).mig_profiles == ()


@pytest.mark.parametrize(
    ("facts", "settings", "why"),
    [
        (card(memory_bytes=None), RegistrationSettings(), "memory would be 0"),
        (card(memory_bytes=None), RegistrationSettings(), "preConfiguredDeviceMemory"),
        (card(memory_bytes=0), RegistrationSettings(), "memory would be 0"),
        (card(), RegistrationSettings(mode="mig"), "no allowed MIG profile for NVIDIA A100"),
        (card(), RegistrationSettings(memory_scaling=1e6), "memory would be 81559000000"),
        (card(), RegistrationSettings(core_scaling=0), "cores would be 0"),
        (card(), RegistrationSettings(split_count=0), "slots would be 0"),
    ],
)
def test_b86_what_cannot_be_used_is_not_registered(facts: ProbedCard, settings: RegistrationSettings, why: str) -> None:
    skipped = registered_device(facts, settings)
    assert isinstance(skipped, Skipped)
    assert why in skipped.why


def test_a_configured_size_stands_in_for_unified_memory() -> None:
    settings = RegistrationSettings(preconfigured_memory_mib=1000, memory_scaling=2)
    assert registered(card(memory_bytes=None), settings).memory_mib == 2000


def test_several_cards_keep_their_order() -> None:
    devices, skipped = registered_devices(
        [card(uuid="b", healthy=False), card(uuid="x", memory_bytes=None), card(uuid="a", numa=-1)],
        RegistrationSettings(),
    )
    assert [(each.id, each.healthy, each.numa) for each in devices] == [("b", False, 0), ("a", True, 0)]
    assert [each.uuid for each in skipped] == ["x"]


def test_the_vendor_is_put_in_front_of_names_without_it() -> None:
    assert [card_type(name) for name in ("NVIDIA A100", "Tesla T4")] == ["NVIDIA A100", "NVIDIA-Tesla T4"]


def test_nvidia_is_a_device_type() -> None:
    vendor: DeviceType = Nvidia()
    assert vendor.count_resource == "nvidia.com/gpu"
    assert set(vendor.managed_resources) == {
        f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")
    }
    text = (GOLDEN / "register-2.5.csv9").read_text().strip()
    assert vendor.decode_register(text, "node n1")[0].vendor == vendor.word
    assert vendor.decode_pair_scores((GOLDEN / "score.json").read_text(), "n1") == {"GPU-a": {"GPU-b": 40}}
