"""Leadership is kube-scheduler's: whoever runs beside the holder of its Lease leads (spec/scheduler 6.5, design 4).

The Lease is watched; before a request is refused it is read once, live, because the watch may be late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from hami.core.errors import ApiError, NotFoundError, TransportError
from hami.core.versions import is_older
from hami.kube import paths
from hami.kube.client import ApiClient
from hami.kube.lease import Lease, ObservedLease, lease_decoder
from hami.kube.listing import decode_answer
from hami.kube.ratelimit import Lane
from hami.kube.reflector import EventType, Reflector

_READ_LIMIT_S: Final = 2.0
"""kube-scheduler waits meanwhile; an answer that comes late is worth less than a clear one."""

log = structlog.get_logger(__name__)


class Leadership:
    """Follows one Lease. `host` is the name that its holder must have before the last `_`, exactly.

    `on_change(leads)` is called on the event loop whenever leadership was won or lost.
    """

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        name: str,
        host: str,
        on_change: Callable[[bool], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._path = paths.lease(namespace, name)
        self._title = f"{namespace}/{name}"
        self._host = host
        self._on_change = on_change
        self._monotonic_s = monotonic_s
        self._lease = ObservedLease()
        self._leads = False
        self._news = asyncio.Event()
        self._read: asyncio.Task[str] | None = None
        self._reflector = Reflector(
            client,
            paths.leases_in(namespace),
            lease_decoder,
            self._listed,
            self._changed,
            field_selector=f"metadata.name={name}",
            on_restored=self._lease.forget_version,
        )

    @property
    def leads(self) -> bool:
        """Whether our kube-scheduler holds the Lease and was seen to renew it in time."""
        self._settle()
        return self._leads

    async def run(self) -> None:
        """Follows the Lease until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._notice_expiry())

    async def refusal(self) -> str:
        """Why this replica does not answer `/filter` and `/bind`; empty if it leads. Reads the Lease where needed."""
        if self.leads:
            return ""
        if self._read is None:
            self._read = asyncio.create_task(self._look())
        problem = await asyncio.shield(self._read)
        if self.leads:
            return ""
        return f"this scheduler ({self._host}) does not lead: {problem or self._who()}"

    async def _look(self) -> str:
        """One live read; concurrent callers share it. Returns why it failed."""
        known = self._lease.version
        try:
            body = await self._client.request("GET", self._path, lane=Lane.BIND, timeout_s=_READ_LIMIT_S)
            lease = decode_answer(body, lease_decoder, self._path)
            if self._lease.version == known and is_older(lease.metadata.resource_version, known):
                # A live read is never older than what was known before it, unless etcd has been restored.
                self._lease.forget_version()
            self._take(lease)
        except NotFoundError:
            self._gone()
        except (ApiError, TransportError) as error:
            return f"lease {self._title} cannot be read: {error}"
        finally:
            self._read = None
        return ""

    def _who(self) -> str:
        if not self._lease.holder:
            return f"nobody holds lease {self._title}"
        expired = self._lease.valid_until_s <= self._monotonic_s()
        return f"lease {self._title} is held by {self._lease.holder}" + (" and has expired" if expired else "")

    def _listed(self, leases: Sequence[Lease]) -> None:
        if leases:
            self._take(leases[0])
        else:
            self._gone()

    def _changed(self, kind: EventType, lease: Lease) -> None:
        if kind is EventType.DELETED:
            self._gone()
        else:
            self._take(lease)

    def _take(self, lease: Lease) -> None:
        self._lease.take(lease, self._monotonic_s())
        self._settle()

    def _gone(self) -> None:
        self._lease.lose()
        self._settle()

    def _settle(self) -> None:
        self._news.set()
        lease = self._lease
        leads = lease.holder_host == self._host and self._monotonic_s() < lease.valid_until_s
        if leads != self._leads:
            self._leads = leads
            log.info("leads" if leads else "follows", lease=self._title, holder=lease.holder, host=self._host)
            self._on_change(leads)

    async def _notice_expiry(self) -> None:
        while True:
            self._settle()
            self._news.clear()
            left_s = self._lease.valid_until_s - self._monotonic_s() if self._leads else None
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                continue
