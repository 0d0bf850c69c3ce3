"""Files of a certificate belong together, whatever happens while they are written."""

from __future__ import annotations

import datetime
import errno
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from hami.certs import make
from hami.core.errors import CertificateError

NOW = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
NAMES = ["ca.crt", "ca.key", "tls.crt", "tls.key"]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _check_belong_together(folder: Path) -> None:
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    served = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
    served.verify_directly_issued_by(authority)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "tls.crt", folder / "tls.key")
    key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == authority.public_key()


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_full_disk_changes_nothing(failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.write_pair(make.make_pair(["a"], NOW, 10), tmp_path)
    before = _contents(tmp_path)
    calls = 0

    def full(_handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CertificateError, match="No space left on device"):
        make.write_pair(make.make_pair(["a"], NOW, 10), tmp_path)
    assert _contents(tmp_path) == before


def test_of_many_at_once_one_is_there_in_the_end(tmp_path: Path) -> None:
    pairs = [make.make_pair(["a"], NOW, 10) for _ in range(8)]
    with ThreadPoolExecutor(len(pairs)) as pool:
        for done in [pool.submit(make.write_pair, pair, tmp_path) for pair in pairs * 10]:
            done.result()
    assert sorted(_contents(tmp_path)) == NAMES
    _check_belong_together(tmp_path)


def test_a_part_that_lies_there_is_not_written_into(tmp_path: Path) -> None:
    """Left by a killed process, or planted: its mode and where it leads are a stranger's."""
    folder, elsewhere = tmp_path / "certs", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_bytes(b"kept")
    (folder / ".ca.key.part").symlink_to(elsewhere)
    (folder / ".tls.key.part").touch(0o666)
    make.write_pair(make.make_pair(["a"], NOW, 10), folder)
    assert elsewhere.read_bytes() == b"kept"
    assert sorted(_contents(folder)) == NAMES
    assert [(folder / name).stat().st_mode & 0o777 for name in ("ca.key", "tls.key")] == [0o600, 0o600]
    _check_belong_together(folder)
