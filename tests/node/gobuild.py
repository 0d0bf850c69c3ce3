"""Programs built from the Go module proxy, once, into `$HAMI_CACHE`; go.mod and go.sum beside them pin every version.

A build lands in a folder named after a hash of those files, by one rename: an interrupted one leaves nothing half-made.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import tempfile
from pathlib import Path

from tests.cluster.build import BuildError, cache_root, compile_module

FLAGS = "-s -w"


def built(source: Path, module: str, what: str = ".", tags: str = "", progress: bool = True) -> Path:
    """Folder with the programs of `source`, whose go.mod requires `module`; built if need be.

    `what` and `tags` are those of `tests.cluster.build.compile_module`. Raises BuildError.
    """
    files = b"".join(file.read_bytes() for file in sorted(source.iterdir()))
    target = cache_root() / source.name / hashlib.sha256(files + tags.encode()).hexdigest()[:12]
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            staging = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
            try:
                compile_module(source, _version(source, module), staging, FLAGS, progress, what, tags)
                staging.chmod(0o755)
                staging.rename(target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return target


def _version(source: Path, module: str) -> str:
    found = re.search(rf"^(?:require|)\s*{re.escape(module)} (v\S+)", (source / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{source.name}/go.mod does not require {module}")
    return found[1]
