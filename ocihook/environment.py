"""Whether the environment that the container will start with keeps ROCm inside the share.

HSA_CU_MASK fails open: what ROCr cannot read, and a GPU that no set names, leave the whole GPU to
the process. HIP_VISIBLE_DEVICES, and likewise GPU_DEVICE_ORDINAL and CUDA_VISIBLE_DEVICES, only
choose among the GPUs that ROCR_VISIBLE_DEVICES leaves (HIP documentation, GPU isolation), so the
two aliases need no check.
"""

from __future__ import annotations

from cdi import cumask
from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ocihook.share import Gpu, Share

SUFFIXES = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

FORBIDDEN = ("HSA_CU_MASK_SKIP_INIT",)
"""Variables that make ROCr skip the mask."""


def check(environment: Mapping[str, str], share: Share, where: str) -> None:
    """Raise Refusal unless the environment holds ROCm to the share; ``where`` names its source."""
    for name in FORBIDDEN:
        if name in environment:
            raise Refusal(
                f"no {name} in {where}",
                f"{name}={environment[name][:80]!r}, which lifts the CU mask",
                "remove the variable from the image or from the container",
            )
    _check_rocr(environment, share, where)
    _check_hip(environment, share, where)
    _check_mask(environment, share, where)
    for gpu in share.gpus:
        _check_limit(environment, gpu, where)


def _check_rocr(environment: Mapping[str, str], share: Share, where: str) -> None:
    expected = ",".join(gpu.rocr for gpu in share.gpus)
    found = environment.get("ROCR_VISIBLE_DEVICES")
    if found != expected:
        raise Refusal(
            f"ROCR_VISIBLE_DEVICES={expected} in {where}",
            _shown(found),
            _own("ROCR_VISIBLE_DEVICES"),
        )


def _check_hip(environment: Mapping[str, str], share: Share, where: str) -> None:
    found = environment.get("HIP_VISIBLE_DEVICES")
    if not found:
        return
    known = {str(gpu.index) for gpu in share.gpus} | {gpu.rocr for gpu in share.gpus}
    for token in found.split(","):
        if token not in known:
            raise Refusal(
                f"HIP_VISIBLE_DEVICES within 0 to {len(share.gpus) - 1} in {where}",
                _shown(found),
                _own("HIP_VISIBLE_DEVICES"),
            )


def _check_mask(environment: Mapping[str, str], share: Share, where: str) -> None:
    expected = cumask.format_mask([gpu.cus for gpu in share.gpus])
    found = environment.get("HSA_CU_MASK")
    fault = _mask_fault(found, share)
    if fault:
        raise Refusal(
            f"HSA_CU_MASK within {expected} in {where}",
            f"{_shown(found)}: {fault}",
            _own("HSA_CU_MASK"),
        )


def _mask_fault(text: str | None, share: Share) -> str | None:
    """Say why a mask does not hold every GPU of the share to its CUs; None if it does."""
    if not text:
        return "every GPU keeps all of its CUs"
    try:
        sets = cumask.parse_mask(text)
    except cumask.MaskError as error:
        return str(error)
    for gpu in share.gpus:
        wrong = _set_fault(sets.pop(gpu.index, 0), gpu)
        if wrong:
            return f"GPU {gpu.index}: {wrong}"
    return f"GPU {min(sets)} is not of the share" if sets else None


def _set_fault(bits: int, gpu: Gpu) -> str | None:
    """Say why a CU set, 0 for none, does not hold the GPU to its share; None if it does."""
    if not bits:
        return "no set names it, and it keeps all of its CUs"
    beyond = bits & ~gpu.cus
    return cumask.fault(bits, gpu.count, gpu.atom) or (
        f"CU {cumask.format_cus(beyond)} is not of the share" if beyond else None
    )


def _check_limit(environment: Mapping[str, str], gpu: Gpu, where: str) -> None:
    name = f"HIP_DEVICE_MEMORY_LIMIT_{gpu.index}"
    found = environment.get(name)
    if not 0 < parse_bytes(found or "") <= gpu.bytes:
        raise Refusal(f"{name} from 1 to {gpu.bytes} bytes in {where}", _shown(found), _own(name))


def parse_bytes(text: str) -> int:
    """Return the bytes of ``512``, ``4g`` and the like; 0, which is no limit, for all else."""
    factor = SUFFIXES.get(text[-1:].lower(), 1)
    digits = text[:-1] if factor > 1 else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        return 0
    return int(digits) * factor


def _shown(value: str | None) -> str:
    return "it unset" if value is None else repr(value[:200])


def _own(name: str) -> str:
    return f"start the container with one share, and without a {name} of its own"
