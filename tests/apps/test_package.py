"""What a wheel holds: every committed file of the package that runs, or that something running reads."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_committed_file_of_the_package_is_in_the_wheel() -> None:
    listed = subprocess.run(["git", "ls-files", "hami"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not in a git checkout")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["hami"]
    data = {path for pattern in patterns for path in (ROOT / "hami").glob(pattern)}
    files = {ROOT / name for name in listed.stdout.splitlines()}
    missing = {file for file in files - data if file.suffix != ".py" and file.exists()}
    assert {str(file.relative_to(ROOT)) for file in missing} == set()


def test_every_folder_with_modules_is_a_package() -> None:
    """setuptools finds packages by their `__init__.py`; a folder without one would stay behind."""
    folders = {file.parent for file in (ROOT / "hami").rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()
