"""One TLS server process of the benchmark: `python -m tests.bench.serve TARGET SCENE SCALE SEED CORE`.

Prints one JSON line (address, CA file, load time) and serves until its standard input closes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trustme
import uvloop

from hami.web.asgi import App
from hami.web.server import Address, Listener, serving
from tests.bench import application
from tests.bench.scenes import Scale, scenes
from tests.reference.model import Config
from tests.reference.subject import Subject


def main() -> None:
    target, scene, scale, seed, core = sys.argv[1:6]
    if int(core) >= 0:
        os.sched_setaffinity(0, {int(core)})
    application.quiet_logs()
    uvloop.run(_serve(target, scene, Scale(*map(int, scale.split("x"))), int(seed)))


async def _serve(target: str, scene: str, scale: Scale, seed: int) -> None:
    app, facts = await _application(target, scene, scale, seed)
    with tempfile.TemporaryDirectory() as folder:
        cafile = Path(folder) / "ca.pem"
        listener = Listener(Address(https=True, host="127.0.0.1", port=0), app, _tls(cafile))
        async with serving([listener]):
            print(json.dumps({"url": listener.url, "cafile": str(cafile), **facts}), flush=True)
            await asyncio.to_thread(sys.stdin.read)


async def _application(target: str, name: str, scale: Scale, seed: int) -> tuple[App, dict[str, Any]]:
    if target == "noop":
        return application.noop(), {}
    scene = next(item for item in scenes(scale) if item.name == name)
    start = time.perf_counter()
    subject = await Subject.load(scene.nodes(seed), scene.pods(seed), Config())
    loaded_s = time.perf_counter() - start
    gc.collect()
    gc.freeze()
    return application.ours(subject), {"loaded_s": loaded_s}


def _tls(cafile: Path) -> ssl.SSLContext:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    leaf = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    authority.cert_pem.write_to_path(str(cafile))
    return context


if __name__ == "__main__":
    main()
