"""The release that this layer installs: two schedulers, simulated cards, images from this machine."""

from __future__ import annotations

from typing import Final

from tests.helm.cluster import CHART, PROFILE, RELEASE, WAIT, User

SETTLE_S: Final = 5
"""A renewed certificate is served after this time instead of a minute."""
VALUES: Final = (
    "global.imageRegistry=localhost",
    "scheduler.replicas=2",
    f"devicePlugin.simulate={PROFILE}",
    "scheduler.admissionWebhook.failurePolicy=Fail",
    f"scheduler.extender.extraArgs={{-v=4,--certificate-settle={SETTLE_S}s}}",
)


def install(user: User, verb: str = "install", *arguments: str) -> None:
    """`helm install --wait`, or upgrade."""
    settings = [f"--set={value}" for value in VALUES]
    user.helm(verb, RELEASE, str(CHART), "--create-namespace", *settings, "--wait", WAIT, *arguments)
