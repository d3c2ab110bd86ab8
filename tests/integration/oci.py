"""The OCI runtimes, runc and crun: which program, and containers started by it alone."""

from collections.abc import Callable
from pathlib import Path

from tests import debian
from tests.integration import need
from tests.integration.image import STATIC_BUSYBOX
from tests.integration.sandbox import Sandbox

_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")

# A static shell, since the libc of everything else changes under it file by file.
_BIND = """
for new in "$1"/*.so*; do
    old=$2/${new##*/}
    [ ! -e "$old" ] || mount --bind "$new" "$old"
done
"""


def installed(name: str) -> Callable[[Sandbox], Path]:
    """The OCI runtime that is installed under this name."""

    def find(_: Sandbox) -> Path:
        return need.program(name)

    return find


def trixie_crun(sandbox: Sandbox) -> Path:
    """crun 1.21 of Debian 13; the whole sandbox gets the libc of Debian 13 for it."""
    files = need.fetched(lambda: debian.unpacked("trixie", "crun", "libc6"))
    libraries = files / _LIBRARIES.relative_to("/")
    sandbox.must([STATIC_BUSYBOX, "sh", "-c", _BIND, "sh", libraries, _LIBRARIES])
    return files / "usr/bin/crun"
