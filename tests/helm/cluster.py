"""A real cluster as a person sees it: kubectl, helm, and an audit of what the API server says."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import pods
from tests.cluster.processes import PATIENCE_S, NotYetError, wait_until

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "hami"
NAMESPACE = "gpu-system"
RELEASE = "gpu"
NAME = "gpu-hami"
PROFILE = "rtx3090"
"""Simulated cards of the node: two of 24,576 MiB, ten shares each."""
CARD_MIB = 24576
CARDS = 2
COMMAND_LIMIT_S = 600.0
OUT_OF_TIME = ("context deadline exceeded", "etcdserver: ", "request timed out", "server is currently unable")
WAIT = "--timeout=400s"
"""For helm and kubectl commands that wait; like all limits here it ends a hang and says nothing about speed."""

Object = Mapping[str, Any]


class CommandError(NotYetError):
    """kubectl or helm said no; the text is what it said."""


@dataclasses.dataclass(slots=True)
class User:
    """A person with a kubeconfig."""

    kubeconfig: Path
    programs: Path
    """Folder with kubectl and helm."""
    asked: dict[str, Object] = dataclasses.field(default_factory=dict)
    """Pods that were created, by name."""
    made_anew: Counter[str] = dataclasses.field(default_factory=Counter)
    """Pods that took the place of such that kubelet failed because the plugin ran out of time."""

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Output of kubectl. Raises CommandError."""
        return self._run([str(self.programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments], stdin)

    def helm(self, *arguments: str) -> str:
        """Output of helm in our namespace. Raises CommandError."""
        return self._run(
            [str(self.programs / "helm"), f"--kubeconfig={self.kubeconfig}", f"--namespace={NAMESPACE}", *arguments]
        )

    def get(self, *what: str) -> Any:
        """What `kubectl get … -o json` says."""
        return json.loads(self.kubectl("get", *what, "--output=json"))

    def items(self, *what: str) -> list[Any]:
        """Items of a list."""
        return list(self.get(*what)["items"])

    def apply(self, *objects: Object) -> None:
        """`kubectl create` of these objects, in order. Raises CommandError; but where the webhook or etcd was out of
        time, as on a machine that stood still, what is not there yet is created again."""
        self.asked |= {each["metadata"]["name"]: each for each in objects if each["kind"] == "Pod"}
        try:
            self._create(*objects)
        except CommandError as error:
            if not any(words in str(error) for words in OUT_OF_TIME):
                raise
            self.apply_stubbornly(*objects)

    def _create(self, *objects: Object) -> None:
        self.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def apply_stubbornly(self, *objects: Object) -> None:
        """Creates these objects one by one as a controller would: again when the webhook cannot be reached, as for the
        moment in which the address of a pod that has just died is still given out."""
        self.asked |= {each["metadata"]["name"]: each for each in objects if each["kind"] == "Pod"}
        for each in objects:
            wait_until(lambda each=each: self._try_apply(each), PATIENCE_S, f"{each['metadata']['name']} created")  # type: ignore[misc]

    def _try_apply(self, wanted: Object) -> bool:
        try:
            self._create(wanted)
        except CommandError as error:
            if "already exists" not in str(error):  # an earlier try did reach the API server
                raise
        return True

    def delete(self, *names: str) -> None:
        """Deletes pods of the default namespace and waits until they are gone."""
        self.kubectl("delete", "pod", *names, "--wait", "--ignore-not-found", "--grace-period=1")

    def pod(self, name: str) -> Any:
        """A pod of the default namespace."""
        return self.get("pod", name)

    def phase(self, name: str) -> str:
        """Its phase."""
        return str(self.pod(name)["status"]["phase"])

    def wait_phase(self, phase: str, *names: str, limit_s: float = PATIENCE_S) -> None:
        """Returns when all these pods are in that phase; fails with what `describe` says of one that is not."""
        for name in names:
            try:
                wait_until(lambda name=name: self._tended_phase(name) == phase, limit_s, f"pod {name} {phase}", 0.2)  # type: ignore[misc]
            except Exception as error:
                raise AssertionError(f"{error}\n{self.kubectl('describe', 'pod', name)[-2500:]}") from error

    def _tended_phase(self, name: str) -> str:
        """The phase of a pod, as a controller leaves it: kubelet fails one for good whose plugin ran out of time, on a
        machine that stood still for instance, and another takes its place."""
        status = self.pod(name)["status"]
        out_of_time = status["phase"] == "Failed" and any(one in status.get("message", "") for one in pods.OUT_OF_TIME)
        if not out_of_time or name not in self.asked or self.made_anew[name] >= pods.MOST_OFTEN_ANEW:
            return str(status["phase"])
        self.made_anew[name] += 1
        self.delete(name)
        self.apply_stubbornly(self.asked[name])
        return ""

    def node(self) -> Any:
        """The node."""
        return self.items("nodes")[0]

    def annotate_node(self, annotation: str) -> None:
        """`key=value`, or `key-` to take it away."""
        self.kubectl("annotate", "node", str(self.node()["metadata"]["name"]), annotation, "--overwrite")

    def card_of(self, name: str) -> str:
        """UUID of the card that the only container of a pod holds a share of."""
        text = self.pod(name)["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
        return str(text).split(",")[0].lstrip(";")

    def cards(self) -> list[str]:
        """UUIDs of the node's cards, as it registered them."""
        registered = self.node()["metadata"]["annotations"]["hami.io/node-nvidia-register"]
        return [card["id"] for card in json.loads(registered)]

    def audit(self) -> None:
        """No card holds more than it has. Raises AssertionError with the auditor's words."""
        command = [sys.executable, str(ROOT / "tests/tools/audit.py"), f"--kubeconfig={self.kubeconfig}", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S)
        assert done.returncode == 0, f"the audit says:\n{done.stdout}{done.stderr}"

    def _run(self, command: Sequence[str], stdin: str | None = None) -> str:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S
        )
        if done.returncode != 0:
            raise CommandError(f"{' '.join(command[1:4])}: {done.stderr.strip()}\n{done.stdout.strip()}")
        return done.stdout
