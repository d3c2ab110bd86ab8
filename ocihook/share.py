"""What a container was granted, as the hook's arguments say it."""

from __future__ import annotations

from cdi import cumask
from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HINT = "write the CDI spec anew with `amd-cdi generate`"

REQUIRED = ("pci", "index", "rocr", "cus", "count", "atom", "bytes", "render")
OPTIONAL = ("card", "memory")
KINDS = ("VRAM", "shared")


class Gpu:
    """The part of one GPU, or of one partition of it, that belongs to the share."""

    __slots__ = (
        "atom",
        "bytes",
        "card",
        "count",
        "cus",
        "index",
        "pci",
        "render",
        "rocr",
        "shared",
    )

    def __init__(self, fields: Mapping[str, str]) -> None:
        """Read the fields of one ``--gpu`` argument; raises Refusal on any that is not right."""
        self.pci = _pci(fields["pci"])
        """PCI address, ``dddd:bb:dd.f`` in lower case."""
        self.index = _number(fields, "index", 0, cumask.MAX_GPUS - 1)
        """Index that ROCr gives the GPU inside the container."""
        self.rocr = _rocr(fields["rocr"])
        """Its token in ROCR_VISIBLE_DEVICES."""
        self.count = _number(fields, "count", 1, cumask.MAX_CUS)
        """CUs that the GPU has."""
        self.atom = _number(fields, "atom", 1, self.count)
        """CUs that can only be granted together."""
        self.cus = _cus(fields["cus"], self.count, self.atom)
        """CU set of the share on this GPU."""
        self.bytes = _number(fields, "bytes", 1, 2**63 - 1)
        """Memory of the share here; the controller reads about 2**51 and more as no limit."""
        self.render = _number(fields, "render", 0, 2**20 - 1)
        """Minor of the render node."""
        self.card = _number(fields, "card", 0, 2**20 - 1) if "card" in fields else None
        """Minor of the card node, None where there is none."""
        self.shared = _kind(fields.get("memory", "VRAM")) == "shared"
        """Whether its memory is the host's own (GTT), as an APU's is: dmem does not charge that."""


class Share:
    """A share: its name and its GPUs in container-local order."""

    __slots__ = ("gpus", "library", "name", "values")

    def __init__(self, name: str, gpus: list[Gpu]) -> None:
        """Check that the GPUs are numbered from 0 without a gap."""
        if not gpus:
            raise Refusal("at least one --gpu", "none", node_hint=HINT)
        if [gpu.index for gpu in gpus] != list(range(len(gpus))):
            found = ",".join(str(gpu.index) for gpu in gpus)
            raise Refusal(f"--gpu in the order index=0 to {len(gpus) - 1}", found, node_hint=HINT)
        self.name = name
        self.gpus = gpus
        self.library: str | None = None
        """The library on the host, which alone may be mounted as the library."""
        self.values: str | None = None
        """The file of the share's values on the host, likewise."""

    def vram(self) -> dict[str, int]:
        """Return the bytes of VRAM by PCI device; partitions of one GPU share its memory region."""
        total: dict[str, int] = {}
        for gpu in self.gpus:
            if not gpu.shared:
                total[gpu.pci] = total.get(gpu.pci, 0) + gpu.bytes
        return total

    def shared(self) -> list[str]:
        """Return the PCI addresses of the GPUs whose memory the share has is the host's own."""
        return [gpu.pci for gpu in self.gpus if gpu.shared]

    def minors(self) -> set[int]:
        """Return the DRM minors that the share may use."""
        nodes = {gpu.render for gpu in self.gpus}
        nodes.update(gpu.card for gpu in self.gpus if gpu.card is not None)
        return nodes


def parse_gpu(text: str) -> Gpu:
    """Return the GPU of a ``--gpu`` argument, ``name=value`` pairs joined by commas."""
    fields: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if not equals or name in fields or name not in REQUIRED + OPTIONAL:
            raise Refusal("--gpu with each name=value once", repr(pair[:80]), node_hint=HINT)
        fields[name] = value
    for name in REQUIRED:
        if name not in fields:
            raise Refusal(f"{name}= in --gpu", repr(text[:200]), node_hint=HINT)
    return Gpu(fields)


def _number(fields: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = fields[name]
    if text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    raise Refusal(f"{name}= from {low} to {high} in --gpu", repr(text[:80]), node_hint=HINT)


def _kind(text: str) -> str:
    if text not in KINDS:
        raise Refusal(f"memory={'|'.join(KINDS)} in --gpu", repr(text[:80]), node_hint=HINT)
    return text


def _pci(text: str) -> str:
    digits = set("0123456789abcdef")
    shape = "".join("h" if character in digits else character for character in text)
    if shape not in {"hhhh:hh:hh.h", "hhhhhhhh:hh:hh.h"}:
        raise Refusal("pci=dddd:bb:dd.f in lower case in --gpu", repr(text[:80]), node_hint=HINT)
    return text


def _rocr(text: str) -> str:
    serial = text.removeprefix("GPU-")
    is_index = text.isascii() and text.isdecimal()
    is_serial = serial != text and len(serial) == 16 and not set(serial) - set("0123456789abcdef")
    if not is_index and not is_serial:
        raise Refusal(
            "rocr= an index or GPU-<16 hex digits> in --gpu", repr(text[:80]), node_hint=HINT
        )
    return text


def _cus(text: str, count: int, atom: int) -> int:
    try:
        cus = cumask.parse_cus(text.replace("+", ","))
    except cumask.MaskError as error:
        raise Refusal("cus= a list of CUs in --gpu", str(error), node_hint=HINT) from error
    fault = cumask.fault(cus, count, atom)
    if fault:
        raise Refusal(
            "cus= whole atoms of the GPU in --gpu", f"{text[:80]!r}: {fault}", node_hint=HINT
        )
    return cus
