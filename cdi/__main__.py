"""Entry point of ``amd-cdi``."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line; the process ends with its exit status."""
    for name in ("stdout", "stderr"):
        # Closed by the caller: what is written there is lost, as he wants it.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 -- pathlib takes long
    if sys.argv[1:] == ["--version"]:
        # Answered before anything is imported: it is what scripts probe a tool with.
        from cdi.version import __version__

        try:
            print(f"amd-cdi {__version__}", flush=True)
        except OSError as error:
            # Else the interpreter would try again at its end, and say so in its own words.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(f"amd-cdi: error: cannot print the version: {error.strerror}")
        return
    # No command but --watch, which turns it on again, lives long enough to collect garbage.
    gc.disable()
    try:
        from cdi.command.app import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
