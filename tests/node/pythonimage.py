"""An image of this very Python with our package and what it needs at run time, made from files of this machine.

Everything keeps its path, so nothing has to be installed or relocated; shared libraries are found by ldd. It stands in
for the released image where there is no registry and no builder: what runs in it is the code under test.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import sysconfig
from pathlib import Path

from tests.node import images

NAME = "localhost/hami-python:1"
ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements/runtime.lock"
UNUSED_STANDARD_LIBRARY = (
    "__pycache__",
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
)


def image() -> images.Image:
    """Interpreter, standard library, locked packages and `hami`; a container's args are those of the `hami` command."""
    interpreter = Path(sys.executable).resolve()
    standard = Path(sysconfig.get_path("stdlib"))
    files = {str(interpreter): interpreter}
    files |= images.tree(standard, str(standard), UNUSED_STANDARD_LIBRARY)
    for name in re.findall(r"^([A-Za-z0-9_.-]+)==", LOCK.read_text(), re.MULTILINE):
        files |= _distribution(name)
    files |= images.tree(ROOT / "hami", str(ROOT / "hami"))
    libraries = [path for inside, path in files.items() if re.search(r"\.so(\.|$)", inside)]
    files |= images.with_libraries([interpreter, *libraries])
    packages = sysconfig.get_path("purelib")
    environment = {"PYTHONPATH": f"{packages}:{ROOT}", "PYTHONHOME": sys.base_prefix, "PYTHONUNBUFFERED": "1"}
    return images.Image(NAME, files, {}, command(), environment)


def command() -> list[str]:
    """How a container of the image calls the `hami` command."""
    return [str(Path(sys.executable).resolve()), "-m", "hami.apps"]


def _distribution(name: str) -> dict[str, Path]:
    """Files of an installed package; none where the lock file means another platform."""
    try:
        found = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    paths = [Path(str(file.locate())) for file in found if "__pycache__" not in file.parts and ".." not in file.parts]
    return {str(path): path for path in paths if path.is_file()}
