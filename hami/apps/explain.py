"""`hami explain NAMESPACE/POD` and `kubectl hami explain POD -n NAMESPACE`: reads flags and the cluster or a dump."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from hami.config import device_config
from hami.config.flags import labels
from hami.core.errors import ConfigError, HamiError
from hami.core.model import Policies
from hami.core.policies import unknown_policy
from hami.core.policy_words import NODE_POLICIES
from hami.core.request import split_words
from hami.ctl.explain import cluster
from hami.ctl.explain.cluster import Snapshot
from hami.ctl.explain.run import Question, Rules, run
from hami.kube.access import context_namespace
from hami.kube.client import ApiClient
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia

USED_WRONGLY: Final = 2
_DESCRIPTION: Final = (
    "Says for a pod which nodes and cards refuse it, with what is required and what there is, and the smallest"
    " change that would make it fit. Exit status: 0 it fits or has a node, 1 it does not fit, 2 used wrongly."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the flags")


def main(argv: Sequence[str]) -> int:
    """Exit status as the description says; what cannot be read or reached is 2, so that 1 always means "no"."""
    try:
        return _answer(_parser().parse_args(list(argv)))
    except HamiError as error:
        print(f"hami explain: {error}", file=sys.stderr)
        return USED_WRONGLY


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="hami explain", description=_DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("pod", nargs="?", default="", metavar="[NAMESPACE/]POD", help="a pod that exists")
    add(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        help="its namespace (default: that of the kubeconfig's context)",
    )
    add("-f", "--filename", default="", metavar="FILE", help="a pod or workload that does not exist yet, YAML or JSON")
    add("--dump", default="", metavar="FILE", help=f"output of {cluster.SAVED_BY}, - for standard input")
    add("-o", "--output", default="text", choices=("text", "json"), help="json has every node, card and check")
    add("--all", action="store_true", help="show every node, and checks that passed")
    add("--kubeconfig", default="", metavar="FILE", help="kubeconfig file (default: as kubectl)")
    add("--device-config-file", default="", metavar="FILE", help="device-config.yaml of the scheduler")
    add("--node-scheduler-policy", default="binpack", metavar="WORD", help="the scheduler's flag of that name")
    add("--gpu-scheduler-policy", default="spread", metavar="WORDS", help="the scheduler's flag of that name")
    add("--node-label-selector", default="", metavar="LABELS", help="the scheduler's flag of that name")
    add("--scheduler-name", default="hami-scheduler", metavar="NAME", help="the scheduler's flag of that name")
    return parser


def _answer(flags: argparse.Namespace) -> int:
    question = _question(flags)
    config = device_config.read(Path(flags.device_config_file)).nvidia if flags.device_config_file else NvidiaConfig()
    rules = _rules(flags, Nvidia(config))
    snapshot = _dumped(flags.dump) if flags.dump else asyncio.run(_live(flags.kubeconfig))
    return run(question, snapshot, rules)


def _rules(flags: argparse.Namespace, vendor: Nvidia) -> Rules:
    """What the scheduler is told by the flags of these names, refused as it refuses them."""
    device = split_words(flags.gpu_scheduler_policy) or ("spread",)
    policies = Policies(node=flags.node_scheduler_policy, device=device)
    if problem := unknown_policy(policies):
        flag = "node" if policies.node not in NODE_POLICIES else "gpu"
        raise ConfigError(f"--{flag}-scheduler-policy: {problem}")
    try:
        selector = labels(flags.node_label_selector)
    except ValueError as error:
        raise ConfigError(f"--node-label-selector: {flags.node_label_selector!r} is not allowed: {error}") from error
    return Rules((vendor,), policies, flags.scheduler_name, selector)


def _question(flags: argparse.Namespace) -> Question:
    namespace, _, name = flags.pod.rpartition("/")
    if bool(name) == bool(flags.filename):
        raise ConfigError("name one pod, or a file with -f; --help lists the flags")
    if namespace and flags.namespace and namespace != flags.namespace:
        raise ConfigError(f"two namespaces are named: {namespace} and {flags.namespace}")
    namespace = namespace or flags.namespace
    if not namespace:
        namespace = "default" if flags.dump else context_namespace(flags.kubeconfig or None)
    new_pod = None
    if flags.filename:
        new_pod = cluster.read_pod_file(flags.filename, _read(flags.filename).decode(errors="replace"), namespace)
    return Question(namespace, name, new_pod, as_json=flags.output == "json", everything=flags.all)


def _dumped(path: str) -> Snapshot:
    """The moment of a dump is when the file was written."""
    text = _read(path)
    return cluster.read_dump(text, path, time.time() if path == "-" else Path(path).stat().st_mtime)


async def _live(kubeconfig: str) -> Snapshot:
    async with await ApiClient.load(kubeconfig or None) as client:
        return await cluster.read_live(client, time.time())


def _read(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
