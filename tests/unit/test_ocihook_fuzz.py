"""Whatever the hook is given, it starts a container only where a second judge would.

The judge of masks is a dozen lines of regular expressions here, not the code under test.
"""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ocihook.__main__ import main
from tests.ocihook_scene import BYTES, REGION, ROCR, Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

FUZZ = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("fuzz")).lay()


@contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    """Give the hook, which reads descriptor 0, these bytes."""
    kept = os.dup(0)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            os.dup2(file.fileno(), 0)
            yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def start(scene: Scene, words: list[str], state: bytes) -> int:
    """Run the hook in this process; the exit status, which must be 0 or 1."""
    (scene.group / "dmem.max").write_text(f"{REGION} max\n")
    with standard_input(state):
        status = main(words)
    assert status in {0, 1}
    capped = (scene.group / "dmem.max").read_text() == f"{REGION} {BYTES}\n"
    assert capped is (status == 0), "a cap on a refused container, or none on one that starts"
    return status


def state(scene: Scene) -> bytes:
    return json.dumps(scene.state).encode()


def test_scene_starts(scene: Scene) -> None:
    assert start(scene, scene.arguments(), state(scene)) == 0


@FUZZ
@given(data=st.binary(max_size=200) | VALUES.map(lambda v: json.dumps(v).encode()))
def test_no_garbage_is_a_state(scene: Scene, data: bytes) -> None:
    assert start(scene, scene.arguments(), data) == 1


@FUZZ
@given(key=st.sampled_from(["id", "pid", "bundle", "status"]), value=VALUES)
def test_no_garbage_in_a_state(scene: Scene, key: str, value: object) -> None:
    data = json.dumps({**scene.state, key: value}).encode()
    harmless = (key == "id" and isinstance(value, str) and value != "") or scene.state[key] == value
    assert start(scene, scene.arguments(), data) == (0 if harmless else 1)


@FUZZ
@given(words=st.lists(st.text(max_size=20) | st.sampled_from(["run", "--share", "--gpu"])))
def test_no_garbage_is_a_command_line(scene: Scene, words: list[str]) -> None:
    ended = [*words, "--verbose", "--sysroot", str(scene.sysroot)]
    assert start(scene, ended, state(scene)) == 1


@FUZZ
@given(data=st.data())
def test_no_argument_can_be_garbled(scene: Scene, data: st.DataObject) -> None:
    """Every change to the GPU's fields is refused, but for the values that may vary."""
    words = scene.arguments()
    place = words.index("--gpu") + 1
    fields = words[place].split(",")
    chosen = data.draw(st.sampled_from(range(len(fields))))
    name, _, old = fields[chosen].partition("=")
    value = data.draw(st.text(alphabet="0123456789abcdefG:.-+, x", max_size=20))
    fields[chosen] = f"{name}={value}"
    words[place] = ",".join(fields)
    with standard_input(state(scene)):
        status = main(words)
    number = int(value) if re.fullmatch(r"[0-9]{1,19}", value) else -1
    may_start = (
        value == old
        # A larger share holds the environment too, while it is no more than the GPU has.
        or (name == "bytes" and BYTES <= number <= 206141652992)
        or (name == "count" and 76 <= number <= 4096)
        or (name == "atom" and number in {1, 2, 4, 19, 38, 76})
        or (name == "cus" and re.fullmatch(r"[0-9+-]+", value) is not None)
        or (name == "index" and number == 0)
    )
    assert status == 1 or may_start, fields[chosen]


