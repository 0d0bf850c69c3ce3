"""hami/proto is what `make proto` makes of its .proto file today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hami

ROOT = Path(hami.__file__).parent.parent
PROTO = Path("hami/proto/deviceplugin_v1beta1.proto")


def test_generated_messages_are_up_to_date(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, f"--grpc_python_out={tmp_path}", str(PROTO)], cwd=ROOT, check=True)
    made = sorted((tmp_path / PROTO.parent).iterdir())
    assert len(made) == 3
    for path in made:
        assert path.read_text() == (ROOT / PROTO.parent / path.name).read_text(), f"{path.name}: run make proto"
