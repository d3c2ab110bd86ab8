"""Real pods on a real node: what their containers hold is what was booked for them."""

from tests.cluster.cluster import Cluster
from tests.cluster.contents import (
    EVERY_RENDER_NODE,
    FOURTH_PARTITION,
    HELD,
    MI300X,
    MIB,
    RADEON,
    assert_held,
    assert_nodes,
    gpu_environment,
    vgpu_mounts,
)
from tests.integration import probe
from tests.plugin.scheduler import Ask


def test_a_quarter_of_a_gpu(cluster: Cluster) -> None:
    cluster.run("quarter", Ask(cores=25, memory=49152), devices=[[MI300X]])
    # 25 % of 304 CUs are 76, which HAMi books as 10 atoms of 8.
    assert gpu_environment(cluster.look("quarter")) == HELD | {
        "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b",
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_CU_MASK": "0:0-79",
        "HIP_DEVICE_MEMORY_LIMIT_0": str(49152 * MIB),
    }
    assert_nodes(cluster, "quarter", "main", "dri/card1", "dri/renderD129")
    assert_held(cluster, "quarter")
    annotations = cluster.annotations("quarter")
    gpu = "8eff74a1-0000-1000-801b-b56457addd1b"
    assert annotations["hami.io/bind-phase"] == "success"
    assert annotations["hami.io/amd-devices-to-allocate"] == ";"
    assert annotations["hami.io/amd-cu-allocated"] == f'{{"{gpu}":"0-79"}}'
    cluster.await_unlocked()


def test_two_pods_on_one_gpu(cluster: Cluster) -> None:
    for name, cores, memory in (("one", 25, 49152), ("two", 50, 65536)):
        cluster.run(name, Ask(cores=cores, memory=memory), devices=[[MI300X]])
    one, two = (gpu_environment(cluster.look(name)) for name in ("one", "two"))
    # 50 % are 152 CUs, 19 atoms of 8.
    assert (one["HSA_CU_MASK"], two["HSA_CU_MASK"]) == ("0:0-79", "0:80-231")
    assert one["HIP_DEVICE_MEMORY_LIMIT_0"] == str(49152 * MIB)
    assert two["HIP_DEVICE_MEMORY_LIMIT_0"] == str(65536 * MIB)
    for name in ("one", "two"):
        assert_nodes(cluster, name, "main", "dri/card1", "dri/renderD129")
        assert_held(cluster, name)


def test_two_gpus_in_one_pod(cluster: Cluster) -> None:
    cluster.run("pair", Ask(gpus=2, cores=50, memory=8192), devices=[[MI300X, RADEON]])
    assert gpu_environment(cluster.look("pair")) == HELD | {
        "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b,GPU-3c7ae05d91f4b268",
        "HIP_VISIBLE_DEVICES": "0,1",
        "HSA_CU_MASK": "0:0-151;1:0-31",
        "HIP_DEVICE_MEMORY_LIMIT_0": str(8192 * MIB),
        "HIP_DEVICE_MEMORY_LIMIT_1": str(8192 * MIB),
    }
    nodes = ("dri/card1", "dri/renderD129", "dri/card20", "dri/renderD150")
    assert_nodes(cluster, "pair", "main", *nodes)
    assert_held(cluster, "pair")


def test_a_partition(cluster: Cluster) -> None:
    cluster.run("part", Ask(), devices=[[FOURTH_PARTITION]])
    sight = cluster.look("part")
    # All of it needs no mask and no limit. A partition has no unique id that ROCr would know.
    assert gpu_environment(sight) == {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}
    assert vgpu_mounts(sight) == {}
    assert_nodes(cluster, "part", "main", "dri/card12", "dri/renderD140")
    assert cluster.hook_log("part") == []


def test_an_init_container_hands_its_share_on(cluster: Cluster) -> None:
    cluster.run(
        "job",
        Ask("first", gpus=0, kind="init"),
        Ask("prepare", cores=75, memory=131072, kind="init"),
        Ask("train", cores=50, memory=65536),
        Ask("serve", cores=25, memory=49152),
        Ask("log", gpus=0),
        devices=[[], [MI300X], [MI300X], [MI300X], []],
    )
    masks = {"prepare": cluster.saw("job", "prepare").environment["HSA_CU_MASK"]}
    for name in ("train", "serve"):
        masks[name] = cluster.look("job", name).environment["HSA_CU_MASK"]
        assert_nodes(cluster, "job", name, "dri/card1", "dri/renderD129")
        assert_held(cluster, "job", name)
    # 75 % of 304 CUs are 228, 29 atoms of 8. It has ended when the others begin.
    assert masks == {"prepare": "0:0-231", "train": "0:0-151", "serve": "0:152-231"}
    for sight in (cluster.saw("job", "first"), cluster.look("job", "log")):
        assert gpu_environment(sight) == {}
        assert vgpu_mounts(sight) == {}
        assert sight.gpu_nodes() == {}


def test_a_whole_gpu_without_hami(cluster: Cluster) -> None:
    cluster.create("plain", Ask())
    cluster.await_running("plain")
    assert gpu_environment(cluster.look("plain")) == {
        "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b",
        "HIP_VISIBLE_DEVICES": "0",
    }
    assert vgpu_mounts(cluster.look("plain")) == {}
    assert_nodes(cluster, "plain", "main", "dri/card1", "dri/renderD129")
    assert cluster.hook_log("plain") == []


def test_a_pod_without_a_gpu(cluster: Cluster) -> None:
    cluster.create("none", Ask(gpus=0))
    cluster.await_running("none")
    sight = cluster.look("none", strangers=EVERY_RENDER_NODE)
    assert gpu_environment(sight) == {}
    assert sight.gpu_nodes() == {}
    assert set(sight.strangers.values()) == {probe.REFUSED}
