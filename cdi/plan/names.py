"""How GPUs, partitions and shares are called, by people and as CDI devices."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdi.errors import PermanentError
from cdi.node.gpu import Gpu, Partition

MAX_SHARE_NAME = 63
"""Characters of a share's name, as of a DNS label."""

MAX_DEVICE_NAME = 200
"""Characters of a share's device; files are named by it, and Linux takes 255 bytes."""


PCI = r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
GPU = re.compile(
    rf"(\d{{1,4}}|[0-9a-f]{{4,8}}:{PCI}|[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}|gpu-[0-9a-f]{{16}})(:\d{{1,4}})?",
    re.ASCII,
)
"""Index, PCI address, UUID or ROCr id, and the partition, all in lower case."""


def gpu_names(gpu: Gpu, strategies: Sequence[str]) -> list[str]:
    """Return what a GPU is called by each strategy that has a name for it."""
    by_strategy = {"index": str(gpu.index), "uuid": gpu.uuid, "pci": gpu.pci}
    return [by_strategy[strategy] for strategy in strategies if by_strategy[strategy]]


def partition_names(gpu: Gpu, partition: Partition, strategies: Sequence[str]) -> list[str]:
    """Return what a partition is called by each strategy; a whole GPU is called as the GPU."""
    suffix = f":{partition.index}" if gpu.partitioned else ""
    return [f"{name}{suffix}" for name in gpu_names(gpu, strategies)]


def label(gpu: Gpu, partition: Partition) -> str:
    """Return the short name of a partition: ``0``, or ``0:3`` on a partitioned GPU."""
    return partition_names(gpu, partition, ("index",))[0]


def gpu_name(text: str) -> str:
    """Return what text names a GPU or a partition by, in lower case.

    As lspci does, a PCI address may leave out the domain 0000. Raises PermanentError for what no
    GPU is called, on whatever node.
    """
    name = text.lower()
    if re.match(PCI, name):
        name = f"0000:{name}"
    if not GPU.fullmatch(name):
        raise PermanentError(
            "a GPU goes by its index, UUID or PCI address, with :PARTITION if it is partitioned, "
            f"found {text[:80]!r}",
            "give for example --gpu 0, and --gpu again for each further GPU",
        )
    return name


def share_device(name: str) -> str:
    """Return the CDI device of a share that a user names.

    Raises PermanentError for a name that no CDI device may have.
    """
    if not is_device(name) or len(name) > MAX_SHARE_NAME or ":" in name:
        raise PermanentError(
            f"a share's name has 1 to {MAX_SHARE_NAME} letters, digits, '-', '_' and '.', with a "
            f"letter or digit at both ends; found {name[:80]!r}",
            "choose another name",
        )
    return f"share-{name}"


def is_device(name: str) -> bool:
    """Whether a CDI device may have this name, and a file may be named by it."""
    return (
        0 < len(name) <= MAX_DEVICE_NAME
        and name.isascii()
        and name[0].isalnum()
        and name[-1].isalnum()
        and all(char.isalnum() or char in "-_.:" for char in name)
    )


def is_made(name: str) -> bool:
    """Whether a share was made by command: what ``share_device`` returns."""
    return name.startswith("share-")


def is_of_pod(name: str) -> bool:
    """Whether a share is one of a pod's container, which lives as long as the pod."""
    return name.startswith("pod-")


def is_share(name: str) -> bool:
    """Whether a share may be called so: one made by command, of a pod, or of equal parts."""
    gpu, _, place = name.rpartition("-")
    part, _, parts = place.partition("of")
    is_part = bool(gpu) and part.isdecimal() and parts.isdecimal()
    return is_device(name) and (is_made(name) or is_of_pod(name) or is_part)


def spec_file(main: str, share: str) -> str:
    """Return the file that the device of a share stands in; ``main`` is that of the GPUs.

    A pod's share comes and goes with the pod, and has one of its own, called as CDI's library calls
    transient specs: ``<vendor>-<class>_<id>``.
    """
    if not is_of_pod(share):
        return main
    stem, dot, suffix = main.rpartition(".")
    return f"{stem}_{share}{dot}{suffix}"


def is_pod_spec(main: str, file: str) -> bool:
    """Whether a file is called as that of a pod's share beside the one of the GPUs."""
    stem, dot, suffix = main.rpartition(".")
    share = file.removeprefix(f"{stem}_").removesuffix(dot + suffix)
    return is_of_pod(share) and is_share(share) and file == spec_file(main, share)
