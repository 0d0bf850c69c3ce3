"""What the pages tell people to type and to write exists and is understood (issue 8, "Docs").

The messages of docs/how-to/troubleshoot.md are provoked in tests/cluster/test_troubleshooting.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami.apps import cli
from hami.core import admission
from hami.core.admission import AdmissionSettings
from hami.core.objects import pod_decoder
from tests.docs.blocks import ROOT, Block, Command, blocks, chart_values, commands, links
from tests.placement.fakes import REGISTRY

COMMANDS = list(commands())
YAML_BLOCKS = [block for block in blocks() if block.language == "yaml"]
VALUES = yaml.safe_load((ROOT / "charts" / "hami" / "values.yaml").read_text())
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
HELM_VERBS = {"install", "upgrade", "uninstall", "rollback", "template", "test", "history", "list", "get"}
KUBECTL_VERBS = {
    *("annotate", "apply", "auth", "cordon", "create", "delete", "describe", "drain", "exec", "explain"),
    *("get", "hami", "label", "logs", "patch", "rollout", "scale", "version", "wait"),
}


def of(*programs: str) -> pytest.MarkDecorator:
    found = [each for each in COMMANDS if each.words[0] in programs]
    assert found, f"no page uses {programs}"
    return pytest.mark.parametrize(
        "command", found, ids=[f"{each.page.stem}: {' '.join(each.words)}" for each in found]
    )


def known_value(key: str) -> bool:
    """Whether the chart has the key; below an open mapping or a list anything goes."""
    at: Any = VALUES
    for part in key.replace("\\.", "~").split("."):
        if not isinstance(at, dict):
            return False
        name = part.replace("~", ".").partition("[")[0]
        if not at:
            return True
        if name not in at:
            return False
        at = at[name]
    return True


def hami_flags(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Flags of a command of ours, from its own help."""
    path = [word for word in words[1:3] if re.fullmatch(r"[a-z][a-z-]*", word)]
    for depth in (path, path[:1]):
        try:
            status = cli.run("hami", [*depth, "--help"])
        except SystemExit as left:
            status = int(left.code or 0)
        text = capsys.readouterr().out
        if status == 0 and text:
            return {*re.findall(r"(?<![\w-])(--[\w-]+)", text), "--help", "--version"}
    raise AssertionError(f"no help for {path}")


@of("hami")
def test_our_commands_take_their_flags(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    if command.words[1] not in ("--version", "COMMAND"):
        assert set(command.flags) <= hami_flags(command.words, capsys)


@of("kubectl")
def test_kubectl(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    verb = command.words[1]
    assert verb in KUBECTL_VERBS
    if verb == "hami":
        assert command.words[2] in cli.KUBECTL_COMMANDS
        assert set(command.flags) <= hami_flags(command.words[1:], capsys)


@of("helm")
def test_helm(command: Command) -> None:
    assert command.words[1] in HELM_VERBS
    for setting in command.values_of("--set"):
        for pair in setting.split(","):
            assert known_value(pair.partition("=")[0]), pair
    for word in command.words:
        assert not word.startswith("charts/") or (ROOT / word).exists(), word


@of("make")
def test_make(command: Command) -> None:
    named = {word for word in command.words[1:] if "=" not in word}
    assert named <= TARGETS


@of("docker", "buildah")
def test_image_builds(command: Command) -> None:
    for file in command.values_of("-f"):
        assert (ROOT / file).exists(), file


@pytest.mark.parametrize("block", YAML_BLOCKS, ids=lambda block: block.page.stem)
def test_yaml_is_read_and_pods_are_admitted(block: Block) -> None:
    for document in yaml.safe_load_all(block.text):
        template = _pod(document)
        if template is None:
            continue
        meta = {"name": "p", "namespace": "default", "uid": "u", **template.get("metadata", {})}
        body = {"metadata": meta, "spec": template["spec"], "status": {}}
        answer = admission.review(pod_decoder.decode(json.dumps(body)), "default", REGISTRY, AdmissionSettings())
        assert answer.allowed, answer.message


def _pod(document: dict[str, Any]) -> dict[str, Any] | None:
    kind = document.get("kind")
    if kind == "Pod":
        return document
    return document["spec"]["template"] if kind in ("Deployment", "Job", "StatefulSet", "DaemonSet") else None


@pytest.mark.parametrize(("page", "target"), list(links()), ids=lambda part: str(getattr(part, "stem", part)))
def test_links_lead_somewhere(page: Path, target: str) -> None:
    assert (page.parent / target).exists()


@pytest.mark.parametrize(("page", "key"), list(chart_values()), ids=lambda part: str(getattr(part, "stem", part)))
def test_chart_values_in_prose_exist(page: Path, key: str) -> None:
    assert known_value(key), f"{page.name}: {key}"


def test_a_wrong_page_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    """Negative control of what the tests above look with."""
    assert not known_value("scheduler.replica")
    assert "--replicas" not in hami_flags(("hami", "scheduler"), capsys)
    assert "tests" not in TARGETS
