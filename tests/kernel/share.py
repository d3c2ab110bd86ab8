"""Shares of the guest's GPUs, and what the CDI device of one gives its container."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kernel.containers import Bind, Hook, Stage
from tests.kernel.guest import Region
from tests.kernel.tools import Tools

_LIBRARY = "/usr/local/vgpu/libamvgpu.so"
_VALUES = "/usr/local/vgpu/share.conf"


@dataclass(frozen=True)
class Part:
    """What a share has of one GPU; its compute units are the same everywhere here."""

    region: Region
    bytes: int
    shared: bool = False
    """Whether the memory is the host's own, which dmem does not charge."""


@dataclass(frozen=True)
class Share:
    name: str
    parts: Sequence[Part]

    def environment(self) -> dict[str, str]:
        """What keeps a container's ROCm within the share."""
        return {
            "ROCR_VISIBLE_DEVICES": ",".join(str(i) for i, _ in enumerate(self.parts)),
            "HSA_CU_MASK": ";".join(f"{i}:0-71" for i, _ in enumerate(self.parts)),
            "LD_AUDIT": _LIBRARY,
            **{
                f"HIP_DEVICE_MEMORY_LIMIT_{i}": str(part.bytes) for i, part in enumerate(self.parts)
            },
        }

    def hook(self, path: str, require: str, stage: Stage = "prestart", *more: str) -> Hook:
        """The hook that holds a container to this share under a policy."""
        gpus = [("--gpu", _gpu(index, part)) for index, part in enumerate(self.parts)]
        words = [word for pair in gpus for word in pair]
        args = ["amd-oci-hook", "run", "--share", self.name, "--require", require, *words, *more]
        return Hook(path, args, stage)


def binds(tools: Tools, share: Share) -> list[Bind]:
    """What brings the library and the share's values into a container."""
    values = Path(tempfile.gettempdir()) / f"{share.name}.conf"
    values.write_text("".join(f"{name}={value}\n" for name, value in share.environment().items()))
    return [Bind(tools.library, _LIBRARY), Bind(values, _VALUES)]


def _gpu(index: int, part: Part) -> str:
    """An MI300X: 304 compute units, granted eight by eight."""
    address = part.region.name.split("/")[1]
    memory = ",memory=shared" if part.shared else ""
    return (
        f"pci={address},index={index},rocr={index},cus=0-71,count=304,atom=8,"
        f"bytes={part.bytes},render={128 + index}{memory}"
    )
