"""Flags of `hami device-plugin` that change what the node says, seen at the API server (issue 6)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.sim.cluster import SimCluster
from hami.vendors.nvidia.names import HANDSHAKE_KEY, REGISTER_KEY
from tests.deviceplugin.plugin_process import NODE, plugin_process

EIGHT = 8


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("flags", "fields", "stamped"),
    [
        ([], 0, True),
        (["--register-format=csv7"], 7, True),
        (["--register-format=csv9", "--heartbeat=on-change"], 9, False),
        (["--register-format=json", "--heartbeat=always"], 0, True),
    ],
    ids=["neither", "csv7", "csv9 on change", "json always"],
)
async def test_the_register_and_the_stamp_are_as_the_flags_say(flags: list[str], fields: int, stamped: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="hami-dp-") as temporary:
        folder = Path(temporary)
        async with SimCluster(directory=folder) as cluster, ApiClient(Access(cluster.base_url)) as client:
            await cluster.add_node(NODE)
            async with plugin_process(folder, cluster, *flags):
                await cluster.until(
                    f"/api/v1/nodes/{NODE}", lambda node: REGISTER_KEY in node["metadata"].get("annotations", {}), 120
                )
            notes = (await KubeWriter(client).get_node(NODE)).annotations
    text = notes[REGISTER_KEY]
    if fields:
        cards = text.removesuffix(":").split(":")
        assert [card.count(",") + 1 for card in cards] == [fields] * EIGHT
    else:
        assert text.startswith('[{"id":')
    assert (HANDSHAKE_KEY in notes) is stamped
