"""The guest kernels: User-Mode Linux with the dmem controller, out of Debian's kernel sources.

No Debian kernel has the controller on, so the tests bring their own. There are two, for the
controller's two ways to take a cap (see `Semantics`). Both have the drivers of one tree: the old
one is the new one with the older controller's two files. They stay in `$AMD_CDI_CACHE`; a second
run takes them from there and asks no mirror.

`python -m tests.kernel.kernels` builds them ahead of the tests and says where they are.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests import debian

Semantics = Literal["old", "new"]
"""`new` is Linux 7.3: a cap below the present use is set. `old` is up to 7.2: it is not."""

SEMANTICS: tuple[Semantics, ...] = ("new", "old")

_SUITE = "trixie-backports"
_SERIES: dict[Semantics, str] = {"new": "linux-source-7.3", "old": "linux-source-7.2"}
_CONTROLLER = ("kernel/cgroup/dmem.c", "include/linux/cgroup_dmem.h")

_HERE = Path(__file__).parent
_CONFIGURATION = _HERE / "kernel.config"
_OWNER = _HERE / "region_owner.c"

# Sources that this configuration never compiles: most of what there is to unpack.
_UNUSED = (
    "*/Documentation/*/*",
    "*/drivers/gpu/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/net/ethernet/*.[ch]",
    "*/drivers/net/wireless/*.[ch]",
    "*/drivers/staging/*.[ch]",
    "*/sound/*.[ch]",
    "*/tools/perf/*",
    "*/tools/testing/*",
)
_TOOLS = ("bc", "bison", "flex", "gcc", "make", "nice", "strip", "tar", "xz")


class BuildError(Exception):
    """A kernel could not be built; the message says at which step and why."""


def kernel(semantics: Semantics) -> Path:
    """The kernel with these semantics, built if the cache does not have it.

    Raises debian.FetchError where the sources cannot be had, BuildError where they do not build.
    """
    return debian.kept(f"dmem-kernels-{key()}", _build) / semantics


def key() -> str:
    """Changes with whatever the kernels are made of."""
    ingredients = [_CONFIGURATION.read_bytes(), _OWNER.read_bytes(), repr(_SERIES).encode()]
    return hashlib.sha256(b"\0".join(ingredients)).hexdigest()[:16]


def _build(place: Path) -> Path:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise BuildError(f"not installed: {', '.join(missing)}: apt-get install them")
    tree, made = place / "tree", place / "made"
    tree.mkdir()
    made.mkdir()
    _unpack(_SERIES["new"], tree, [f"--exclude={pattern}" for pattern in _UNUSED])
    (tree / "kernel/cgroup" / _OWNER.name).write_bytes(_OWNER.read_bytes())
    makefile = tree / "kernel/cgroup/Makefile"
    original = makefile.read_text()
    _compile(tree, makefile, original, made / "new")
    older = [f"{_SERIES['old']}/{name}" for name in _CONTROLLER]
    _unpack(_SERIES["old"], tree, ["--touch", "--occurrence=1", *older])
    _compile(tree, makefile, original, made / "old")
    return made


def _unpack(package: str, into: Path, options: Sequence[str]) -> None:
    archive = debian.unpacked(_SUITE, package) / f"usr/src/{package}.tar.xz"
    _run(["tar", "-x", f"-f{archive}", f"-C{into}", "--strip-components=1", *options])


def _compile(tree: Path, makefile: Path, original: str, target: Path) -> None:
    takes_init = "struct dmem_cgroup_init" in (tree / _CONTROLLER[1]).read_text()
    flags = "-DDMEM_REGISTER_TAKES_INIT" if takes_init else ""
    owner = _OWNER.with_suffix(".o").name
    makefile.write_text(f"{original}\nobj-y += {owner}\nCFLAGS_{owner} := {flags}\n")
    output = tree.with_name("build")
    make = ["nice", "make", "-s", f"-C{tree}", "ARCH=um", f"O={output}"]
    if not (output / ".config").exists():
        _run([*make, f"KCONFIG_ALLCONFIG={_CONFIGURATION}", "allnoconfig"])
    _run([*make, f"-j{len(os.sched_getaffinity(0))}", "linux"])
    _run(["strip", "-o", str(target), str(output / "linux")])


def _run(command: Sequence[str]) -> None:
    # A make around the tests must not hand its flags and its job server down.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip()[-2000:]
        raise BuildError(f"{' '.join(command)} failed with {done.returncode}: {said}")


if __name__ == "__main__":
    for name in SEMANTICS:
        print(kernel(name))
