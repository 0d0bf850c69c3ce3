"""Flags of the daemons: the spellings users write, precedence, and refusals that say what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from hami.config import flags, shared_flags
from hami.config.flags import Flag
from hami.core.errors import ConfigError

TABLE = (
    shared_flags.VERBOSITY,
    Flag("http_bind", "listener", ("127.0.0.1:8080",), repeatable=True),
    Flag("leader-elect", "follow the lease", False, flags.boolean, switch=True),
    Flag("node-lock-timeout", "expiry", 300.0, flags.duration_s, env="HAMI_NODELOCK_EXPIRE"),
    Flag("kube-burst", "requests at once", 100, flags.whole(1, 1000)),
    Flag("node-scheduler-policy", "policy", "binpack", flags.choice("binpack", "spread")),
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