def test_no_part_of_the_configuration_is_skipped(scene: Scene) -> None:
    """Each part in turn is replaced by each kind of garbage."""
    whole = json.loads((scene.bundle / "config.json").read_text())
    used = {"process": ["env", "args", "cwd"], "root": ["path"], "linux": ["devices", "resources"]}
    try:
        for part, names in used.items():
            for name in [None, *names]:
                for value in ("x", 5, True, [1], [[]], [None], {"x": 1}, [{"x": 1}]):
                    config = copy.deepcopy(whole)
                    if name is None:
                        config[part] = value
                    else:
                        config[part][name] = value
                    (scene.bundle / "config.json").write_text(json.dumps(config))
                    harmless = (name in {"cwd", "path"} and value == "x") or (
                        part == "linux" and value == {"x": 1} and name is None
                    )
                    if part == "linux" and value == {"x": 1}:
                        continue  # no rules at all, with CAP_MKNOD: told by the tests of devices
                    status = start(scene, scene.arguments(), state(scene))
                    assert status == (0 if harmless else 1), (part, name, value)
    finally:
        scene.lay_bundle()


@FUZZ
@given(data=st.binary(max_size=300) | VALUES.map(lambda v: json.dumps(v).encode()))
def test_no_garbage_is_a_configuration(scene: Scene, data: bytes) -> None:
    try:
        (scene.bundle / "config.json").write_bytes(data)
        assert start(scene, scene.arguments(), state(scene)) == 1
    finally:
        scene.lay_bundle()


def mask_is_within(text: str, first: int, last: int, atom: int) -> bool:
    """Whether a mask for GPU 0 alone is a union of whole atoms within the CUs first to last."""
    found = re.fullmatch(r"0(?:-0)?:([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)", text)
    if not found:
        return False
    cus = set()
    for item in found.group(1).split(","):
        low, _, high = item.partition("-")
        if int(low) > int(high or low) or int(high or low) > 4095:
            return False
        cus |= set(range(int(low), int(high or low) + 1))
    whole = all({c // atom * atom + i for i in range(atom)} <= cus for c in cus)
    return whole and min(cus) >= first and max(cus) <= last


@FUZZ
@given(
    mask=st.text(alphabet="0123456789-,:;", max_size=24)
    | st.from_regex(r"0:[0-9]{1,2}(-[0-9]{1,2})?(,[0-9]{1,2}-[0-9]{1,2})?", fullmatch=True)
    | st.tuples(st.integers(0, 20), st.integers(0, 80)).map(
        lambda p: f"0:{4 * p[0]}-{4 * p[1] + 3}"
    )
    | st.text(max_size=10)
)
def test_masks(scene: Scene, mask: str) -> None:
    try:
        scene.environment["HSA_CU_MASK"] = mask
        scene.lay_bundle()
        status = start(scene, scene.arguments(), state(scene))
        assert (status == 0) is mask_is_within(mask, 0, 75, 4)
    finally:
        scene.environment["HSA_CU_MASK"] = "0:0-75"
        scene.lay_bundle()


@FUZZ
@given(limit=st.integers(0, 2 * BYTES).map(str) | st.text(max_size=12))
def test_limits(scene: Scene, limit: str) -> None:
    try:
        scene.environment["HIP_DEVICE_MEMORY_LIMIT_0"] = limit
        scene.lay_bundle()
        found = re.fullmatch(r"([0-9]{1,19})([kKmMgGtT]?)", limit)
        power = "kmgt".index(found.group(2).lower()) + 1 if found and found.group(2) else 0
        within = found is not None and 0 < int(found.group(1)) * 1024**power <= BYTES
        assert (start(scene, scene.arguments(), state(scene)) == 0) is within
    finally:
        scene.environment["HIP_DEVICE_MEMORY_LIMIT_0"] = str(BYTES)
        scene.lay_bundle()


@FUZZ
@given(devices=st.text(max_size=20) | st.lists(st.sampled_from([ROCR, "0", "1"])).map(",".join))
def test_visible_devices(scene: Scene, devices: str) -> None:
    try:
        scene.environment["ROCR_VISIBLE_DEVICES"] = devices
        scene.lay_bundle()
        assert (start(scene, scene.arguments(), state(scene)) == 0) is (devices == ROCR)
    finally:
        scene.environment["ROCR_VISIBLE_DEVICES"] = ROCR
        scene.lay_bundle()
