"""Flags of the daemons: the spellings users write, precedence, and refusals that say what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.apps import certs, demo, dev
from hami.config import device_plugin, flags, monitor, scheduler, shared_flags
from hami.config.flags import Flag
from hami.core.errors import ConfigError

TABLE = (
    shared_flags.VERBOSITY,
    Flag("http_bind", "listener", ("127.0.0.1:8080",), repeatable=True),
    Flag("leader-elect", "follow the lease", False, flags.boolean, switch=True),
    Flag("node-lock-timeout", "expiry", 300.0, flags.duration_s, env="HAMI_NODELOCK_EXPIRE"),
    Flag("kube-burst", "requests at once", 100, flags.whole(1, 1000)),
    Flag("node-scheduler-policy", "policy", "binpack", flags.Choice("binpack", "spread")),
)


def parse(*argv: str, **environment: str) -> dict[str, Any]:
    return flags.parse("hami test", "test", TABLE, argv, environment, ignored=("logtostderr",))[0]


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["-v=4"], "v", 4),
        (["-v", "4"], "v", 4),
        (["--v=4"], "v", 4),
        (["--leader-elect"], "leader_elect", True),
        (["--leader-elect=false"], "leader_elect", False),
        (["--leader-elect=true"], "leader_elect", True),
        (["--http_bind=0.0.0.0:443"], "http_bind", ("0.0.0.0:443",)),
        (["--http_bind", "a:1", "--http_bind", "b:2"], "http_bind", ("a:1", "b:2")),
        (["--node-lock-timeout=1m30s"], "node_lock_timeout", 90.0),
        (["--node-lock-timeout=250ms"], "node_lock_timeout", 0.25),
        (["--logtostderr=true"], "v", 3),
        ([], "node_scheduler_policy", "binpack"),
    ],
)
def test_spellings(argv: list[str], name: str, value: object) -> None:
    assert parse(*argv)[name] == value


def test_command_line_beats_environment_beats_default() -> None:
    assert parse()["node_lock_timeout"] == 300
    assert parse(HAMI_NODELOCK_EXPIRE="2m")["node_lock_timeout"] == 120
    assert parse("--node-lock-timeout=1m", HAMI_NODELOCK_EXPIRE="2m")["node_lock_timeout"] == 60


@pytest.mark.parametrize(
    ("argv", "environment", "words"),
    [
        (["--leader-elct"], {}, ["--leader-elct", "did you mean --leader-elect"]),
        (["--kube-burst=0"], {}, ["--kube-burst", "'0'", "from 1 to 1000"]),
        (["--kube-burst=many"], {}, ["--kube-burst", "'many'", "from 1 to 1000"]),
        (["--node-scheduler-policy=spred"], {}, ["'spred'", "binpack or spread", "did you mean spread"]),
        (["--node-lock-timeout=5"], {}, ["'5'", "5m, 30s"]),
        (["--leader-elect=maybe"], {}, ["'maybe'", "true or false"]),
        ([], {"HAMI_NODELOCK_EXPIRE": "soon"}, ["HAMI_NODELOCK_EXPIRE", "'soon'"]),
        (["-v=99"], {}, ["'99'", "from 0 to 10"]),
    ],
)
def test_refusals_name_flag_value_and_what_is_allowed(
    argv: list[str], environment: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse(*argv, **environment)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("5m", 300), ("1m30s", 90), ("1.5h", 5400), (".5s", 0.5), ("1.s", 1), ("250ms", 0.25), ("10us", 1e-5),
     ("10µs", 1e-5), ("7ns", 7e-9), ("2557920h", 9_208_512_000)],
)  # fmt: skip
def test_durations_are_read_as_go_reads_them(text: str, seconds: float) -> None:
    assert flags.duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "5", "-5s", "5 s", ".", ".s", "1..5s", "s", "5m3", "1d", "5S", "٣s", "1_0s", "1e3s", "inf", "\0",
             "9" * 400 + "h", "2600000h", "9h" * 1_000_000]
)  # fmt: skip
def test_what_is_no_duration_is_told_what_one_is(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration as 5m, 30s or 250ms"):
        flags.duration_s(text)


@given(st.integers(0, 10**9))
def test_a_printed_duration_can_be_typed(milliseconds: int) -> None:
    assert flags.duration_s(flags.go_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize("text", ["1_0", "٣", "1e3", "0x10", "", " 5", "9" * 5000, "--5"])
def test_what_is_no_whole_number_is_told_the_bounds(text: str) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 to 9000"):
        flags.whole(1, 9000)(text)


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", "", "0x1p3", "1e999", "9" * 5000])
def test_what_is_no_number_is_told_the_bounds(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number from 0 to 600"):
        flags.number(0, 600)(text)


@pytest.mark.parametrize("argument", ["--kube-burst=", "--node-scheduler-policy=", "--", "--x"])
def test_a_long_value_is_cut_in_the_message(argument: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse(argument + "x" * 10_000_000)
    assert len(str(refusal.value)) < 500


PROCESSES = {
    "scheduler": scheduler.FLAGS,
    "device-plugin": device_plugin.FLAGS,
    "monitor": monitor.FLAGS,
    "demo": demo.FLAGS,
    "certs create": certs.CREATE_FLAGS,
    "certs patch": certs.PATCH_FLAGS,
    "dev scheduler-config": dev.FLAGS,
}


@pytest.mark.parametrize(
    ("flag"), [pytest.param(flag, id=f"{name} {flag.name}") for name, table in PROCESSES.items() for flag in table]
)
def test_the_default_that_is_printed_can_be_typed(flag: Flag, capsys: pytest.CaptureFixture[str]) -> None:
    """And every word that is allowed is in the help."""
    with pytest.raises(SystemExit):
        flags.parse("hami test", "", (flag,), ["--help"], {})
    printed = " ".join(capsys.readouterr().out.split())
    if isinstance(flag.parse, flags.Choice):
        assert "|".join(flag.parse.allowed) in printed
    if "(default " in printed:
        shown = printed.partition("(default ")[2].partition(")")[0].replace("- ", "-")
        key = flag.name.replace("-", "_")
        typed = flags.parse("hami test", "", (flag,), [f"--{flag.name}={shown}"], {})[0][key]
        given = flags.parse("hami test", "", (flag,), [], {})[0][key]
        assert typed in (given, (given,))


def test_paths_that_kubelet_and_containers_are_told_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    needed = ["--node-name=n", "--device-config-file=c.yaml"]
    given = [f"--{name}=here/{name}" for name in ("kubelet-dir", "hook-path", "cdi-root", "lock-dir")]
    settings, _ = device_plugin.load([*needed, *given], {})
    assert settings.kubelet_dir == tmp_path / "here" / "kubelet-dir"
    assert settings.hook_path == tmp_path / "here" / "hook-path"
    assert settings.cdi_root == tmp_path / "here" / "cdi-root"
    assert settings.lock_dir == tmp_path / "here" / "lock-dir"
    for name in ("kubelet-dir", "hook-path", "cdi-root", "lock-dir"):
        with pytest.raises(ConfigError, match=f"--{name}: '' is not allowed: expected a folder"):
            device_plugin.load([*needed, f"--{name}="], {})
    for name in (
        "container-hook-path",
        "nvidia-driver-root",
        "driver-root-ctr-path",
        "dev-root",
        "nvidia-cdi-hook-path",
    ):
        device_plugin.load([*needed, f"--{name}="], {})
        with pytest.raises(ConfigError, match=f"--{name}: 'a/b' is not allowed: expected an absolute path"):
            device_plugin.load([*needed, f"--{name}=a/b"], {})


def test_no_way_back_for_a_card_is_said_in_words() -> None:
    """An empty value of a template must not keep cards out for good."""
    needed = ["--node-name=n", "--device-config-file=c.yaml"]
    assert device_plugin.load([*needed, "--card-recovery=never"], {})[0].card_recovery == ()
    with pytest.raises(ConfigError, match=r"--card-recovery: '' is not .* quiet or reset or operator, or never"):
        device_plugin.load([*needed, "--card-recovery="], {})
