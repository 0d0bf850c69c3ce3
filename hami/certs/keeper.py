"""Keeps the served certificate, its Secret and the webhook's CA bundle right while the scheduler runs (issue 8).

Each turn reads the Secret, moves it on where a renewal is due, serves what it holds and writes what it trusts into the
webhook configuration. A certificate that waits is served only after the configuration was seen to trust it for
`settle_s`: by then every kube-apiserver has it. All replicas do the same; the Secret's resourceVersion decides.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
import structlog
from cryptography import x509

from hami.certs import kept, publish
from hami.certs.kept import Kept
from hami.certs.publish import Request
from hami.certs.reading import in_pem, is_trusted, system_now
from hami.certs.reload import ServingContext
from hami.certs.secret import KeptSecret
from hami.core.errors import ApiError, CertificateError, ConflictError, HamiError, InvalidError, NotFoundError
from hami.core.keys import EVENT_WEBHOOK_REPAIRED
from hami.obs import metrics

SETTLE_S: Final = 60.0
CHECK_S: Final = 300.0
"""How often all is looked at though nothing was told."""
_RETRY_S: Final = 5.0
_SOON_S: Final = 0.5
"""After a write that crossed somebody else's, unless news come first."""
_PAUSES: Final = (0.5, 60.0)
"""Seconds after the first write that somebody else crossed, doubled up to the second: who fights over an object (a
tool that restores it at once) must not be answered at the speed of the API server."""
_PEACE_S: Final = 120.0
"""After so long without such a write the first pause holds again."""

log = structlog.get_logger("hami.certs")


class KeeperSettings(msgspec.Struct, frozen=True):
    """`hosts`: names and addresses of a self-managed certificate; empty: somebody else fills the Secret, it is only
    followed. `webhook`: the configuration whose CA bundle is kept; empty: none."""

    namespace: str
    secret: str
    hosts: tuple[str, ...] = ()
    days: int = 3650
    webhook: str = ""
    settle_s: float = SETTLE_S
    check_s: float = CHECK_S


