"""`make shim` and `make shim-debug`: builds libvgpu.so and vgpu-info with meson into HAMI_CACHE/shim/<kind>."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(kind: str) -> int:
    if not shutil.which("cc"):
        print("the shim needs a C compiler: install one (Debian: apt-get install gcc libc6-dev)", file=sys.stderr)
        return 1
    tools = Path(sys.executable).parent
    cache = Path(os.environ.get("HAMI_CACHE", Path.home() / ".cache" / "hami"))
    build = cache / "shim" / kind
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    options = [f"--buildtype={'release' if kind == 'release' else 'debug'}"]
    if not (build / "build.ninja").exists():
        setup = ["meson", "setup", str(build), str(ROOT / "hami" / "shim"), *options]
        if subprocess.run(setup, env=environment, check=False).returncode:
            return 1
    status = subprocess.run(["ninja", "-C", str(build)], env=environment, check=False).returncode
    if status == 0:
        print(f"built {', '.join(sorted(str(path) for path in build.glob('libvgpu.so*') if path.is_file()))}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
