"""Container images made without a registry, from Debian packages and the probe."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration import probe

STATIC_BUSYBOX = Path("/bin/busybox")

_APPLETS = ("cat", "find", "ls", "mknod", "rm", "sed", "sh", "sleep", "stat", "tr", "true")
_OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class Image:
    name: str
    layers: Sequence[Path]
    """Tarballs, from the bottom up."""


def layer(target: Path, *folders: Path) -> Path:
    """The files of these folders together, owned by root."""
    choice = [word for folder in folders for word in (f"--directory={folder}", ".")]
    options = [f"--file={target}", "--owner=0", "--group=0"]
    subprocess.run(["tar", "--create", *options, *choice], check=True)
    return target


def busybox_layer(target: Path, busybox: Path | None) -> Path:
    """A tarball of the folders and programs that the probe needs.

    `busybox` is the program behind them, None if another layer brings it as /bin/busybox.
    """
    with tarfile.open(target, mode="w") as tar:
        for name in ("dev", "etc", "proc", "sys", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        if busybox:
            _add(tar, "bin/busybox", busybox.read_bytes())
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        _add(tar, probe.PATH.lstrip("/"), probe.SCRIPT.encode())
    return target


def unpack(image: Image, target: Path) -> Path:
    """The root filesystem of an image, as a folder."""
    target.mkdir()
    for tarball in image.layers:
        options = [f"--file={tarball}", f"--directory={target}", "--keep-directory-symlink"]
        subprocess.run(["tar", "--extract", "--preserve-permissions", *options], check=True)
    return target


def archive(image: Image, target: Path) -> Path:
    """Write an OCI archive that podman and containerd load under the image's name.

    Its command waits: containerd also runs a pod's own (pause) container from it.
    """
    layers = [tarball.read_bytes() for tarball in image.layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    }
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, object]:
        blobs[_digest(data)] = data
        return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(data), "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blob("config.v1+json", _json(config)),
        "layers": [blob("layer.v1.tar", layer) for layer in layers],
    }
    names = {
        "org.opencontainers.image.ref.name": image.name,
        "io.containerd.image.name": image.name,
    }
    entry = {**blob("manifest.v1+json", _json(manifest)), "annotations": names}
    with tarfile.open(target, mode="w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
        for digest, data in blobs.items():
            _add(tar, f"blobs/{digest.replace(':', '/')}", data)
    return target


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value).encode()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o755
    tar.addfile(entry, io.BytesIO(data))
