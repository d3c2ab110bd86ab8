"""Container images made without a registry: a root filesystem with the probe, and its archive."""

import hashlib
import io
import json
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.integration import probe

STATIC_BUSYBOX = Path("/bin/busybox")

_APPLETS = ("cat", "find", "ls", "mknod", "rm", "sed", "sh", "sleep", "stat", "tr", "true")
_OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class Image:
    name: str
    root: Path
    """Folder of the root filesystem; nobody changes it once it is made."""


def add_programs(root: Path) -> None:
    """Add what the probe needs to a root filesystem that has, or will have, /bin/busybox."""
    for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
        (root / folder).mkdir(exist_ok=True)
    for applet in _APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    add_probe(root)


def add_probe(root: Path) -> None:
    script = root / probe.PATH.lstrip("/")
    script.write_text(probe.SCRIPT)
    script.chmod(0o755)


def archive(image: Image, target: Path) -> Path:
    """Write an archive that podman and containerd (as OCI's) and docker load by the image's name.

    Its command waits: containerd also runs a pod's own (pause) container from it.
    """
    tar = ["tar", "--create", "--owner=0", "--group=0", f"--directory={image.root}", "."]
    layer = subprocess.run(tar, stdout=subprocess.PIPE, check=True).stdout
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, object]:
        blobs[_digest(data)] = data
        return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(data), "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blob("config.v1+json", _json(config)),
        "layers": [blob("layer.v1.tar", layer)],
    }
    names = {
        "org.opencontainers.image.ref.name": image.name,
        "io.containerd.image.name": image.name,
    }
    entry = {**blob("manifest.v1+json", _json(manifest)), "annotations": names}
    docker = {
        "Config": _path(_digest(_json(config))),
        "RepoTags": [image.name],
        "Layers": [_path(_digest(layer))],
    }
    with tarfile.open(target, mode="w") as oci:
        _add(oci, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(oci, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
        _add(oci, "manifest.json", _json([docker]))
        for digest, data in blobs.items():
            _add(oci, _path(digest), data)
    return target


def _path(digest: str) -> str:
    """Where an archive keeps a blob."""
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))
