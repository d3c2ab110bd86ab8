"""HAMi's protocol: what the scheduler booked is what the container gets."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import grpc
import pytest

from cdi import cumask
from tests.captures import change
from tests.plugin.api_server import NO_FAULT, ApiServer, Fault, Request
from tests.plugin.kubelet_side import KubeletSide
from tests.plugin.scene import Scene, annotation, await_that, cus_of, lay, plugin, scene
from tests.plugin.scheduler import NODE, Ask, bind, pod, registered

GPU = "8eff74a1-0000-1000-801b-b56457addd1b"


def admit(it: Scene, document: dict, asks: list[Ask]) -> list[str]:
    """Let kubelet admit a pod, container by container, init containers first."""
    uid = document["metadata"]["uid"]
    ordered = [ask for ask in asks if ask.kind != "app"] + [
        ask for ask in asks if ask.kind == "app"
    ]
    names = []
    for ask in ordered:
        if ask.gpus:
            names += it.kubelet.admit(uid, ask.name, ask.gpus)
    return names


def test_the_registration_is_what_the_scheduler_reads(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        text = it.server.annotations(NODE)["hami.io/node-amd-register"]
        first = registered(it.server)[0]
        assert text.startswith(f'[{{"id":"{GPU}","count":10,"devmem":196592,"devcore":304,')
        # 206141652992 bytes are 196592 MiB. index and numa are 0 and so left out, as Go does.
        assert first == {
            "id": GPU,
            "count": 10,
            "devmem": 206141652992 >> 20,
            "devcore": 304,
            "type": "AMD Instinct MI300X",
            "health": True,
            "devicevendor": "amd",
            "custominfo": {
                "pciBDF": "0000:05:00.0",
                "cuPerWGP": 8,
                "computeQueues": 24,
                "xgmiPeers": [
                    "0000:27:00.0",
                    "0000:47:00.0",
                    "0000:65:00.0",
                    "0000:85:00.0",
                    "0000:a7:00.0",
                    "0000:c7:00.0",
                    "0000:e5:00.0",
                ],
                "partitionProfiles": ["spx", "dpx", "qpx", "cpx"],
            },
        }
        assert registered(it.server)[7]["numa"] == 1


def test_a_share_from_booking_to_answer_in_three_round_trips(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        server = it.server
        assert server
        # 25 % of 304 CUs are 76, which the scheduler rounds up to 80, whole atoms of 8.
        document = bind(it.server, "train", [Ask(cores=25, memory=49152)])
        # Kubelet learns of the pod no sooner than the watch.
        await_that(lambda: server.told >= int(document["metadata"]["resourceVersion"]))
        mark = len(it.server.requests)
        (name,) = admit(it, document, [Ask()])
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
        requests = it.server.count(mark)
        assert [(one.method, one.path) for one in requests] == [
            ("GET", f"/api/v1/nodes/{NODE}"),
            ("PATCH", "/api/v1/namespaces/default/pods/train"),
            ("PATCH", f"/api/v1/nodes/{NODE}"),
        ]
        uid = document["metadata"]["uid"]
        assert name == f"amd.com/gpu=pod-{uid}.main"
        assert (it.root / f"etc/cdi/amd.com-gpu_pod-{uid}.main.yaml").exists()
        assert it.env(name) == {
            "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b",
            "HIP_VISIBLE_DEVICES": "0",
            "HSA_CU_MASK": "0:0-79",
            "HIP_DEVICE_MEMORY_LIMIT_0": "51539607552",
            "LD_AUDIT": "/usr/local/vgpu/libamvgpu.so",
        }
        after = it.server.pod("default", "train")
        assert cus_of(after) == {GPU: "0-79"}
        assert annotation(after, "hami.io/amd-cu-allocated") == f'{{"{GPU}":"0-79"}}'
        assert annotation(after, "hami.io/amd-devices-to-allocate") == ";"
        assert annotation(after, "hami.io/amd-devices-allocated") == (
            f"{GPU},AMD Instinct MI300X,49152,80:;"
        )
        assert annotation(after, "hami.io/bind-phase") == "success"


def test_an_odd_booking_is_rounded_down_to_whole_atoms(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        document = bind(it.server, "old", [Ask(cores=25, memory=1024)])
        slots = f"{GPU},T,1024,76:;"
        it.server.change_pod(
            "default",
            "old",
            {"metadata": {"annotations": {"hami.io/amd-devices-to-allocate": slots}}},
        )
        (name,) = admit(it, document, [Ask()])
        assert it.env(name)["HSA_CU_MASK"] == "0:0-71"


def test_a_whole_gpu_has_no_limits(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        document = bind(it.server, "whole", [Ask(gpus=2)])
        (name,) = admit(it, document, [Ask(gpus=2)])
        edits = it.devices[name.removeprefix("amd.com/gpu=")]
        assert sorted(edits) == ["deviceNodes", "env"]
        assert it.env(name) == {
            "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b,GPU-1fc4a2d07be93865",
            "HIP_VISIBLE_DEVICES": "0,1",
        }
        assert list(cus_of(it.server.pod("default", "whole")).values()) == ["0-303", "0-303"]


def test_init_containers_sidecars_and_containers_without_a_gpu(tmp_path: Path) -> None:
    asks = [
        Ask("fetch", kind="init", gpus=0),
        Ask("warm", kind="init", cores=50, memory=8192),
        Ask("proxy", kind="sidecar", cores=25, memory=8192),
        Ask("main", cores=25, memory=8192),
        Ask("log", gpus=0),
        Ask("side", cores=25, memory=8192),
    ]
    with scene(tmp_path, "mi300x") as it:
        document = bind(it.server, "many", asks)
        names = admit(it, document, asks)
        assert [name.rpartition(".")[2] for name in names] == ["warm", "proxy", "main", "side"]
        masks = {
            name.rpartition(".")[2]: cumask.parse_mask(it.env(name)["HSA_CU_MASK"])[0]
            for name in names
        }
        # 50 % and 25 % of 304 in atoms of 8.
        assert {name: mask.bit_count() for name, mask in masks.items()} == {
            "warm": 152,
            "proxy": 80,
            "main": 80,
            "side": 80,
        }
        # What runs at the same time has nothing in common; a plain init container is over by then.
        assert not masks["proxy"] & masks["main"]
        assert not masks["proxy"] & masks["side"]
        assert not masks["main"] & masks["side"]
        after = it.server.pod("default", "many")
        assert annotation(after, "hami.io/amd-devices-to-allocate") == ";;;;;;"
        assert annotation(after, "hami.io/bind-phase") == "success"
        union = masks["warm"] | masks["proxy"] | masks["main"] | masks["side"]
        assert cus_of(after) == {GPU: cumask.format_cus(union)}


def test_the_lock_stays_until_the_last_slot(tmp_path: Path) -> None:
    asks = [Ask("a", cores=25, memory=1024), Ask("b", cores=25, memory=1024)]
    with scene(tmp_path, "mi300x") as it:
        document = bind(it.server, "two", asks)
        uid = document["metadata"]["uid"]
        it.kubelet.admit(uid, "a", 1)
        assert "hami.io/mutex.lock" in it.server.annotations(NODE)
        after = it.server.pod("default", "two")
        assert annotation(after, "hami.io/bind-phase") == "allocating"
        waiting = annotation(after, "hami.io/amd-devices-to-allocate")
        assert waiting == f";{GPU},AMD Instinct MI300X,1024,80:;"
        it.kubelet.admit(uid, "b", 1)
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))


@pytest.mark.parametrize("lock_text", ["2026-01-02T03:04:05Z", ""])
def test_without_an_owner_the_pod_is_found_in_the_watch(tmp_path: Path, lock_text: str) -> None:
    with scene(tmp_path, "mi300x") as it:
        document = bind(
            it.server,
            "found",
            [Ask(cores=25, memory=1024)],
            lock_text=lock_text or None,
            lock=bool(lock_text),
        )
        (name,) = admit(it, document, [Ask()])
        assert name.startswith(f"amd.com/gpu=pod-{document['metadata']['uid']}.")
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))


def test_another_pods_lock_is_left_alone(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        document = bind(it.server, "mine", [Ask(cores=25, memory=1024)])
        other = "2026-01-02T03:04:05Z,default,another"
        it.server.annotate_node(NODE, {"hami.io/mutex.lock": other})
        admit(it, document, [Ask()])
        assert it.server.annotations(NODE)["hami.io/mutex.lock"] == other


def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        first = bind(it.server, "one", [Ask(cores=75, memory=1024)])
        admit(it, first, [Ask()])
        before = it.devices
        document = bind(it.server, "two", [Ask(cores=50, memory=1024)])
        with pytest.raises(grpc.RpcError) as refusal:
            admit(it, document, [Ask()])
        assert refusal.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "pod default/two" in refusal.value.details()
        assert "48 CUs were asked for, and 24 of 96 are free" in refusal.value.details()
        assert it.devices == before
        assert len(it.shares) == 1
        after = it.server.pod("default", "two")
        assert annotation(after, "hami.io/bind-phase") == "failed"
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
        await_that(lambda: bool(it.server.events()))
        event = it.server.events()[0]
        assert event["reason"] == "AMDGPUShareRefused"
        assert event["involvedObject"]["uid"] == document["metadata"]["uid"]
        assert "24 of 96 are free" in event["message"]


@pytest.mark.parametrize(
    ("slots", "reason"),
    [
        ("nonsense", "slots that each end with"),
        (f"{GPU},T,1024,80;", "bookings 'id,type,MiB,CUs:' were expected"),
        (f"{GPU},T,1024,-8:;", "bookings 'id,type,MiB,CUs:' were expected"),
        ("GPU-unknown,T,1024,80:;", "this node has none of that id"),
        (f"{GPU},T,1024,0:;", "a share needs some of both"),
        (f"{GPU},T,0,80:;", "a share needs some of both"),
        (f"{GPU},T,1024,80:{GPU},T,1024,80:;", "asked for 1 GPU(s), and HAMi booked 2"),
        (f"{GPU},T,1024,80:;;;", "a slot for each of 1 containers was expected, found 3"),
        (f"{GPU},T,1024,400:;", "from 1 to 304 was expected"),
        (f"{GPU},T,300000,80:;", "the GPU has"),
    ],
)
def test_a_booking_that_cannot_be_kept_is_refused(tmp_path: Path, slots: str, reason: str) -> None:
    with scene(tmp_path, "mi300x") as it:
        document = bind(it.server, "odd", [Ask(cores=25, memory=1024)])
        it.server.change_pod(
            "default",
            "odd",
            {"metadata": {"annotations": {"hami.io/amd-devices-to-allocate": slots}}},
        )
        with pytest.raises(grpc.RpcError) as refusal:
            admit(it, document, [Ask()])
        assert reason in refusal.value.details()
        assert not it.shares
        assert annotation(it.server.pod("default", "odd"), "hami.io/bind-phase") == "failed"
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))


def test_a_malformed_neighbour_costs_only_itself(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        bind(it.server, "broken", [Ask(cores=25, memory=1024)], lock=False)
        it.server.change_pod(
            "default",
            "broken",
            {"metadata": {"annotations": {"hami.io/amd-devices-to-allocate": "x;"}}},
        )
        document = bind(it.server, "good", [Ask(cores=25, memory=1024)], lock=False)
        (name,) = admit(it, document, [Ask()])
        assert document["metadata"]["uid"] in name
        await_that(lambda: bool(it.server.events()))
        assert it.server.events()[0]["reason"] == "AMDGPUAnnotationMalformed"
        assert it.server.events()[0]["involvedObject"]["name"] == "broken"


def test_a_share_goes_when_its_pod_ends_and_not_before(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        for name in ("ends", "fails", "goes", "stays"):
            admit_now(it, name)
        assert len(it.shares) == 4
        for name, phase in (("ends", "Succeeded"), ("fails", "Failed"), ("stays", "Running")):
            it.server.change_pod("default", name, {"status": {"phase": phase}})
        it.server.delete_pod("default", "goes")
        await_that(lambda: len(it.shares) == 1)
        stays = it.server.pod("default", "stays")["metadata"]["uid"]
        assert list(it.shares) == [f"pod-{stays}.main"]
        assert {name for name in it.devices if name.startswith("pod-")} == set(it.shares)
        time.sleep(0.5)
        assert len(it.shares) == 1


def admit_now(it: Scene, name: str) -> str:
    document = bind(it.server, name, [Ask(cores=20, memory=1024)])
    (share,) = admit(it, document, [Ask()])
    return share.removeprefix("amd.com/gpu=")


def test_a_pod_of_the_same_name_is_another_pod(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        for _ in range(5):
            document = bind(it.server, "set-0", [Ask(cores=100, memory=1024)])
            uid = document["metadata"]["uid"]
            await_that(lambda: len(it.shares) == 0)
            (name,) = admit(it, document, [Ask()])
            assert uid in name
            assert list(it.shares) == [f"pod-{uid}.main"]
            it.server.delete_pod("default", "set-0")
            it.kubelet.forget(uid)


def test_a_pod_that_hami_did_not_schedule_gets_whole_gpus(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        plain = it.server.add_pod(pod("plain", [Ask(gpus=1)]))
        (name,) = admit(it, plain, [Ask()])
        assert it.env(name) == {
            "ROCR_VISIBLE_DEVICES": "GPU-5f2e90b7c4d1863a",
            "HIP_VISIBLE_DEVICES": "0",
        }
        # And the reverse: what is whole somebody's is not shared.
        shared = bind(it.server, "shared", [Ask(cores=25, memory=1024)])
        with pytest.raises(
            grpc.RpcError, match=r"1024 MiB of memory was asked for, and 0 MiB of 24560 MiB is free"
        ):
            admit(it, shared, [Ask()])
        second = bind(
            it.server, "second", [Ask(cores=25, memory=1024)], [[registered(it.server)[1]]]
        )
        admit(it, second, [Ask()])
        another = it.server.add_pod(pod("another", [Ask(gpus=1)]))
        with pytest.raises(grpc.RpcError, match="pod default/another"):
            it.kubelet.allocate(["0000:43:00.0#5"])
        it.server.delete_pod("default", "second")
        await_that(lambda: len(it.shares) == 1)
        assert it.kubelet.allocate(["0000:43:00.0#5"]).cdi_devices[0].name == (
            f"amd.com/gpu=pod-{another['metadata']['uid']}.main"
        )


def forget_cus(root: Path) -> None:
    node = root / "sys/devices/virtual/kfd/kfd/topology/nodes/1"
    change(node / "properties", simd_count=None)


def test_a_gpu_whose_cus_are_not_known_is_given_whole_and_never_booked(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx", change=forget_cus) as it:
        # The other one alone is what HAMi can count.
        assert [entry["custominfo"]["pciBDF"] for entry in registered(it.server)] == [
            "0000:43:00.0"
        ]
        ids = [name for name in it.kubelet.free() if name.startswith("0000:03:00.0")]
        assert ids == ["0000:03:00.0#0"]
        plain = it.server.add_pod(pod("plain", [Ask(gpus=1)]))
        name = it.kubelet.allocate(ids).cdi_devices[0].name
        assert plain["metadata"]["uid"] in name
        assert it.env(name) == {
            "ROCR_VISIBLE_DEVICES": "GPU-5f2e90b7c4d1863a",
            "HIP_VISIBLE_DEVICES": "0",
        }
        # It is nobody else's, also after another was written beside it.
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        admit(it, document, [Ask()])
        it.server.add_pod(pod("another", [Ask(gpus=1)]))
        with pytest.raises(grpc.RpcError, match="pod default/another"):
            it.kubelet.allocate(ids)
        assert {share.slices[0].cus.bit_count() for share in it.shares.values()} == {0, 24}
        assert len([name for name in it.devices if name.startswith("pod-")]) == 2


def test_a_plain_pod_does_not_fail_the_one_that_has_the_lock(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        booked = bind(it.server, "booked", [Ask(cores=25, memory=1024)])
        plain = it.server.add_pod(pod("plain", [Ask(gpus=2)]))
        # One of two GPUs is booked for the other.
        refusal = r"2 whole GPU\(s\) were asked for, and 1 of 2 are free"
        with pytest.raises(grpc.RpcError, match=refusal):
            it.kubelet.allocate(["0000:03:00.0#0", "0000:03:00.0#1"])
        after = it.server.pod("default", "booked")
        assert annotation(after, "hami.io/bind-phase") == "allocating"
        assert it.server.annotations(NODE)["hami.io/mutex.lock"].endswith(",booked")
        (name,) = admit(it, booked, [Ask()])
        assert plain["metadata"]["uid"] not in name


def test_a_node_without_a_gpu_is_served_none(tmp_path: Path) -> None:
    from tests.plugin.api_server import ApiServer

    (tmp_path / "sys").mkdir()
    kubelet = KubeletSide(tmp_path / "kubelet")
    kubelet.start()
    server = ApiServer().start()
    server.add_node(NODE, {"hami.io/node-amd-register": "[old]"})
    with plugin(tmp_path, kubelet, server):
        assert kubelet.await_devices().devices == {}
        await_that(lambda: "hami.io/node-amd-register" not in server.annotations(NODE))
        with pytest.raises(grpc.RpcError, match="a pod of node gpu-node that waits"):
            kubelet.allocate(["0000:03:00.0#0"])
    kubelet.stop()
    server.stop()


def test_a_node_without_its_plugin_offers_nothing(tmp_path: Path) -> None:
    root = lay(tmp_path, "rx7900xtx")
    kubelet = KubeletSide(root / "kubelet")
    kubelet.start()
    server = ApiServer().start()
    server.add_node(NODE)
    for _ in range(2):
        with plugin(root, kubelet, server):
            await_that(lambda: "hami.io/node-amd-register" in server.annotations(NODE))
        assert "hami.io/node-amd-register" not in server.annotations(NODE)
    kubelet.stop()
    server.stop()


def test_nobody_waits_so_nobody_is_served(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        began = time.monotonic()
        with pytest.raises(grpc.RpcError, match="neither the node's lock nor the pods'"):
            it.kubelet.allocate(["0000:03:00.0#0"])
        assert time.monotonic() - began < 10


def test_memory_that_is_scaled_may_spill(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx", "--device_memory_scaling=2") as it:
        # 25753026560 bytes are 24560 MiB.
        assert registered(it.server)[0]["devmem"] == 2 * (25753026560 >> 20)
        document = bind(it.server, "big", [Ask(cores=25, memory=30000)])
        (name,) = admit(it, document, [Ask()])
        assert it.env(name)["HIP_OVERSUBSCRIBE"] == "1"
        assert it.env(name)["HIP_DEVICE_MEMORY_LIMIT_0"] == str(30000 << 20)


def test_partitions_are_booked_one_by_one(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x-cpx") as it:
        known = registered(it.server)
        assert len(known) == 64
        assert len({device["id"] for device in known}) == 64
        assert known[3]["id"] == "GPU-8e1bb56457addd1b-3#cpx"
        assert {device["mode"] for device in known} == {"cpx"}
        assert {device.get("count") for device in known} == {1}
        document = bind(it.server, "part", [Ask(cores=50, memory=4096)], [[known[3]]])
        (name,) = admit(it, document, [Ask()])
        # Partitions have no ROCr id of their own, and 50 % of 38 CUs are 19.
        assert it.env(name)["ROCR_VISIBLE_DEVICES"] == "0"
        assert it.env(name)["HSA_CU_MASK"] == "0:0-18"


def test_the_registration_goes_when_no_gpu_is_left(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        driver = tmp_path / "sys/bus/pci/drivers/amdgpu"
        links = {path.name: path.readlink() for path in driver.iterdir() if ":" in path.name}
        (driver / "0000:03:00.0").unlink()
        await_that(lambda: len(registered(it.server)) == 1)
        known = it.kubelet.plugins["amd.com/gpu"]
        it.kubelet.await_that(lambda: known.devices["0000:03:00.0#0"].health == "Unhealthy")
        (driver / "0000:43:00.0").unlink()
        await_that(lambda: "hami.io/node-amd-register" not in it.server.annotations(NODE))
        for name, target in links.items():
            (driver / name).symlink_to(target)
        await_that(lambda: "hami.io/node-amd-register" in it.server.annotations(NODE))
        it.kubelet.await_that(lambda: known.devices["0000:03:00.0#0"].health == "Healthy")
        await_that(
            lambda: (
                {"AMDGPUMissing", "AMDGPURecovered"}
                <= {event["reason"] for event in it.server.events()}
            )
        )


def test_an_unhealthy_gpu_is_told_everywhere(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        count = tmp_path / "sys/bus/pci/drivers/amdgpu/0000:05:00.0/ras/umc_err_count"
        count.write_text("ue: 1\nce: 3\n")
        await_that(lambda: "health" not in registered(it.server)[0])
        assert registered(it.server)[1]["health"] is True
        document = bind(it.server, "ill", [Ask(cores=25, memory=1024)])
        with pytest.raises(grpc.RpcError, match="1 memory errors that were not corrected"):
            it.kubelet.allocate(["0000:27:00.0#0"])
        assert document
        count.write_text("ue: 0\nce: 3\n")
        await_that(lambda: registered(it.server)[0].get("health") is True)
        await_that(
            lambda: (
                {"AMDGPUUnhealthy", "AMDGPURecovered"}
                <= {event["reason"] for event in it.server.events()}
            )
        )


def test_a_gpu_in_another_mode_is_other_devices(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        admit_now(it, "one")
        mode = tmp_path / "sys/bus/pci/drivers/amdgpu/0000:05:00.0/current_compute_partition"
        mode.write_text("DPX\n")
        known = it.kubelet.plugins["amd.com/gpu"]
        it.kubelet.await_that(lambda: "0000:05:00.0:0:dpx#0" in known.devices)
        assert not any(device_id.startswith("0000:05:00.0#") for device_id in known.devices)
        await_that(lambda: registered(it.server)[0].get("mode") == "dpx")
        assert registered(it.server)[0]["id"] == "GPU-8e1bb56457addd1b-0#dpx"
        await_that(
            lambda: any(
                event["reason"] == "AMDGPUModeChangedInUse" and "spx to dpx" in event["message"]
                for event in it.server.events()
            )
        )
        # A share of the other mode is not offered, and comes back with its mode.
        assert not any(name.startswith("pod-") for name in it.devices)
        assert len(it.shares) == 1
        mode.write_text("SPX\n")
        await_that(lambda: any(name.startswith("pod-") for name in it.devices))


def test_a_restart_of_the_plugin_changes_nothing(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        admit_now(it, "one")
        admit_now(it, "two")
        shares, devices = it.shares, it.devices
        it.server.change_pod("default", "two", {"status": {"phase": "Running"}})
        kubelet = KubeletSide(tmp_path / "another")
        kubelet.start()
        (tmp_path / "var/lib/amd-cdi/ledger.json").rename(tmp_path / "lost")
        # From the annotations alone, as after the loss of the disk.
        with plugin(tmp_path, kubelet, it.server):
            kubelet.await_devices()
            assert it.shares == shares
            assert it.devices == devices
        kubelet.stop()
        stored = json.loads((tmp_path / "var/lib/amd-cdi/ledger.json").read_text())
        assert len(stored["shares"]) == 2


def test_files_that_others_change_under_a_running_plugin_are_made_anew(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        share = admit_now(it, "one")
        spec_dir, values_dir = tmp_path / "etc/cdi", tmp_path / "var/lib/amd-cdi/shares"
        paths = [
            spec_dir / "amd.com-gpu.yaml",
            spec_dir / f"amd.com-gpu_{share}.yaml",
            values_dir / f"{share}.conf",
            values_dir / f"{share}.args",
        ]
        right = {path: path.read_bytes() for path in paths}

        def are_right() -> bool:
            return all(path.is_file() and path.read_bytes() == right[path] for path in paths)

        for harm in (lambda path: path.write_bytes(b"~" * path.stat().st_size), Path.unlink):
            for path in paths:
                harm(path)
                assert not are_right()
                await_that(are_right)
        # And no allocation in between was needed, nor one that is there now is harmed by it.
        assert share in it.devices
        assert admit_now(it, "two") in it.devices


def test_after_a_reboot_with_other_minors_names_resolve_to_their_gpus(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with scene(first, "mi300x") as it:
        last = registered(it.server)[7]
        document = bind(it.server, "job", [Ask(cores=25, memory=1024)], [[last]])
        (name,) = admit(it, document, [Ask()])
        # The last of eight GPUs, with eight DRM nodes each.
        assert it.devices[name[12:]]["deviceNodes"][1]["path"] == "/dev/dri/renderD184"
        server = it.server
        renumbered(first, second)
        (second / "var/lib").mkdir(parents=True)
        (first / "var/lib/amd-cdi").rename(second / "var/lib/amd-cdi")
        kubelet = KubeletSide(second / "kubelet")
        kubelet.start()
        with plugin(second, kubelet, server):
            kubelet.await_devices()
            after = Scene(second, kubelet, server)
            assert [node["path"] for node in after.devices[name[12:]]["deviceNodes"]] == [
                "/dev/dri/card3",
                "/dev/dri/renderD131",
            ]
            assert after.env(name)["ROCR_VISIBLE_DEVICES"] == "GPU-94fa17be60d25c3d"
        kubelet.stop()


def renumbered(source: Path, target: Path) -> None:
    """Lay out the same GPUs with the last one's DRM nodes called card3 and renderD131."""
    lay(target, "mi300x")
    moved = target / "sys/devices/pci0000:e4/0000:e4:01.1/0000:e5:00.0/drm"
    for old, new in (("card56", "card3"), ("renderD184", "renderD131")):
        (moved / old).rename(moved / new)
    for node in (target / "sys/devices").rglob("properties"):
        text = node.read_text()
        if "drm_render_minor 184\n" in text:
            node.write_text(text.replace("drm_render_minor 184\n", "drm_render_minor 131\n"))
    # The one that had them has the others now.
    for folder in (target / "sys/devices/platform").glob("amdgpu_xcp_*/drm"):
        for old, new in (("card3", "card56"), ("renderD131", "renderD184")):
            if (folder / old).exists():
                (folder / old).rename(folder / new)


