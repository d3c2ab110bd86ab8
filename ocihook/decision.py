"""Whether a container may start: everything checked, then the memory capped.

What only reads comes first, so that a refused container leaves no cap behind.
"""

from __future__ import annotations

from ocihook import bundle, devices, dmem, environment
from ocihook.refusal import Refusal
from ocihook.share import HINT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ocihook.arguments import Arguments
    from ocihook.bundle import Container
    from ocihook.share import Share
    from ocihook.state import State

SHARED_HINT = (
    "`--require dmem` cannot hold it: let the library, with `amd-cdi generate --require any`"
)


def decide(arguments: Arguments, state: State) -> str:
    """Return what holds the container to its share, empty for one without; raises Refusal."""
    container = bundle.read(state.bundle)
    if arguments.share is None:
        found = _detected(arguments, container)
        if found is None:
            return ""
        arguments = found
    share = arguments.share
    if share is None:
        raise Refusal("--share in the share's arguments", "none", node_hint=HINT)
    environment.check(container.environment, share, container.where)
    # An index counts the GPUs that the container can open: with another one, it is another GPU's.
    by_index = any(not gpu.rocr.startswith("GPU-") for gpu in share.gpus)
    if by_index or not arguments.allow_extra_devices:
        devices.check(container, share, arguments.sysroot)
    held = _memory(arguments.require, state.pid, container, share, arguments.sysroot)
    return f"share {share.name}: memory held by {held}"


def _detected(arguments: Arguments, container: Container) -> Arguments | None:
    from ocihook import arguments as command_line
    from ocihook import detect

    words = detect.share_arguments(container, arguments.sysroot)
    if words is None:
        return None
    found = command_line.parse(words)
    found.sysroot = arguments.sysroot
    return found


def _memory(require: str, pid: int, container: Container, share: Share, sysroot: str) -> str:
    """Return what enforces the memory of the share under a policy; raises Refusal."""
    vram, shared = share.vram(), share.shared()
    if require == "none":
        return "nothing, as --require none says"
    library = capped = missing = ""
    if shared:
        uncharged = f"dmem does not charge the memory that {' '.join(shared)} has of the host's"
        if require == "dmem":
            raise Refusal("a share of VRAM alone", uncharged, node_hint=SHARED_HINT)
        # It holds the VRAM of the share too. A cap on that comes after all that only reads.
        library = _library(container, share, uncharged)
    if vram and require != "library":
        try:
            capped = f"dmem {dmem.apply(pid, container, share, sysroot)}"
        except Refusal as refusal:
            if require == "dmem":
                raise
            missing = f"without the library a dmem cap is needed: {refusal}"
    if not capped and not library:
        library = _library(container, share, missing)
    return " and ".join(filter(None, (capped, library)))


def _library(container: Container, share: Share, why: str) -> str:
    """Return how the library holds the share; raises Refusal, which says too why it must."""
    from ocihook import libc

    try:
        return f"the library, {libc.check(container, share)}"
    except Refusal as refusal:
        if why:
            refusal.args = (f"{refusal}; and {why}",)
        raise
