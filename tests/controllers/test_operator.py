"""kopf in its thread: what it tells, what it asks of the API server, and that it writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from yarl import URL

from hami.controllers.operator import Controllers
from hami.controllers.watched import Watched, config_map, secret, webhook_configuration
from hami.core.errors import ConfigError
from hami.kube.backoff import Backoff
from hami.kube.client import ApiClient
from hami.sim.apiserver.faults import Fault
from hami.sim.cluster import SimCluster
from tests.tools.waiting import until

MERGE = "application/merge-patch+json"
CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
Told = list[Mapping[str, Any] | None]


def a_map(name: str, text: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": text}}


@asynccontextmanager
async def following(cluster: SimCluster, told: Told, name: str = "wanted", **how: Any) -> AsyncIterator[None]:
    how = {"backoff": functools.partial(Backoff, first_s=0.05, cap_s=0.2)} | how
    async with running(cluster.kubeconfig, {config_map("kube-system", name): told.append}, **how):
        yield


@asynccontextmanager
async def running(
    kubeconfig: Path, watched: Mapping[Watched, Callable[[Any], None]], **how: Any
) -> AsyncIterator[None]:
    async with await ApiClient.load(str(kubeconfig)) as client:
        task = asyncio.ensure_future(Controllers(client, str(kubeconfig), watched, **how).run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def texts(told: Told) -> list[str | None]:
    return [each["data"]["key"] if each is not None else None for each in told]


async def test_tells_each_state_of_the_named_object_only(tmp_path: Path) -> None:
    told: Told = []
    async with SimCluster(directory=tmp_path) as cluster:
        await cluster.client.request("POST", CONFIG_MAPS, a_map("other", "x"))
        made = await cluster.client.request("POST", CONFIG_MAPS, a_map("wanted", "one"))
        async with following(cluster, told):
            await until(lambda: texts(told) == ["one"], "the first state")
            for text in ("two", "three"):
                await cluster.client.request(
                    "PATCH", f"{CONFIG_MAPS}/other", {"data": {"key": text}}, content_type=MERGE
                )
                await cluster.client.request(
                    "PATCH", f"{CONFIG_MAPS}/wanted", {"data": {"key": text}}, content_type=MERGE
                )
                await until(lambda text=text: texts(told)[-1] == text, text)  # type: ignore[misc]
            found = await cluster.client.request("GET", f"{CONFIG_MAPS}/wanted")
            assert int(found["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
            assert set(found["metadata"]) == set(made["metadata"]), "kopf wrote nothing of its own"
            await cluster.client.request("DELETE", f"{CONFIG_MAPS}/wanted")
            await until(lambda: told[-1] is None, "the deletion")
    assert texts(told) == ["one", "two", "three", None]


class Relay:
    """TCP between a client and the API server. `fall_silent`: connections stay open and carry nothing any more."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._silent: set[int] = set()
        self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.requests: list[tuple[str, URL]] = []
        """Method and address of each."""

    @property
    def watches(self) -> int:
        return sum(url.query.get("watch") == "true" for _, url in self.requests)

    def fall_silent(self) -> None:
        self._silent = set(range(self._numbers + 1))

    async def start(self, kubeconfig: Path) -> None:
        """Writes a kubeconfig that leads here."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        text = (await asyncio.to_thread(self._cluster.kubeconfig.read_text)).replace(self._cluster.base_url, url)
        await asyncio.to_thread(kubeconfig.write_text, text)

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connecting = asyncio.ensure_future(self._connect(reader, writer))
        self._tasks.add(connecting)
        connecting.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._numbers += 1
        self._writers.append(writer)
        number = self._numbers
        url = URL(self._cluster.base_url)
        up_reader, up_writer = await asyncio.open_connection(url.host, url.port)
        self._writers.append(up_writer)
        for source, target in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.ensure_future(self._carry(number, source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, number: int, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(65536):
                for method, address in re.findall(rb"^([A-Z]+) (/\S*) HTTP/1.1\r$", chunk, re.MULTILINE):
                    self.requests.append((method.decode(), URL(address.decode())))
                if number not in self._silent:
                    target.write(chunk)
                    await target.drain()
        except ConnectionError:
            pass
        finally:
            target.close()


@asynccontextmanager
async def relayed(folder: Path, told: Told, **how: Any) -> AsyncIterator[tuple[SimCluster, Relay]]:
    """A cluster, controllers behind a relay that follow all three kinds of objects."""
    async with SimCluster(directory=folder) as cluster:
        relay = Relay(cluster)
        await relay.start(folder / "relayed")
        watched = {
            config_map("kube-system", "wanted"): told.append,
            secret("kube-system", "pair"): told.append,
            webhook_configuration("hami-webhook"): told.append,
        }
        try:
            async with running(folder / "relayed", watched, **how):
                yield cluster, relay
        finally:
            await relay.stop()


async def test_asks_for_the_one_object_and_nothing_else(tmp_path: Path) -> None:
    """A role with `resourceNames` allows list and watch only with the field selector `metadata.name=NAME`."""
    async with relayed(tmp_path, []) as (_, relay):
        await until(lambda: relay.watches >= 3, "three watches")
    assert {method for method, _ in relay.requests} == {"GET"}
    objects = {
        (CONFIG_MAPS, "metadata.name=wanted"),
        ("/api/v1/namespaces/kube-system/secrets", "metadata.name=pair"),
        ("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", "metadata.name=hami-webhook"),
    }
    read = {(url.path, url.query.get("fieldSelector"), url.query.get("watch")) for _, url in relay.requests}
    discovery = {each for each in read if each[1] is None}
    assert read - discovery == {(*each, watch) for each in objects for watch in (None, "true")}
    assert all(re.fullmatch(r"/api|/apis|/api/v1|/apis/[a-z0-9.]+/v\w+", path) for path, _, _ in discovery)


async def test_a_watch_that_is_connected_and_silent_is_made_anew(tmp_path: Path) -> None:
    """B55: the connection stays open, nothing comes: what changed meanwhile is told all the same."""
    told: Told = []
    async with relayed(tmp_path, told, silence_s=1.0) as (cluster, relay):
        await until(lambda: relay.watches >= 3, "three watches")
        relay.fall_silent()
        await cluster.client.request("POST", CONFIG_MAPS, a_map("wanted", "behind the silent watch"))
        await until(lambda: texts(told)[-1:] == ["behind the silent watch"], "the change")


@pytest.mark.parametrize("fault", ["cut", "forgotten", "refused"])
async def test_goes_on_after_faults_of_the_api_server(tmp_path: Path, fault: str) -> None:
    told: Told = []
    async with SimCluster(directory=tmp_path) as cluster:
        await cluster.client.request("POST", CONFIG_MAPS, a_map("wanted", "one"))
        ordered = []
        if fault == "refused":
            ordered.append(cluster.api.faults.add(Fault("internal-error", verb="list", resource="configmaps", times=1)))
        async with following(cluster, told):
            await until(lambda: texts(told)[-1:] == ["one"], "the first state")
            if fault == "forgotten":
                cluster.api.faults.forget_history()
            if fault != "refused":
                cluster.api.faults.cut_watches("configmaps")
            await cluster.client.request("PATCH", f"{CONFIG_MAPS}/wanted", {"data": {"key": "two"}}, content_type=MERGE)
            await until(lambda: texts(told)[-1] == "two", "a change after the fault")
        assert all(each.hits >= each.times for each in ordered if each.times)


async def test_tells_that_an_object_is_not_there(tmp_path: Path) -> None:
    """Once, and only while it is true: kopf says nothing where nothing is listed."""
    told: Told = []
    async with SimCluster(directory=tmp_path) as cluster, following(cluster, told, absence_s=0.05):
        await until(lambda: told == [None], "that there is none")
        await cluster.client.request("POST", CONFIG_MAPS, a_map("wanted", "one"))
        await until(lambda: texts(told)[-1:] == ["one"], "the first state")
        looked = len([seen for seen in cluster.api.seen if seen.verb == "list"])
        await until(lambda: len([seen for seen in cluster.api.seen if seen.verb == "list"]) > looked + 3, "more looks")
        assert texts(told) == [None, "one"]


async def test_tells_a_deletion_that_no_watch_saw(tmp_path: Path) -> None:
    """It happens while the controllers' connections are dead, and the history is forgotten meanwhile."""
    told: Told = []
    async with relayed(tmp_path, told, silence_s=1.0, absence_s=0.2) as (cluster, relay):
        await cluster.client.request("POST", CONFIG_MAPS, a_map("wanted", "one"))
        await until(lambda: texts(told)[-1:] == ["one"], "the first state")
        relay.fall_silent()
        await cluster.client.request("DELETE", f"{CONFIG_MAPS}/wanted")
        cluster.api.faults.forget_history()
        await until(lambda: told[-1] is None, "that it is gone")


