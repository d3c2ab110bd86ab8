"""Laying the hook out: a folder of plain files with an interpreter line, or one zip file.

Run as ``python -m ocihook.install``; no part of the hook itself. The bytecode is made by the
interpreter that will run the hook, and is not checked against the sources at each start: install
anew after a change of either.
"""

from __future__ import annotations

import argparse
import shutil
import stat
import subprocess
import sys
import tempfile
import zipapp
from pathlib import Path

ENTRY = "amd-oci-hook"

START = """\
import sys
from os.path import dirname, realpath

sys.path.insert(0, dirname(realpath(__file__)))
try:
    from ocihook.__main__ import main
except Exception as error:
    sys.exit(
        f"amd-oci-hook: expected the hook's files beside {__file__} and Python 3.11 or later, "
        f"found {error!r} on Python {sys.version.split()[0]}; install amd-cdi anew"
    )
sys.exit(main())
"""
"""The entry file: isolated mode keeps the file's own folder out of the module path."""

PARTS = ("cdi/__init__.py", "cdi/cumask.py")
"""What the hook imports from outside its own package."""


def install(target: Path, interpreter: str, archive: Path | None = None) -> None:
    """Write the hook's folder, and the zip file where one is wanted.

    Raises OSError or CalledProcessError if a file cannot be written or compiled.
    """
    target.mkdir(parents=True, exist_ok=True)
    _copy(target)
    _compile(interpreter, target)
    entry = target / ENTRY
    entry.write_text(f"#!{interpreter} -IS\n{START}", encoding="utf-8")
    entry.chmod(0o755)
    if archive is not None:
        with tempfile.TemporaryDirectory() as folder:
            _copy(Path(folder))
            # In a zip file the bytecode must lie beside its source.
            _compile(interpreter, Path(folder), "-b")
            Path(folder, "__main__.py").write_text(START, encoding="utf-8")
            zipapp.create_archive(folder, archive, f"{interpreter} -IS")
        archive.chmod(archive.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def _copy(target: Path) -> None:
    source = Path(__file__).resolve().parent
    names = [f"ocihook/{path.name}" for path in source.glob("*.py") if path.name != "install.py"]
    for name in [*names, *PARTS]:
        place = target / name
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(source.parent / name, place)


def _compile(interpreter: str, folder: Path, *options: str) -> None:
    command = [interpreter, "-IS", "-m", "compileall", "-q", "-f", *options]
    command += ["--invalidation-mode", "unchecked-hash", "cdi", "ocihook"]
    subprocess.run(command, cwd=folder, check=True)  # noqa: S603 - the interpreter is the caller's


def main() -> None:
    """Read the command line and install."""
    parser = argparse.ArgumentParser(
        prog="python -m ocihook.install", description="Install the OCI hook."
    )
    parser.add_argument(
        "--target",
        type=Path,
        default=Path("/opt/amd-cdi/current"),
        metavar="DIR",
        help="Folder of the hook. [%(default)s]",
    )
    parser.add_argument(
        "--zipapp", type=Path, metavar="FILE", help="Write the hook as one zip file as well."
    )
    parser.add_argument(
        "--interpreter",
        default="/usr/bin/python3",
        metavar="PATH",
        help="Python of 3.11 or later on the host, which runs the hook. [%(default)s]",
    )
    arguments = parser.parse_args()
    try:
        install(arguments.target, arguments.interpreter, arguments.zipapp)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(
            f"cannot install the hook to {arguments.target}: {error}; run it as root, and name a "
            "Python of 3.11 or later that the host has with --interpreter"
        )


if __name__ == "__main__":
    main()
