"""Entry point of ``amd-cdi``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the process ends with its exit status."""
    if sys.argv[1:] == ["--version"]:
        # Answered before anything is imported: it is what scripts probe a tool with.
        from cdi.version import __version__

        sys.stdout.write(f"amd-cdi {__version__}\n")
        return
    from cdi.command.app import run

    run()


if __name__ == "__main__":
    main()
