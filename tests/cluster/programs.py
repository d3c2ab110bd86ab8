"""Where the programs of a real Kubernetes are.

Those of Kubernetes come from the folder that KUBEBUILDER_ASSETS names, or packed from beside the
repository; where there are neither, the tests of this folder are skipped, in CI as well. etcd and
the network plugins are Debian's.
"""

import lzma
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import debian, need
from tests.captures import REPOSITORY

NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")


@dataclass(frozen=True)
class Programs:
    kubernetes: Mapping[str, Path]
    etcd: Path
    network: Path
    """Folder of the CNI plugins."""


def programs() -> Programs:
    return Programs(
        {name: _kubernetes(name) for name in NAMES},
        need.fetched(lambda: debian.unpacked("bookworm", "etcd-server")) / "usr/bin/etcd",
        need.fetched(lambda: debian.unpacked("bookworm", "containernetworking-plugins"))
        / "usr/lib/cni",
    )


def _kubernetes(name: str) -> Path:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / name).exists():
        return Path(assets) / name
    packed = _packed() / f"{name}.xz"
    if not packed.exists():
        pytest.skip(
            f"there is no {name} in KUBEBUILDER_ASSETS, and no {packed}; name the folder that has "
            "kubernetes/ in it with AMD_CDI_SHARED"
        )
    status = packed.stat()

    def unpack(place: Path) -> Path:
        folder = place / "unpacked"
        folder.mkdir()
        with lzma.open(packed) as source, (folder / name).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        (folder / name).chmod(0o755)
        return folder

    return debian.kept(f"{name}-{status.st_size}", unpack) / name


def _packed() -> Path:
    return Path(os.environ.get("AMD_CDI_SHARED", REPOSITORY.parent / "shared")) / "kubernetes"
