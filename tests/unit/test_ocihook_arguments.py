"""The command line and the state: only what is whole and unambiguous is taken."""

from __future__ import annotations

import json

import pytest

from ocihook import arguments, state
from ocihook.refusal import Refusal

GPU = (
    "pci=0000:83:00.0,index=0,rocr=GPU-8e1bb56457addd1b,cus=0-3+8-11,count=304,atom=4,"
    "bytes=1024,render=128,card=1"
)


def words(gpu: str = GPU, *extra: str) -> list[str]:
    return ["run", "--share", "share-a", "--require", "dmem", "--gpu", gpu, *extra]


def test_share_of_one_gpu() -> None:
    found = arguments.parse(words())
    assert found.share is not None
    gpu = found.share.gpus[0]
    assert (found.share.name, found.require, found.deadline) == ("share-a", "dmem", 5.0)
    assert (gpu.pci, gpu.index, gpu.rocr) == ("0000:83:00.0", 0, "GPU-8e1bb56457addd1b")
    # CUs 0-3 and 8-11 as bits: 0xF0F
    assert (gpu.cus, gpu.count, gpu.atom, gpu.bytes) == (0xF0F, 304, 4, 1024)
    assert found.share.minors() == {128, 1}


def test_partitions_of_one_gpu_share_its_memory() -> None:
    second = GPU.replace("index=0", "index=1").replace("bytes=1024", "bytes=5")
    third = GPU.replace("index=0", "index=2").replace("0000:83", "0000:84")
    found = arguments.parse(words(GPU, "--gpu", second, "--gpu", third))
    assert found.share is not None
    assert found.share.vram() == {"0000:83:00.0": 1029, "0000:84:00.0": 1024}


def test_memory_shared_with_the_host_is_no_vram() -> None:
    apu = GPU.replace("index=0", "index=1").replace("0000:83", "0000:c6") + ",memory=shared"
    found = arguments.parse(words(GPU, "--gpu", apu))
    assert found.share is not None
    assert found.share.vram() == {"0000:83:00.0": 1024}
    assert found.share.shared() == ["0000:c6:00.0"]


def test_memory_is_vram_where_nothing_is_said() -> None:
    for gpu in (GPU, GPU + ",memory=VRAM"):
        found = arguments.parse(words(gpu))
        assert found.share is not None
        assert (found.share.vram(), found.share.shared()) == ({"0000:83:00.0": 1024}, [])


def test_card_is_optional() -> None:
    found = arguments.parse(words(GPU.replace(",card=1", "")))
    assert found.share is not None
    assert found.share.minors() == {128}


def test_without_share_the_container_tells() -> None:
    assert arguments.parse(["run"]).share is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pci=0000:83:00.0", "pci=0000:83:00.0\n"),
        ("pci=0000:83:00.0", "pci=0000:8A:00.0"),
        ("pci=0000:83:00.0,", ""),
        ("index=0", "index=1"),
        ("index=0", "index=-0"),
        ("rocr=GPU-8e1bb56457addd1b", "rocr=GPU-8E1BB56457ADDD1B"),
        ("rocr=GPU-8e1bb56457addd1b", "rocr="),
        ("cus=0-3+8-11", "cus="),
        ("cus=0-3+8-11", "cus=0-2"),
        ("cus=0-3+8-11", "cus=300-307"),
        ("count=304", "count=0"),
        ("count=304", "count=99999"),
        ("atom=4", "atom=0"),
        ("atom=4", "atom=305"),
        ("bytes=1024", "bytes=-1"),
        ("bytes=1024", "bytes=0"),
        ("bytes=1024", "bytes=1G"),
        ("bytes=1024", "bytes=9223372036854775808"),
        ("bytes=1024", "bytes=٣"),
        (",render=128", ""),
        ("card=1", "card=x"),
        ("card=1", "card=1,card=1"),
        ("card=1", "card"),
        ("card=1", "colour=red"),
        ("card=1", "memory="),
        ("card=1", "memory=Shared"),
        ("card=1", "memory=vram"),
        ("card=1", "memory=shared,memory=shared"),
    ],
)
def test_gpu_that_is_refused(old: str, new: str) -> None:
    assert old in GPU
    with pytest.raises(Refusal):
        arguments.parse(words(GPU.replace(old, new)))


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["walk"],
        ["run", "--share"],
        ["run", "--share", "a"],
        ["run", "--share", "", "--gpu", GPU],
        ["run", "--share", "a\nb", "--gpu", GPU],
        ["run", "--gpu", GPU],
        ["run", "--require", "any"],
        ["run", "--allow-extra-devices"],
        words(GPU, "--require", "any"),
        words(GPU, "--gpu", GPU),
        words(GPU, "--deadline", "0"),
        words(GPU, "--deadline", "-1"),
        words(GPU, "--deadline", "nan"),
        words(GPU, "--deadline", "inf"),
        words(GPU, "--deadline", "1e9"),
        words(GPU, "--verbose"),
        words(GPU, "extra"),
        ["run", "--share", "a", "--gpu", GPU, "--require", "ANY"],
    ],
)
def test_command_line_that_is_refused(line: list[str]) -> None:
    with pytest.raises(Refusal):
        arguments.parse(line)


# As the runtimes wrote them on a test machine, ids and paths shortened.
RUNC = (
    '{"ociVersion":"1.0.2-dev","id":"c1","status":"creating","pid":22761,"bundle":"/b",'
    '"annotations":{"io.container.manager":"libpod"}}'
)
CRUN = (
    '{"ociVersion":"1.0","id":"c1","pid":22761,"root":"\\/b\\/rootfs","bundle":"\\/b",'
    '"status":"created","annotations":{"a":"b"}}'
)
DOCKER = '{"ociVersion":"1.2.0","id":"c1","status":"creating","pid":22761,"bundle":"/b"}'


@pytest.mark.parametrize("text", [RUNC, CRUN, DOCKER])
def test_state_of_each_runtime(text: str) -> None:
    found = state.parse(text.encode())
    assert (found.id, found.pid, found.bundle) == ("c1", 22761, "/b")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id", None),
        ("id", ""),
        ("id", 1),
        ("pid", None),
        ("pid", 0),
        ("pid", -1),
        ("pid", "1"),
        ("pid", True),
        ("pid", 1.5),
        ("pid", 2**31),
        ("bundle", None),
        ("bundle", ""),
        ("bundle", "b"),
        ("bundle", ["/b"]),
        ("status", None),
        ("status", "running"),
        ("status", "stopped"),
    ],
)
def test_state_that_is_refused(key: str, value: object) -> None:
    with pytest.raises(Refusal, match=key):
        state.parse(json.dumps({**json.loads(RUNC), key: value}).encode())


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b"{} {}", b"\xff", b"[" * 100000, b'{"id": "\x01"}']
)
def test_state_that_is_no_state(text: bytes) -> None:
    with pytest.raises(Refusal):
        state.parse(text)
