"""What a scheduler keeps right at people's speed: the device configuration, its certificate, who trusts it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from hami.apps import runtime
from hami.apps.device_config_reload import DeviceConfigReload
from hami.certs.keeper import CertificateKeeper, KeeperSettings
from hami.certs.reload import ReloadingContext, ServingContext
from hami.certs.trust import TrustWatch
from hami.config.device_config import DeviceConfig
from hami.config.scheduler import SchedulerSettings
from hami.controllers.operator import Controllers
from hami.controllers.watched import Told, Watched, config_map, secret, webhook_configuration
from hami.kube.client import ApiClient
from hami.kube.events import EventRecorder
from hami.placement.world import World

Job = Coroutine[Any, Any, None]


class Upkeep:
    """Parts by the settings, and the jobs that they need."""

    def __init__(
        self,
        settings: SchedulerSettings,
        client: ApiClient,
        recorder: EventRecorder,
        world: World,
        config: DeviceConfig,
    ) -> None:
        self._settings = settings
        self._client = client
        source = settings.upkeep.device_config_map
        title = f"{source.namespace}/{source.name}" if source is not None else ""
        self._reload = DeviceConfigReload(config, world.take_rules, recorder, config_map=title)
        self._files: ReloadingContext | None = None
        self._keeper: CertificateKeeper | None = None
        self._serving = ServingContext()
        self._recorder = recorder
        self._trust: TrustWatch | None = None
        upkeep = settings.upkeep
        if upkeep.tls_secret is not None:
            keeper = KeeperSettings(
                namespace=upkeep.tls_secret.namespace,
                secret=upkeep.tls_secret.name,
                hosts=upkeep.certificate_hosts,
                days=upkeep.certificate_days,
                webhook=upkeep.webhook_configuration,
                settle_s=upkeep.certificate_settle_s,
            )
            self._keeper = CertificateKeeper(client.request, keeper, self._serving, recorder)

    async def serving(self) -> ServingContext | None:
        """What https listeners serve with, loaded; None for plain http. Raises CertificateError, and what calls to the
        API server raise."""
        settings = self._settings
        found: ServingContext | None = None
        if self._keeper is not None:
            await self._keeper.start()
            found = self._serving
        elif settings.cert_file and settings.key_file:
            found = self._files = ReloadingContext(settings.cert_file, settings.key_file)
        if found is not None and settings.upkeep.webhook_configuration:
            self._trust = TrustWatch(found, self._recorder)
        return found

    def missing(self) -> str:
        """What readiness waits for: a webhook whose certificate nobody trusts is none."""
        parts = [part for part in (self._keeper, self._trust) if part is not None]
        return next(filter(None, (part.missing() for part in parts)), "")

    def jobs(self, synced: asyncio.Event) -> list[Job]:
        """kopf starts when the scheduler is synced: until then the lists need the time."""
        settings = self._settings
        jobs: list[Job] = [self._reload.run()]
        if settings.upkeep.device_config_map is None:
            jobs.append(self._reload.follow_file(settings.device_config_file))
        if self._files is not None and settings.cert_file and settings.key_file:
            jobs.append(runtime.follow_files(self._files, settings.cert_file, settings.key_file))
        if self._keeper is not None:
            jobs.append(self._keeper.run())
        if self._trust is not None:
            jobs.append(self._trust.run())
        watched = self._watched()
        if watched:
            jobs.append(_after(synced, Controllers(self._client, settings.kubeconfig or None, watched)))
        return jobs

    def _watched(self) -> dict[Watched, Told]:
        upkeep = self._settings.upkeep
        watched: dict[Watched, Told] = {}
        if upkeep.device_config_map is not None:
            name = upkeep.device_config_map
            watched[config_map(name.namespace, name.name)] = self._reload.on_config_map
        if upkeep.tls_secret is not None and self._keeper is not None:
            watched[secret(upkeep.tls_secret.namespace, upkeep.tls_secret.name)] = self._keeper.on_secret
        if upkeep.webhook_configuration:
            watched[webhook_configuration(upkeep.webhook_configuration)] = self._on_webhook_configuration
        return watched

    def _on_webhook_configuration(self, found: Mapping[str, Any] | None) -> None:
        for part in (self._keeper, self._trust):
            if part is not None:
                part.on_webhook_configuration(found)


async def _after(synced: asyncio.Event, controllers: Controllers) -> None:
    await controllers.load()
    await synced.wait()
    await controllers.run()