def test_what_is_being_allocated_is_answered_before_the_plugin_stops(tmp_path: Path) -> None:
    lay(tmp_path, "mi300x")
    kubelet, server = KubeletSide(tmp_path / "kubelet"), ApiServer().start()
    server.add_node(NODE)
    kubelet.start()
    patching, answers = threading.Event(), []

    def slow(request: Request) -> Fault:
        if request.method == "PATCH" and "/pods/" in request.path:
            patching.set()
            return Fault(delay=0.5)
        return NO_FAULT

    try:
        with plugin(tmp_path, kubelet, server):
            kubelet.await_devices()
            await_that(lambda: "hami.io/node-amd-register" in server.annotations(NODE))
            document = bind(server, "one", [Ask(cores=25, memory=1024)])
            server.fault = slow
            asking = threading.Thread(target=lambda: answers.append(kubelet.allocate(["any"])))
            asking.start()
            assert patching.wait(10)
            began = time.monotonic()
        asking.join(10)
        assert [device.name for answer in answers for device in answer.cdi_devices] == [
            f"amd.com/gpu=pod-{document['metadata']['uid']}.main"
        ]
        assert "hami.io/mutex.lock" not in server.annotations(NODE)
        assert time.monotonic() - began < 5
    finally:
        kubelet.stop()
        server.stop()
