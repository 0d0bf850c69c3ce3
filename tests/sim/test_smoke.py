"""The cluster starts, says where it is, and ends cleanly."""

from __future__ import annotations

import aiohttp
import yaml

from hami.sim.cluster import SimCluster


async def test_cluster_serves_what_its_kubeconfig_says() -> None:
    async with SimCluster() as cluster, aiohttp.ClientSession() as session:
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        assert config["clusters"][0]["cluster"]["server"] == cluster.base_url
        async with session.get(f"{cluster.base_url}/api/v1/namespaces/default") as response:
            assert response.status == 200
    assert not cluster.kubeconfig.exists()
