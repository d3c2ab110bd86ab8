"""What a test needs of the machine: where it is missing the test is skipped, in CI it fails."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from tests.debian import FetchError

_INSTALL = "apt-get install what tests/debian-packages.txt lists"

Made = TypeVar("Made")


def lacking(reason: str) -> NoReturn:
    """End the test: this machine cannot run it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run this test, but {reason}", pytrace=False)
    pytest.skip(reason)


def superuser(what: str) -> None:
    """Root, for what only root may do."""
    if os.geteuid() != 0:
        lacking(f"{what} takes root: run the tests as root")


def namespaces() -> None:
    """Root who may make namespaces; in a container root often may not."""
    superuser("making namespaces")
    command = [program("unshare"), "--mount", "--pid", "--fork", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lacking(f"root may not make namespaces here: {done.stderr.strip()}")


def program(name: str) -> Path:
    """Where this program is installed."""
    found = shutil.which(name)
    if found is None:
        lacking(f"{name} is not installed: {_INSTALL}")
    return Path(found)


def file(path: Path) -> Path:
    """A file that one of the packages brings."""
    if not path.exists():
        lacking(f"there is no {path}: {_INSTALL}")
    return path


def fetched(fetch: Callable[[], Made]) -> Made:
    """What `fetch` gets from a Debian mirror or from the cache."""
    try:
        return fetch()
    except FetchError as error:
        lacking(str(error))
