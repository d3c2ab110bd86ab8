"""Entry point of ``amd-device-plugin``, whose packages are an extra of the distribution."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the device plugin, or say which packages it lacks."""
    try:
        from deviceplugin.command import main as run
    except ImportError as error:
        sys.exit(
            f"amd-device-plugin: error: the packages of the plugin were expected, found {error}; "
            f"in the sources of amd-cdi, run: {sys.executable} -m pip install '.[plugin]'"
        )
    run()


if __name__ == "__main__":
    main()
