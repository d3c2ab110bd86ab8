"""Finding the share of a container when the hook was started without one.

A hook that the engine runs for every container (hooks.d) knows no share. A container that carries
one shows it by the mount of the share's values; the arguments of its hook lie beside the values on
the host, one a line. Where the container has the share's own hook, that one does the work.
"""

from __future__ import annotations

import os.path

from ocihook.files import read_file
from ocihook.libc import LIBRARY, VALUES
from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ocihook.bundle import Container

STATE = "var/lib/amd-cdi/shares"
"""Where the values and hook arguments of shares lie."""

LIMIT = 64 * 1024
HINT = "give the container its share by its CDI name"


def share_arguments(container: Container, sysroot: str) -> list[str] | None:
    """Return the command line of the share's hook; None where there is nothing left to check.

    Raises Refusal for a container that carries a part of a share without the rest.
    """
    mount = next((m for m in container.mounts if m.destination == VALUES), None)
    audited = LIBRARY in container.environment.get("LD_AUDIT", "").split(":")
    if (mount is None and not audited) or _has_own_hook(container):
        return None
    if mount is None:
        raise Refusal(f"a mount at {VALUES} beside LD_AUDIT in {container.where}", "none", HINT)
    folder = os.path.realpath(f"{sysroot}/{STATE}")
    source = os.path.realpath(mount.source)
    if os.path.dirname(source) != folder or not source.endswith(".conf"):
        raise Refusal(f"{VALUES} from {folder}", repr(mount.source[:200]), HINT)
    path = source.removesuffix(".conf") + ".args"
    try:
        return read_file(path, LIMIT).decode("utf-8").splitlines()
    except OSError as error:
        raise Refusal(f"the share's arguments in {path}", error.strerror or "", HINT) from error


def _has_own_hook(container: Container) -> bool:
    """Whether a hook with a share is already among those that run before the container's code."""
    for stage in ("prestart", "createRuntime"):
        entries = container.hooks.get(stage)
        for entry in entries if isinstance(entries, list) else []:
            if not isinstance(entry, dict):
                continue
            path, arguments = entry.get("path"), entry.get("args")
            if (
                isinstance(path, str)
                and os.path.basename(path) == "amd-oci-hook"
                and isinstance(arguments, list)
                and "--share" in arguments
            ):
                return True
    return False