async def test_a_right_that_is_missing_for_one_object_leaves_the_others_alone(tmp_path: Path) -> None:
    """The others' watches are neither cut nor made anew, and changes come at once."""
    told: Told = []
    async with SimCluster(directory=tmp_path) as cluster:
        await cluster.client.request("POST", CONFIG_MAPS, a_map("wanted", "0"))
        refused = cluster.api.faults.add(Fault("internal-error", verb="list", resource="secrets"))
        watched = {config_map("kube-system", "wanted"): told.append, secret("kube-system", "pair"): told.append}
        pauses = functools.partial(Backoff, first_s=0.05, cap_s=0.05)
        async with running(cluster.kubeconfig, watched, backoff=pauses):
            await until(lambda: texts(told)[-1:] == ["0"] and refused.hits > 1, "the first state, and refusals")
            for text in "123":
                await cluster.client.request(
                    "PATCH", f"{CONFIG_MAPS}/wanted", {"data": {"key": text}}, content_type=MERGE
                )
                await until(lambda text=text: texts(told)[-1:] == [text], text)  # type: ignore[misc]
            ended = [seen for seen in cluster.api.seen if (seen.verb, seen.resource) == ("watch", "configmaps")]
            assert ended == []
    assert texts(told) == list("0123")


def test_objects_in_two_namespaces_are_refused_by_name() -> None:
    watched = {config_map("one", "c"): lambda _: None, secret("two", "s"): lambda _: None}
    with pytest.raises(ConfigError, match="one and two"):
        Controllers(cast(ApiClient, None), None, watched)


async def test_an_end_is_quick_and_leaves_no_thread(tmp_path: Path) -> None:
    async with relayed(tmp_path, []) as (_, relay):
        await until(lambda: relay.watches >= 3, "three watches")
        began_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began_s < 4.0
    assert not {thread.name for thread in threading.enumerate() if thread.name.startswith("hami ")}