class Events(Protocol):
    """Where repairs are told; `kube.events.EventRecorder` has it."""

    def object_event(self, about: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None: ...


class CertificateKeeper:
    """One replica's keeper. `serving` changes in place."""

    def __init__(
        self,
        request: Request,
        settings: KeeperSettings,
        serving: ServingContext,
        events: Events,
        *,
        now: Callable[[], datetime.datetime] = system_now,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._settings = settings
        self._serving = serving
        self._events = events
        self._now = now
        self._monotonic_s = monotonic_s
        self._secret = KeptSecret(request, settings.namespace, settings.secret)
        self._news = asyncio.Event()
        self._trusted_since: tuple[bytes, float] | None = None
        """The bundle that the configuration has, and since when without a break."""
        self._looked = False
        self._published = b""
        """The newest bundle that the configuration was given or found with."""
        self._configuration: Mapping[str, Any] | None = None
        self._told = ""
        self._fights = 0
        self._fought_at_s = -math.inf

    def missing(self) -> str:
        """Why clients cannot trust what is served yet; empty once they were seen to, or once nobody calls."""
        if self._looked:
            return ""
        problem = f"webhook configuration {self._settings.webhook} does not trust the served certificate yet"
        return f"{problem}: {self._told}" if self._told else problem

    async def start(self) -> None:
        """The first certificate, before anything is served. Raises CertificateError, ApiError, TransportError."""
        state = await self._state()
        if not self._serve(state):
            raise CertificateError(f"{self._secret.title} holds no certificate: tls.crt and tls.key are needed")

    def on_secret(self, _found: Mapping[str, Any] | None) -> None:
        """The Secret changed."""
        self._news.set()

    def on_webhook_configuration(self, found: Mapping[str, Any] | None) -> None:
        """The webhook configuration changed; None when it was deleted."""
        self._configuration = found
        self._news.set()

    async def run(self) -> None:
        """Turns until cancelled. What fails is told, and tried again."""
        while True:
            fights = self._fights
            pause_s = await self._safe_turn()
            if self._fights > fights:
                await asyncio.sleep(self._fight_pause_s())
                continue
            try:
                async with asyncio.timeout(pause_s):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _fought(self) -> None:
        """Somebody else wrote what we write."""
        now_s = self._monotonic_s()
        if now_s > self._fought_at_s + _PEACE_S:
            self._fights = 0
        self._fights += 1
        self._fought_at_s = now_s

    def _fight_pause_s(self) -> float:
        first_s, longest_s = _PAUSES
        return min(longest_s, first_s * 2.0 ** min(self._fights - 1, 16))

    async def _safe_turn(self) -> float:
        self._news.clear()
        try:
            pause_s = await self.turn()
        except (ConflictError, InvalidError) as error:
            # Somebody else wrote in the same moment, mostly the other replica the same thing: no fight yet, and what it
            # wrote is looked at as soon as it is seen.
            log.info("certificate's objects changed meanwhile, tried again", why=str(error))
            return _SOON_S
        except HamiError as error:
            if str(error) != self._told:
                log.warning("certificate not kept, tried again", why=str(error))
            self._told = str(error)
            return _RETRY_S
        self._told = ""
        return pause_s

    async def turn(self) -> float:
        """One look and what follows from it; seconds until the next. Raises the ApiError family, TransportError,
        CertificateError."""
        state = await self._state()
        self._serve(state)
        await self._publish(state)
        if not state.next_cert:
            return self._settings.check_s
        if self._may_promote(state):
            return 0.0
        return min(self._settings.check_s, self._settings.settle_s)

    # Secret

    async def _state(self) -> Kept:
        if not self._settings.hosts:
            found = await self._secret.read()
            if found is None:
                raise CertificateError(f"{self._secret.title} does not exist")
            return found
        step = ""

        def next_state(state: Kept) -> Kept | None:
            nonlocal step
            step, wanted = self._step(state)
            return wanted

        state = await self._secret.advance(next_state)
        if step:
            metrics.certificate_writes.labels(step).inc()
            log.info("certificate's Secret written", step=step, secret=self._secret.title)
        return state

    def _step(self, state: Kept) -> tuple[str, Kept | None]:
        hosts, days, now = self._settings.hosts, self._settings.days, self._now()
        if not kept.is_usable(state, hosts, now):
            return "first", kept.make_first(hosts, now, days, state.trusted)
        if kept.is_staged(state, hosts, now):
            return ("promote", kept.promote(state)) if self._may_promote(state) else ("", None)
        if kept.is_due(state, hosts, now):
            return "stage", kept.stage(state, hosts, now, days)
        return "", None

    def _may_promote(self, state: Kept) -> bool:
        """Whether clients have trusted the certificate that waits for long enough."""
        if self._trusted_since is None:
            return False
        bundle, since_s = self._trusted_since
        return bundle == state.trusted and self._monotonic_s() >= since_s + self._settings.settle_s

    def _serve(self, state: Kept) -> bool:
        """Serves what the Secret holds; False where it holds nothing. Raises CertificateError."""
        if not state.cert or not state.key:
            return False
        if self._serving.load(state.cert, state.key, self._secret.title):
            log.info("certificate served", secret=self._secret.title, ends=_end(state.cert))
        ends = kept.authority_end(state)
        if ends is not None:
            metrics.authority_not_after_seconds.set(ends.timestamp())
        return True

    # Webhook configuration

    async def _publish(self, state: Kept) -> None:
        if not self._settings.webhook:
            # Nobody is known to read the bundle: what was in force for a while counts as read.
            return self._seen_trusted(state.trusted)
        bundle = self._bundle(state)
        try:
            changed = await publish.patch_webhook(self._request, self._settings.webhook, bundle)
        except NotFoundError:
            return self._gone(state)
        except ApiError:
            metrics.ca_bundle_right.set(0)
            raise
        if changed:
            self._trusted_since = None
            metrics.ca_bundle_repairs.inc()
            by_others = self._published == bundle
            if by_others:
                self._fought()
            self._tell_change(by_others=by_others)
        self._published = bundle
        self._seen_trusted(bundle)
        metrics.ca_bundle_right.set(1)
        return None

    def _bundle(self, state: Kept) -> bytes:
        """What clients must trust: the Secret's authorities, and while a Secret that somebody else writes has another
        pair's (or none), those of what is served still. Raises CertificateError where nobody could trust it."""
        served, trusted = in_pem(self._serving.chain), in_pem(state.trusted)
        if is_trusted(served, trusted):
            return state.trusted
        before = in_pem(self._published)
        if is_trusted(served, before):
            return kept.joined(dict.fromkeys([*trusted, *before]))
        metrics.ca_bundle_right.set(0)
        problem = "does not trust the certificate that is served" if trusted else "is missing or cannot be read"
        raise CertificateError(f"{self._secret.title}: ca.crt {problem}: what is served cannot be made trusted")

    def _seen_trusted(self, bundle: bytes) -> None:
        self._looked = True
        if self._trusted_since is None or self._trusted_since[0] != bundle:
            self._trusted_since = (bundle, self._monotonic_s())

    def _gone(self, state: Kept) -> None:
        """Not made anew: that it is gone may be meant, and the chart makes it."""
        metrics.ca_bundle_right.set(0)
        if self._published or not self._looked:
            log.error("no webhook configuration: new pods are not placed by HAMi", name=self._settings.webhook)
        self._published = b""
        self._configuration = None
        # Nobody calls, so nobody distrusts.
        self._seen_trusted(state.trusted)

    def _tell_change(self, *, by_others: bool) -> None:
        if not by_others:
            log.info("CA bundle published", webhook=self._settings.webhook)
            return
        log.warning("CA bundle put right", webhook=self._settings.webhook)
        if self._configuration is not None:
            message = "the CA bundle did not trust the certificate that is served, and was put right"
            self._events.object_event(
                self._configuration, warning=False, reason=EVENT_WEBHOOK_REPAIRED, message=message
            )


def _end(cert: bytes) -> str:
    return f"{x509.load_pem_x509_certificate(cert).not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
