"""The spec against what the design and the CDI specification ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdi.cumask import span
from cdi.node.gpu import Node
from cdi.plan.options import Options
from cdi.plan.share import Share
from cdi.spec import renderer
from cdi.spec.edits import ContainerEdits, Device
from tests.unit.nodes import GIB, MI300X, cpx, gpu, node, partition, radeon, share, slice_of

PATHS = renderer.HostPaths(Path("/var/lib/amd-cdi/shares"), Path("/run/amd-cdi/usage"))
UUID = "8eff74a1-0000-1000-801b-b56457addd1b"


def rendered(
    where: Node, *shares: Share, options: Options | None = None, paths: renderer.HostPaths = PATHS
) -> dict[str, ContainerEdits]:
    devices = renderer.render(where, shares, options or Options(), paths).devices
    assert len({device["name"] for device in devices}) == len(devices)
    return {device["name"]: device["containerEdits"] for device in devices}


def paths_of(edits: ContainerEdits) -> list[str]:
    return [entry["path"] for entry in edits["deviceNodes"]]


def test_gpus_go_by_index_and_uuid_and_have_nodes_only() -> None:
    devices = rendered(node())
    # The Radeon has no serial, so no UUID.
    assert list(devices) == ["0", UUID, "1", "all"]
    assert (
        devices["0"]
        == devices[UUID]
        == {
            "deviceNodes": [
                {"path": "/dev/dri/card1", "permissions": "rw"},
                {"path": "/dev/dri/renderD128", "permissions": "rw"},
            ]
        }
    )
    assert paths_of(devices["all"]) == [
        "/dev/dri/card1",
        "/dev/dri/renderD128",
        "/dev/dri/card0",
        "/dev/dri/renderD129",
    ]


def test_kfd_comes_once_for_all_devices() -> None:
    assembled = renderer.assemble(renderer.render(node(), (), Options(), PATHS).devices)
    assert assembled["containerEdits"] == {
        "deviceNodes": [{"path": "/dev/kfd", "permissions": "rw"}]
    }
    assert assembled["kind"] == "amd.com/gpu"
    # A name that starts with a digit needs 0.5.0, and nothing here needs more.
    assert assembled["cdiVersion"] == "0.5.0"


def test_names_by_every_strategy() -> None:
    options = Options(strategies=("pci", "uuid", "index"))
    assert list(rendered(node(gpu()), options=options)) == ["0000:05:00.0", UUID, "0", "all"]


def test_a_gpu_without_a_name_is_said() -> None:
    rendering = renderer.render(node(), (), Options(strategies=("uuid",)), PATHS)
    assert [device["name"] for device in rendering.devices] == [UUID, "all"]
    (warning,) = rendering.warnings
    assert "0000:43:00.0" in warning


def test_partitions_have_their_nodes_and_the_gpu_has_all_of_them() -> None:
    devices = rendered(node(cpx()), options=Options(strategies=("index",)))
    assert list(devices) == ["0", *(f"0:{index}" for index in range(8)), "all"]
    assert paths_of(devices["0:0"]) == ["/dev/dri/card1", "/dev/dri/renderD128"]
    assert paths_of(devices["0:7"]) == ["/dev/dri/renderD135"]
    assert paths_of(devices["0"])[1:] == [f"/dev/dri/renderD{128 + index}" for index in range(8)]


def test_a_share_is_held_by_environment_mounts_and_hook() -> None:
    edits = rendered(node(), share("share-a", slice_of(gpu(), span(8, 76 - 4), 48 * GIB)))[
        "share-a"
    ]
    assert edits["env"] == [
        "ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b",
        "HIP_VISIBLE_DEVICES=0",
        "HSA_CU_MASK=0:8-79",
        "HIP_DEVICE_MEMORY_LIMIT_0=51539607552",
        "LD_AUDIT=/usr/local/vgpu/libamvgpu.so",
        "HIP_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/usage",
    ]
    assert [
        (mount["hostPath"], mount["containerPath"], mount["options"][0])
        for mount in edits["mounts"]
    ] == [
        ("/opt/amd-cdi/current/libamvgpu.so", "/usr/local/vgpu/libamvgpu.so", "ro"),
        ("/var/lib/amd-cdi/shares/share-a.conf", "/usr/local/vgpu/share.conf", "ro"),
        ("/run/amd-cdi/usage/share-a", "/usr/local/vgpu/usage", "rw"),
    ]
    (hook,) = edits["hooks"]
    assert hook["hookName"] == "prestart"
    assert hook["path"] == "/opt/amd-cdi/current/amd-oci-hook"
    assert hook["timeout"] > 0
    assert hook["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    assert hook["args"] == [
        "amd-oci-hook",
        "run",
        "--share",
        "share-a",
        "--require",
        "any",
        "--library",
        "/opt/amd-cdi/current/libamvgpu.so",
        "--values",
        "/var/lib/amd-cdi/shares/share-a.conf",
        "--gpu",
        "pci=0000:05:00.0,index=0,rocr=GPU-8e1bb56457addd1b,cus=8-79,count=304,atom=8,"
        "bytes=51539607552,render=128,card=1",
    ]


def test_without_a_bounded_filesystem_there_is_no_usage_region() -> None:
    edits = rendered(
        node(),
        share("share-a", slice_of(gpu(), span(0, 8), GIB)),
        paths=renderer.HostPaths(Path("/var/lib/amd-cdi/shares"), None),
    )["share-a"]
    assert len(edits["mounts"]) == 2
    assert not [entry for entry in edits["env"] if "SHARED_CACHE" in entry]


def test_partitions_and_parts_without_serial_go_by_index_in_kfd_order() -> None:
    # The container can open KFD nodes 5 (partition 3) and 4 (partition 2), and ROCr lists them
    # in the order 4, 5; the share wants them the other way round.
    parted = cpx()
    edits = rendered(
        node(parted),
        share(
            "share-a",
            slice_of(parted, span(0, 10), GIB, index=3),
            slice_of(parted, span(0, 20), 2 * GIB, index=2),
        ),
    )["share-a"]
    assert edits["env"][:5] == [
        "ROCR_VISIBLE_DEVICES=1,0",
        "HIP_VISIBLE_DEVICES=0,1",
        "HSA_CU_MASK=0:0-9;1:0-19",
        "HIP_DEVICE_MEMORY_LIMIT_0=1073741824",
        "HIP_DEVICE_MEMORY_LIMIT_1=2147483648",
    ]
    assert paths_of(edits) == ["/dev/dri/renderD131", "/dev/dri/renderD130"]


def test_a_gap_in_a_set_keeps_commas_out_of_the_hooks_fields() -> None:
    edits = rendered(node(), share("share-a", slice_of(gpu(), span(0, 8) | span(16, 8), GIB)))[
        "share-a"
    ]
    assert "cus=0-7+16-23," in edits["hooks"][0]["args"][-1]


def test_all_of_a_gpu_has_nothing_to_be_held_to() -> None:
    edits = rendered(node(), share("share-a", slice_of(gpu(), span(0, 304), 192 * GIB)))["share-a"]
    assert set(edits) == {"deviceNodes", "env"}
    assert edits["env"] == ["ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b", "HIP_VISIBLE_DEVICES=0"]


def test_oversubscribed_memory_is_told_to_hip() -> None:
    scaled = Share("share-a", (slice_of(gpu(), span(0, 8), GIB),), oversubscribed=True)
    assert "HIP_OVERSUBSCRIBE=1" in rendered(node(), scaled)["share-a"]["env"]


def test_all_of_a_gpu_may_still_spill_if_its_memory_is_oversubscribed() -> None:
    slice_ = slice_of(gpu(), span(0, 304), 300 * GIB)
    edits = rendered(node(), Share("share-a", (slice_,), oversubscribed=True))["share-a"]
    assert "HIP_OVERSUBSCRIBE=1" in edits["env"]
    assert edits["hooks"]


def test_the_hook_is_told_of_memory_that_the_kernel_does_not_charge() -> None:
    apu = gpu(partitions=(partition(memory_kind="shared"),))
    edits = rendered(node(apu), share("share-a", slice_of(apu, span(0, 8), GIB)))["share-a"]
    assert f"HIP_DEVICE_MEMORY_LIMIT_0={GIB}" in edits["env"]
    told = edits["hooks"][0]["args"][-1].split(",")
    assert "memory=shared" in told
    discrete = rendered(node(), share("share-a", slice_of(gpu(), span(0, 8), GIB)))["share-a"]
    assert "memory" not in discrete["hooks"][0]["args"][-1]


@pytest.mark.parametrize("require", ["any", "dmem", "library", "none"])
def test_dmem_alone_is_given_no_memory_that_it_does_not_charge(require: str) -> None:
    apu = gpu(partitions=(partition(memory_kind="shared"),))
    part = share("share-a", slice_of(apu, span(0, 8), GIB))
    whole = share("share-b", slice_of(apu, span(0, 304), 192 * GIB))
    discrete = share("share-c", slice_of(gpu(), span(0, 8), GIB))
    options = Options(require=require)  # type: ignore[arg-type]
    for held, on, offered in (
        (part, apu, require != "dmem"),
        (whole, apu, True),  # held to nothing
        (discrete, gpu(), True),
    ):
        made = renderer.render(node(on), [held], options, PATHS)
        assert [offer.share for offer in made.offers] == [held] * offered
        refused = f"left out: share 'share-a': dmem was expected to hold the memory of GPU {MI300X}"
        assert [warning.startswith(refused) for warning in made.warnings] == [True] * (not offered)


def test_all_cus_need_no_atom() -> None:
    old = gpu(partitions=(partition(gfx_target_version=0),))
    edits = rendered(node(old), share("share-a", slice_of(old, span(0, 304), GIB)))["share-a"]
    assert "HSA_CU_MASK=0:0-303" in edits["env"]
    # A narrower mask of the container's own is refused: nothing but all of it is known to hold.
    assert "atom=304" in edits["hooks"][0]["args"][-1].split(",")


def test_all_of_a_gpu_of_which_nothing_is_known_needs_nothing() -> None:
    bare = gpu(partitions=(partition(cus=0, xccs=0, gfx_target_version=0, memory_bytes=0),))
    edits = rendered(node(bare), share("share-a", slice_of(bare, 0, 0)))["share-a"]
    assert edits["deviceNodes"]
    assert "hooks" not in edits
    two = [share(name, slice_of(bare, 0, 0)) for name in ("share-a", "share-b")]
    rendering = renderer.render(node(bare), two, Options(), PATHS)
    assert [offer.share.name for offer in rendering.offers] == ["share-a"]
    assert "belongs to share 'share-a' as well" in rendering.warnings[0]


def test_shares_that_overlap_are_not_both_offered() -> None:
    first = share("share-a", slice_of(gpu(), span(0, 16), GIB))
    second = share("share-b", slice_of(gpu(), span(8, 16), GIB))
    rendering = renderer.render(node(), (first, second), Options(), PATHS)
    names = [device["name"] for device in rendering.devices]
    assert "share-a" in names
    assert "share-b" not in names
    (warning,) = rendering.warnings
    assert "CU 8-15" in warning


def test_a_share_of_a_gpu_that_is_gone_is_left_out_and_said() -> None:
    gone = share("share-a", slice_of(gpu(), span(0, 8), GIB))
    rendering = renderer.render(node(radeon()), (gone,), Options(), PATHS)
    assert [device["name"] for device in rendering.devices] == ["1", "all"]
    assert "0000:05:00.0" in rendering.warnings[0]


def test_the_values_file_says_what_the_environment_says() -> None:
    rendering = renderer.render(
        node(), (share("share-a", slice_of(gpu(), span(0, 8), GIB)),), Options(), PATHS
    )
    (held,) = rendering.held
    assert held.values == (
        b"ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b\n"
        b"HIP_VISIBLE_DEVICES=0\n"
        b"HSA_CU_MASK=0:0-7\n"
        b"HIP_DEVICE_MEMORY_LIMIT_0=1073741824\n"
        b"LD_AUDIT=/usr/local/vgpu/libamvgpu.so\n"
        b"HIP_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/usage\n"
    )


def test_a_hook_without_a_share_finds_the_arguments_line_by_line() -> None:
    options = Options(allow_extra_devices=True)
    rendering = renderer.render(
        node(), (share("share-a", slice_of(gpu(), span(0, 8), GIB)),), options, PATHS
    )
    (held,) = rendering.held
    assert held.arguments.decode().splitlines() == [
        "run",
        "--share",
        "share-a",
        "--require",
        "any",
        "--allow-extra-devices",
        "--library",
        "/opt/amd-cdi/current/libamvgpu.so",
        "--values",
        "/var/lib/amd-cdi/shares/share-a.conf",
        "--gpu",
        "pci=0000:05:00.0,index=0,rocr=GPU-8e1bb56457addd1b,cus=0-7,count=304,atom=8,"
        "bytes=1073741824,render=128,card=1",
    ]


def test_a_mask_names_whole_atoms_even_of_a_gpu_that_is_given_whole() -> None:
    odd = gpu(partitions=(partition(cus=303),))
    edits = rendered(
        node(odd, radeon()),
        share(
            "share-a", slice_of(odd, span(0, 303), 192 * GIB), slice_of(radeon(), span(0, 2), GIB)
        ),
    )["share-a"]
    # 303 CUs on 8 XCCs are 37 whole atoms.
    assert "HSA_CU_MASK=0:0-295;1:0-1" in edits["env"]
    assert "cus=0-295," in edits["hooks"][0]["args"][-3]


def test_the_options_place_hook_and_library() -> None:
    options = Options(
        hook_path="/opt/hook",
        hook_stage="createRuntime",
        require="dmem",
        library_path="/opt/lib.so",
    )
    edits = rendered(node(), share("share-a", slice_of(gpu(), span(0, 8), GIB)), options=options)[
        "share-a"
    ]
    (hook,) = edits["hooks"]
    assert (hook["hookName"], hook["path"], hook["args"][0]) == (
        "createRuntime",
        "/opt/hook",
        "hook",
    )
    assert hook["args"][hook["args"].index("--require") + 1] == "dmem"
    assert edits["mounts"][0]["hostPath"] == "/opt/lib.so"


def test_version_without_a_leading_digit() -> None:
    devices: list[Device] = [{"name": "all", "containerEdits": {"deviceNodes": []}}]
    assert renderer.assemble(devices)["cdiVersion"] == "0.3.0"
