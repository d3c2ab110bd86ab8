"""Container images made without a registry: OCI archives of a root filesystem and the probe."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.integration import probe

BUSYBOX = Path("/bin/busybox")
_APPLETS = ("cat", "find", "ls", "mknod", "rm", "sed", "sh", "sleep", "stat", "tr", "true")
_OCI = "application/vnd.oci.image"


def busybox_root() -> bytes:
    """A root filesystem, as a tarball, whose only program is Debian's static busybox."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, "bin/busybox", BUSYBOX.read_bytes())
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name in ("dev", "etc", "proc", "sys", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
    return buffer.getvalue()


def probe_layer() -> bytes:
    """A tarball with the probe alone, to lie over any root filesystem."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, probe.PATH.lstrip("/"), probe.SCRIPT.encode())
    return buffer.getvalue()


def write(target: Path, name: str, layers: Sequence[bytes]) -> Path:
    """Write an OCI archive that podman and containerd load under `name`.

    Its command waits: containerd also runs a pod's own (pause) container from it.
    """
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    }
    blobs = {_digest(layer): layer for layer in layers}

    def blob(kind: str, data: bytes) -> dict[str, object]:
        blobs[_digest(data)] = data
        return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(data), "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blob("config.v1+json", _json(config)),
        "layers": [blob("layer.v1.tar", layer) for layer in layers],
    }
    names = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
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
