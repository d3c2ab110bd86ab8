"""What `show` says the hook will do, beside what the hook does."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests import need
from tests.cli.host import COMMAND, Host

GPU_OF_ANOTHER_VENDOR = 200
"""Minor of a DRM node that is not AMD's."""

CONFIG = {
    "ociVersion": "1.0.2",
    "process": {"args": ["/bin/true"], "cwd": "/", "env": ["PATH=/bin"]},
    "root": {"path": "rootfs"},
    "mounts": [],
    "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
}

ACCEPTED = [
    "share-a",
    "share-p",
    "share-whole",
    # The GPU that the share is of: no node that it has not anyhow.
    "share-a 0",
    "0 share-a",
    "share-a share-a",
    "share-p 1:3",
    "share-a vendor.com/display=0",
    "vendor.com/other=0 share-a",
    # None of them is held to anything.
    "0 1:0 2",
    "share-whole 0",
    "0 share-whole",
]

REFUSED = [
    "share-a share-b",
    "share-b share-a",
    "share-a share-p",
    "share-p share-a",
    "share-a 2",
    "2 share-a",
    "share-a all",
    "all share-a",
    "share-p 1",
    "share-p 1:2",
    "share-p 0",
    "share-p all",
    "share-a share-whole",
    "share-whole share-a",
    "share-a vendor.com/visible=0",
    "share-a share-b 0 1 2",
]

ACCEPTED_WITH_OTHERS = [
    *ACCEPTED,
    "share-a 2",
    "share-a all",
    "all share-a",
    # The share has the last word on the environment.
    "share-whole share-a",
    # What another vendor's device sets before the share, the share sets anew.
    "vendor.com/visible=0 share-a",
]

REFUSED_WITH_OTHERS = [
    "share-a share-b",
    "share-b share-a",
    "share-a share-whole",
    "share-a vendor.com/visible=0",
    # A partition goes by its index among the GPUs that the container can open.
    "share-p 1:2",
    "share-p 0",
    "share-p all",
    "share-a share-p",
    "share-p share-a",
]


def lay(folder: Path, *options: str) -> Host:
    """Lay out a node with device nodes, shares of GPUs and a partition, and others' devices.

    share-a and share-b have parts of GPU 0, share-p one of a partition of GPU 1, and share-whole
    has all of GPU 2.
    """
    from cdi.node import sample

    need.superuser("making a device node")
    sample.expand("mixed", folder / "root")
    host = Host(folder / "root", folder)
    for path in [*(host.sysroot / "dev/dri").iterdir(), host.sysroot / "dev/kfd"]:
        path.unlink()
        digits = path.name.removeprefix("card").removeprefix("renderD")
        place = os.makedev(510, 0) if digits == "kfd" else os.makedev(226, int(digits))
        os.mknod(path, stat.S_IFCHR | 0o666, place)
    vendor = host.sysroot / f"sys/dev/char/226:{GPU_OF_ANOTHER_VENDOR}/device/vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("0x1a03\n")
    part = ["--cores", "25", "--memory", "1GiB", "--require", "none"]
    host.share("create", "a", "--gpu", "0", *part).done()
    host.share("create", "b", "--gpu", "0", *part).done()
    host.share("create", "p", "--gpu", "1:3", *part).done()
    host.share("create", "whole", "--gpu", "2").done()
    display = {
        "path": "/dev/dri/card200",
        "type": "c",
        "major": 226,
        "minor": GPU_OF_ANOTHER_VENDOR,
    }
    devices = {
        "display": {"deviceNodes": [display]},
        "other": {"env": ["COLOUR=red"]},
        "visible": {"env": ["ROCR_VISIBLE_DEVICES=0"]},
    }
    for name, edits in devices.items():
        device = {"name": "0", "containerEdits": edits}
        document = {"cdiVersion": "0.5.0", "kind": f"vendor.com/{name}", "devices": [device]}
        (host.spec_dir / f"{name}.json").write_text(json.dumps(document))
    host.generate("--require", "none", *options).done()
    return host


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return lay(tmp_path_factory.mktemp("strict"))


@pytest.fixture(scope="module")
def generous(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return lay(tmp_path_factory.mktemp("generous"), "--allow-extra-devices")


def hook_refuses(host: Host, devices: list[str], bundle: Path) -> str:
    """Return what the hooks say of a container with these devices, nothing if it may start."""
    bundle.mkdir(exist_ok=True)
    config = bundle / "config.json"
    config.write_text(json.dumps(CONFIG))
    injected = host.run("inject", config, *devices).done().json
    config.write_text(json.dumps(injected))
    state = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": 1}
    said = ""
    for hook in injected.get("hooks", {}).get("prestart", []):
        done = subprocess.run(
            [COMMAND.with_name("amd-oci-hook"), *hook["args"][1:], "--sysroot", str(host.sysroot)],
            input=json.dumps({**state, "bundle": str(bundle)}),
            env={},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode != 0) == bool(done.stderr), done
        said += done.stderr
    return said


def agree(host: Host, devices: list[str], bundle: Path) -> bool:
    """Check that `show` and the hook say the same, and return whether they refuse."""
    said = hook_refuses(host, devices, bundle)
    shown = host.run("show", *devices, "--json")
    assert shown.status == (1 if said else 0), (said, shown)
    assert ("refused" in shown.json) == bool(said)
    # What the container would get is shown as well.
    assert shown.json["deviceNodes"]
    return bool(said)


@pytest.mark.parametrize("devices", [*ACCEPTED, *REFUSED])
def test_show_says_what_the_hook_does(strict: Host, tmp_path: Path, devices: str) -> None:
    assert agree(strict, devices.split(), tmp_path / "bundle") == (devices in REFUSED)


@pytest.mark.parametrize("devices", [*ACCEPTED_WITH_OTHERS, *REFUSED_WITH_OTHERS])
def test_the_same_where_other_gpus_are_allowed(
    generous: Host, tmp_path: Path, devices: str
) -> None:
    refused = devices in REFUSED_WITH_OTHERS
    assert agree(generous, devices.split(), tmp_path / "bundle") == refused


def test_show_says_what_a_share_is_held_to(strict: Host) -> None:
    # 72 of the 76 CUs that are a quarter, in atoms of eight XCCs.
    line = "# share-a: GPU 0000:05:00.0, CUs 0-71 of 304, in whole atoms of 8, 1 GiB"
    assert strict.run("show", "share-a").done().out.splitlines()[0] == line
    assert not strict.run("show", "0").done().out.startswith("#")


def test_show_says_why_the_hook_refuses(strict: Host) -> None:
    result = strict.run("show", "share-a", "share-b", "2")
    result.failed(
        "the hook refuses a container with share share-a",
        "HSA_CU_MASK is 0:72-143 and not 0:0-71",
        "of a GPU beyond it",
        "give the container one share and no other GPU",
    )
    assert "HSA_CU_MASK=0:72-143" in result.out


def test_a_hook_that_is_not_a_shares(strict: Host, tmp_path: Path) -> None:
    hook = {
        "hookName": "prestart",
        "path": "/h",
        "args": ["h", "run", "--share", "x", "--gpu", "0"],
    }
    device = {"name": "0", "containerEdits": {"hooks": [hook]}}
    document = {"cdiVersion": "0.5.0", "kind": "vendor.com/odd", "devices": [device]}
    (tmp_path / "odd.json").write_text(json.dumps(document))
    result = strict.run("show", "vendor.com/odd=0", "--spec-dir", tmp_path)
    result.failed("the arguments of a share were expected", "--gpu 0")
