"""One fact, two readers: who owns a pod, and who runs a command on the node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from cdi.errors import PermanentError, TemporaryError
from deviceplugin.refusal import Refusal, told
from tests.captures import REPOSITORY
from tests.plugin.scene import Scene, await_that, scene
from tests.plugin.scheduler import Ask, bind

GPU = "8eff74a1-0000-1000-801b-b56457addd1b"


def refused(it: Scene, name: str, ask: Ask) -> str:
    """What kubelet is answered for a pod that HAMi's scheduler placed."""
    document = bind(it.server, name, [ask])
    with pytest.raises(grpc.RpcError) as refusal:
        it.kubelet.admit(document["metadata"]["uid"], "main", 1)
    return str(refusal.value.details())


def commanded(it: Scene, *arguments: str) -> str:
    """What a command on the same node says, which cannot do it either."""
    command = [sys.executable, "-m", "cdi", "share", "create", "alice", *arguments]
    places = [
        f"--sysroot={it.root}",
        f"--spec-dir={it.root}/etc/cdi",
        f"--state-dir={it.root}/var/lib/amd-cdi",
    ]
    done = subprocess.run(
        [*command, *places], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.strip()


def test_too_little_memory(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        # 196592 MiB less 131072 are 65520.
        booked = bind(it.server, "most", [Ask(cores=25, memory=131072)])
        it.kubelet.admit(booked["metadata"]["uid"], "main", 1)
        fact = (
            "GPU 0 (AMD Instinct MI300X): 65521 MiB of memory was asked for, and 65520 MiB of "
            "196592 MiB is free"
        )
        assert refused(it, "more", Ask(cores=25, memory=65521)) == (
            f"pod default/more: {fact}; ask for at most 65520 MiB by amd.com/gpumem, or place the "
            "pod on another node"
        )

        def events() -> list[dict[str, Any]]:
            return [one for one in it.server.events() if one["involvedObject"]["name"] == "more"]

        # The event is created behind the answer.
        await_that(lambda: bool(events()))
        (event,) = events()
        assert event["message"] == (
            f"{fact}; ask for at most 65520 MiB by amd.com/gpumem, or place the pod on another node"
        )
        assert commanded(it, "--gpu=0", "--cores=25", "--memory=65521MiB") == (
            f"amd-cdi: error: {fact}; ask for at most 65520 MiB with --memory, or remove a share"
        )


def test_too_few_cus(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        # 70 % of 304 CUs are 212, booked as 27 atoms of 8: 216, which leaves 88.
        booked = bind(it.server, "most", [Ask(cores=70, memory=8192)])
        it.kubelet.admit(booked["metadata"]["uid"], "main", 1)
        fact = (
            "GPU 0 (AMD Instinct MI300X): 152 CUs were asked for, and 88 of 304 are free in whole "
            "atoms of 8 (216-303)"
        )
        # 29 % of 304 CUs are 88, and 30 % are 91, booked as 96.
        assert refused(it, "more", Ask(cores=50, memory=8192)) == (
            f"pod default/more: {fact}; ask for at most 29 % by amd.com/gpucores, or place the pod "
            "on another node"
        )
        assert commanded(it, "--gpu=0", "--cus=152", "--memory=8GiB") == (
            f"amd-cdi: error: {fact}; ask for at most 88 CUs with --cus, or remove a share"
        )
        # What the pod's owner is told to ask for is had.
        booked = bind(it.server, "less", [Ask(cores=29, memory=8192)])
        assert it.kubelet.admit(booked["metadata"]["uid"], "main", 1)
        assert refused(it, "none", Ask(cores=1, memory=8192)).endswith(
            "0 of 304 are free in whole atoms of 8; place the pod on another node"
        )


def test_a_damaged_ledger(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        booked = bind(it.server, "one", [Ask(cores=25, memory=8192)])
        it.kubelet.admit(booked["metadata"]["uid"], "main", 1)
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations("gpu-node"))
        ledger = tmp_path / "var/lib/amd-cdi/ledger.json"
        for path in ledger.parent.glob("ledger*"):
            path.write_text("{")
        message = refused(it, "two", Ask(cores=25, memory=8192))
        assert f"the ledger {ledger} is damaged" in message
        assert message.endswith("; place the pod on another node, and tell who runs this one")
        assert "restore" in commanded(it, "--gpu=0")


def test_what_each_kind_of_error_tells_the_owner_of_a_pod() -> None:
    # A pod that kubelet has failed is not tried again.
    busy = TemporaryError("the lock is held", "run it again")
    assert told(busy) == "the lock is held; create the pod anew"
    damaged = PermanentError("the file is damaged", "see: amd-cdi validate")
    assert told(damaged) == (
        "the file is damaged; place the pod on another node, and tell who runs this one"
    )
    assert told(Refusal("two were asked for", "ask for one")) == "two were asked for; ask for one"
