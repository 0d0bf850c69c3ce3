"""The cluster starts, says where it is, and ends cleanly."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme
import yaml

from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.server import TlsFiles
from hami.sim.cluster import SimCluster
from tests.sim.http import pod


async def test_cluster_serves_what_its_kubeconfig_says() -> None:
    async with SimCluster() as cluster, aiohttp.ClientSession() as session:
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        assert config["clusters"][0]["cluster"]["server"] == cluster.base_url
        async with session.get(f"{cluster.base_url}/api/v1/namespaces/default") as response:
            assert response.status == 200
    assert not cluster.kubeconfig.exists()


async def test_the_server_can_speak_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(files.key)
    issued.cert_chain_pems[0].write_to_path(files.cert)
    authority.cert_pem.write_to_path(files.ca)
    async with SimCluster(api=ApiServer(tls=files)) as cluster:
        assert cluster.base_url.startswith("https://127.0.0.1:")
        entry = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
        context = ssl.create_default_context(cafile=entry["certificate-authority"])
        connector = aiohttp.TCPConnector(ssl=context)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"{entry['server']}/version") as got,
        ):
            assert (await got.json())["minor"] == "34"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
async def test_kubectl_works_on_it(tmp_path: Path) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(yaml.safe_dump(pod("a")))

    async with SimCluster() as cluster:
        await cluster.add_node("n1")
        await cluster.start_scheduler()

        async def kubectl(*arguments: str) -> str:
            process = await asyncio.create_subprocess_exec(
                "kubectl",
                f"--kubeconfig={cluster.kubeconfig}",
                f"--cache-dir={tmp_path}",
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output = (await process.communicate())[0].decode()
            assert process.returncode == 0, output
            return output

        assert "pod/a created" in await kubectl("apply", "-f", str(manifest))
        await kubectl("wait", "--for=condition=Ready", "pod/a", "--timeout=60s")
        table = (await kubectl("get", "pods", "-o", "wide")).splitlines()
        assert table[0].split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
        assert table[1].split()[:3] == ["a", "1/1", "Running"]
        assert "Successfully assigned default/a to n1" in await kubectl("describe", "pod", "a")
        assert "Ready" in await kubectl("get", "nodes")
        assert "pod/a annotated" in await kubectl("annotate", "pod", "a", "x=y")
        await kubectl("delete", "pod", "a", "--grace-period=1")
        assert "No resources found" in await kubectl("get", "pods")
