"""containerd, its shim and `ctr`, built from the Go module proxy: Debian's containerd 1.6 knows no CDI.

The pinned release is of a series that still runs with cgroups of version 1 and with the runc of Debian's packages.
go/containerd has no source: its go.mod names containerd's own programs as tools.
Cold this takes about 75 s on two cores, and 0.7 GB of Go caches beside those of Kubernetes.
"""

from __future__ import annotations

from pathlib import Path

from tests.node import gobuild

SOURCE = Path(__file__).parent / "go/containerd"
TAGS = "no_btrfs no_zfs no_devmapper no_aufs"


def build(progress: bool = True) -> Path:
    """Folder with the programs, built if need be. Raises tests.cluster.build.BuildError."""
    return gobuild.built(SOURCE, "github.com/containerd/containerd/v2", "tool", TAGS, progress)
