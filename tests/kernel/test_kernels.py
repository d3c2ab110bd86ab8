"""The kernels' place in the cache, without building any."""

from pathlib import Path

import pytest

from tests.kernel import kernels
from tests.kernel.kernels import BuildError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on a machine that has no tools."""
    monkeypatch.setenv("AMD_CDI_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    return tmp_path


def test_missing_tools_are_named() -> None:
    with pytest.raises(BuildError, match=r"not installed: bc, bison, .*: apt-get install them"):
        kernels.kernel("new")


def test_a_built_kernel_needs_no_tools(cache: Path) -> None:
    with pytest.raises(BuildError):
        kernels.kernel("old")
    (cache / f"dmem-kernels-{kernels.key()}").mkdir()
    assert kernels.kernel("old").name == "old"
