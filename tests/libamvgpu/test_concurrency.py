"""8 processes of 8 threads, random sizes, kill -9: never more than the limit, back to zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.libamvgpu.runtime import MIB, Driver, Runtime, Share
from tests.libamvgpu.storm import storm

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 256 * MIB


def test_storm(trixie: Runtime, library: Path, tmp_path: Path) -> None:
    share = Share.make(tmp_path, library, LIMIT)
    outcome = storm(trixie, share, processes=8, threads=8, seconds=20, kills_apart=0.25)
    assert outcome.failed == 0
    assert outcome.highest <= LIMIT
    assert outcome.highest > LIMIT * 0.8, "the limit was never near: the test proves nothing"
    assert outcome.looks > 1000
    assert outcome.granted > 1000
    assert outcome.refused > 100
    assert outcome.kills > 30
    # What the killed held comes back with the next need: one request for all there is.
    environment = share.environment({"STANDIN_GPUS": "1"})
    with Driver([*trixie.loader(), trixie.driver()], environment) as driver:
        code, number = driver.take("hsa_amd_memory_pool_allocate", LIMIT)
        assert code == 0
        assert share.counted() == LIMIT
        assert driver.give(number) == 0
        assert share.counted() == 0
