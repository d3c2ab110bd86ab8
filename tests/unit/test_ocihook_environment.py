"""The environment a container starts with: what is held to the share, and what opens it."""

from __future__ import annotations

import pytest

from ocihook import environment
from ocihook.refusal import Refusal
from ocihook.share import Share, parse_gpu

CDNA = (
    "pci=0000:83:00.0,index=0,rocr=GPU-8e1bb56457addd1b,cus=8-23,count=304,atom=8,"
    "bytes=4294967296,render=128"
)
RDNA = (
    "pci=0000:03:00.0,index=1,rocr=GPU-0123456789abcdef,cus=0-13,count=60,atom=2,"
    "bytes=1073741824,render=129"
)
SHARE = Share("share-a", [parse_gpu(CDNA), parse_gpu(RDNA)])
GOOD = {
    "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b,GPU-0123456789abcdef",
    "HIP_VISIBLE_DEVICES": "0,1",
    "HSA_CU_MASK": "0:8-23;1:0-13",
    "HIP_DEVICE_MEMORY_LIMIT_0": "4294967296",
    "HIP_DEVICE_MEMORY_LIMIT_1": "1073741824",
}


def judge(**changes: str | None) -> str:
    """Return the refusal of the good environment with changes; None takes a variable out."""
    values = {**GOOD, **changes}
    try:
        environment.check({k: v for k, v in values.items() if v is not None}, SHARE, "config.json")
    except Refusal as refusal:
        return str(refusal)
    return ""


def test_share_as_generated() -> None:
    assert judge() == ""


@pytest.mark.parametrize(
    "mask",
    [
        "0:8-15;1:0-13",  # fewer CUs, still whole atoms
        "0:16-23;1:2,3",
        "1:0-13;0:8-23",  # the order of sets is free
        "0:8,9,10,11,12,13,14,15;1:12-13",
    ],
)
def test_mask_within_share(mask: str) -> None:
    assert judge(HSA_CU_MASK=mask) == ""


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (None, "it unset"),
        ("", "every GPU keeps all"),
        ("0:8-23", "GPU 1: no set names it"),
        ("1:0-13", "GPU 0: no set names it"),
        ("0:0-23;1:0-13", "CU 0-7 is not of the share"),
        ("0:8-31;1:0-13", "CU 24-31 is not of the share"),
        ("0:8-14;1:0-13", "does not fill whole atoms of 8"),
        ("0:8-23;1:0-12", "does not fill whole atoms of 2"),
        ("0:8-23;1:0-13;2:0-7", "GPU 2 is not of the share"),
        ("0:8-23;1:0-13,60-61", "beyond the GPU's 60 CUs"),
        ("0:8-23;1:0-13;", "has no ':'"),
        ("0: 8-23;1:0-13", "not a CU id"),
        ("0:0x8-0x17;1:0-13", "not a CU id"),
        ("GPU-8e1bb56457addd1b:8-23;1:0-13", "not a GPU id"),
        ("0:8-23;0:8-15;1:0-13", "named more than once"),
        ("0:8-23;1:13-0", "runs backwards"),
        ("0,1:0-7", "GPU 0: CU 0-7 is not of the share"),
        ("0:8-23;1:", "not a CU id"),
        ("0:8-23;1:\u0660-\u0661\u0663", "not a CU id"),
    ],
)
def test_mask_that_opens_the_gpu(mask: str | None, why: str) -> None:
    assert why in judge(HSA_CU_MASK=mask)


@pytest.mark.parametrize(
    "devices",
    [
        None,
        "",
        "0,1",
        "GPU-0123456789abcdef,GPU-8e1bb56457addd1b",
        "GPU-8e1bb56457addd1b",
        "GPU-8e1bb56457addd1b,GPU-0123456789abcdef,GPU-1111111111111111",
        "GPU-8E1BB56457ADDD1B,GPU-0123456789ABCDEF",
    ],
)
def test_rocr_devices_must_be_the_share(devices: str | None) -> None:
    assert "ROCR_VISIBLE_DEVICES=GPU-8e1bb" in judge(ROCR_VISIBLE_DEVICES=devices)


@pytest.mark.parametrize("devices", [None, "", "0", "1", "1,0", "GPU-0123456789abcdef"])
def test_hip_devices_within_share(devices: str | None) -> None:
    assert judge(HIP_VISIBLE_DEVICES=devices) == ""


@pytest.mark.parametrize("devices", ["2", "0,1,2", "-1", "0, 1", "all", "GPU-1111111111111111"])
def test_hip_devices_beyond_share(devices: str) -> None:
    assert "HIP_VISIBLE_DEVICES within 0 to 1" in judge(HIP_VISIBLE_DEVICES=devices)


@pytest.mark.parametrize("limit", ["4294967296", "1", "4g", "4G", "4096m", "4194304K"])
def test_limit_within_share(limit: str) -> None:
    assert judge(HIP_DEVICE_MEMORY_LIMIT_0=limit) == ""


@pytest.mark.parametrize(
    "limit",
    [
        None,
        "",
        "0",
        "4294967297",
        "4097m",
        "1t",
        "-1",
        "4GB",
        " 4g",
        "g",
        "1e3",
        "0x10",
        "9" * 5000,
    ],
)
def test_limit_beyond_share_or_none(limit: str | None) -> None:
    assert "HIP_DEVICE_MEMORY_LIMIT_0 from 1 to 4294967296" in judge(
        HIP_DEVICE_MEMORY_LIMIT_0=limit
    )


def test_limit_of_each_gpu() -> None:
    message = judge(HIP_DEVICE_MEMORY_LIMIT_1="1073741825")
    assert "HIP_DEVICE_MEMORY_LIMIT_1 from 1 to 1073741824" in message


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_mask_skip_is_refused_whatever_it_says(value: str) -> None:
    assert "no HSA_CU_MASK_SKIP_INIT" in judge(HSA_CU_MASK_SKIP_INIT=value)


def test_message_names_place_and_remedy() -> None:
    message = judge(HSA_CU_MASK="0:0-303")
    assert message.startswith("expected HSA_CU_MASK within 0:8-23;1:0-13 in config.json, found ")
    assert message.endswith(
        "; start the container with one share, and without a HSA_CU_MASK of its own"
    )
