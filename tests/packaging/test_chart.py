"""The chart, as the real helm renders it and judges its values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdi.version import __version__
from tests import need
from tests.cluster.plugin import RIGHTS
from tests.helm import CHART, MANIFESTS, helm

HAMI_VALUES: dict[str, Any] = {
    "global": {
        "imageRegistry": "registry.example",
        "imagePullSecrets": ["secret"],
        "imageTag": "v1",
        "labels": {"team": "gpu"},
        "annotations": {"note": "x"},
    },
    "devicePlugin": {
        "image": {"repository": "gpu/amd-cdi", "pullPolicy": "Always", "pullSecrets": ["other"]},
        "deviceSplitCount": 4,
        "deviceMemoryScaling": 1.5,
        "pluginPath": "/data/kubelet/device-plugins",
        "podAnnotations": {"seen": "yes"},
        "hostNetwork": True,
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "updateStrategy": {"type": "OnDelete"},
        "resources": {"limits": {"cpu": "1"}},
    },
}
"""Values that a chart for HAMi's own plugin takes."""


def run(*arguments: str | Path, values: Any = None) -> subprocess.CompletedProcess[str]:
    command = [need.fetched(helm), *arguments]
    if values is not None:
        command.append("--values=-")
    return subprocess.run(
        command,
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        check=False,
    )


def rendered(values: Any = None, *, name: str = "amd-cdi") -> dict[str, Any]:
    """What the cluster is given, by kind; what only a hook is given has a slash before its kind."""
    done = run("template", name, CHART, "--namespace=gpus", values=values)
    assert done.returncode == 0, done.stderr
    return {kind(one): one for one in yaml.safe_load_all(done.stdout) if one}


def kind(document: Any) -> str:
    hook = (document["metadata"].get("annotations") or {}).get("helm.sh/hook", "")
    return f"{hook}/{document['kind']}" if hook else str(document["kind"])


def pod(documents: dict[str, Any]) -> Any:
    return documents["DaemonSet"]["spec"]["template"]["spec"]


def plugin(documents: dict[str, Any]) -> Any:
    (container,) = pod(documents)["containers"]
    return container


def test_lint_finds_nothing() -> None:
    done = run("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_version_is_the_programs() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_objects_of_a_release() -> None:
    documents = rendered()
    assert set(documents) == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "DaemonSet",
        *(f"pre-delete/{name}" for name in ("ServiceAccount", "Role", "RoleBinding", "Job")),
        "test/Pod",
    }
    for document in documents.values():
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "amd-cdi"
        if document["kind"] not in {"ClusterRole", "ClusterRoleBinding"}:
            assert document["metadata"]["namespace"] == "gpus"


def test_the_plugin_may_do_what_it_does_and_nothing_else() -> None:
    documents = rendered()
    rights = [
        (verb, resource, group)
        for rule in documents["ClusterRole"]["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
    ]
    assert sorted(rights) == sorted((verb, resource, "") for verb, resource in RIGHTS)
    (subject,) = documents["ClusterRoleBinding"]["subjects"]
    account = documents["ServiceAccount"]["metadata"]
    assert (subject["namespace"], subject["name"]) == (account["namespace"], account["name"])
    assert pod(documents)["serviceAccountName"] == account["name"]


def test_defaults_leave_what_the_plugin_knows_better() -> None:
    assert plugin(rendered())["args"] == [
        "--kubelet-dir=/var/lib/kubelet/device-plugins",
        "--device-memory-scaling=1",
        "--allocator-policy=besteffort",
        "--resource-naming-strategy=single",
    ]


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        ({"deviceSplitCount": 10}, "--split-count=10"),
        ({"deviceMemoryScaling": 1.5}, "--device-memory-scaling=1.5"),
        ({"deviceMemoryScaling": "1.5"}, "--device-memory-scaling=1.5"),
        ({"allocatorPolicy": "spread"}, "--allocator-policy=spread"),
        ({"resourceNamingStrategy": "mixed"}, "--resource-naming-strategy=mixed"),
        ({"require": "none"}, "--require=none"),
        ({"pluginPath": "/data/plugins"}, "--kubelet-dir=/data/plugins"),
        ({"extraArgs": ["--log-format=json"]}, "--log-format=json"),
    ],
)
def test_values_become_options_that_the_plugin_takes(values: Any, argument: str) -> None:
    from deviceplugin.options import parse

    arguments = plugin(rendered({"devicePlugin": values}))["args"]
    assert argument in arguments
    parse(arguments, {})


def test_values_of_hamis_chart_mean_the_same() -> None:
    documents = rendered(HAMI_VALUES)
    spec, container = pod(documents), plugin(documents)
    assert container["image"] == "registry.example/gpu/amd-cdi:v1"
    assert container["imagePullPolicy"] == "Always"
    assert spec["imagePullSecrets"] == [{"name": "secret"}, {"name": "other"}]
    assert {"--split-count=4", "--device-memory-scaling=1.5"} < set(container["args"])
    volumes = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]}
    assert volumes["kubelet"] == "/data/kubelet/device-plugins"
    assert spec["hostNetwork"] is True
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert container["resources"]["limits"]["cpu"] == "1"
    daemon_set = documents["DaemonSet"]
    assert daemon_set["spec"]["updateStrategy"]["type"] == "OnDelete"
    assert daemon_set["spec"]["template"]["metadata"]["annotations"]["seen"] == "yes"
    for document in documents.values():
        assert document["metadata"]["labels"]["team"] == "gpu"
        assert document["metadata"]["annotations"]["note"] == "x"


def test_containers_find_on_the_node_what_the_installer_laid() -> None:
    spec = pod(rendered({"devicePlugin": {"prefix": "/usr/local/lib/amd-cdi"}}))
    (installer,), (container,) = spec["initContainers"], spec["containers"]
    assert installer["args"] == ["--prefix=/usr/local/lib/amd-cdi"]
    volumes = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]}
    for one in (installer, container):
        # A path means the same in a container and on the node: specs name it.
        for mount in one["volumeMounts"]:
            assert volumes[mount["name"]] == mount["mountPath"]
    shared = {"/dev", "/etc/cdi", "/var/lib/amd-cdi", "/usr/local/lib/amd-cdi", "/run/amd-cdi"}
    for one in (installer, container):
        assert shared < {mount["mountPath"] for mount in one["volumeMounts"]}


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("amd-cdi", {}, "amd-cdi"),
        ("gpus", {}, "gpus-amd-cdi"),
        ("gpus", {"nameOverride": "shares"}, "gpus-shares"),
        ("gpus", {"fullnameOverride": "plugin"}, "plugin"),
        ("r" * 50, {}, "r" * 50),
    ],
)
def test_names(release: str, values: Any, name: str) -> None:
    documents = rendered(values, name=release)
    assert documents["DaemonSet"]["metadata"]["name"] == name
    assert documents["pre-delete/Role"]["rules"][0]["resourceNames"] == [name]
    for document in documents.values():
        assert len(document["metadata"]["name"]) <= 63


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"devicePluggin": {}}, "devicePluggin"),
        ({"devicePlugin": {"splitCount": 4}}, "splitCount"),
        ({"devicePlugin": {"deviceSplitCount": 0}}, "/devicePlugin/deviceSplitCount"),
        ({"devicePlugin": {"deviceSplitCount": 2.5}}, "/devicePlugin/deviceSplitCount"),
        ({"devicePlugin": {"deviceMemoryScaling": 0.5}}, "/devicePlugin/deviceMemoryScaling"),
        ({"devicePlugin": {"deviceMemoryScaling": "lots"}}, "/devicePlugin/deviceMemoryScaling"),
        ({"devicePlugin": {"allocatorPolicy": "random"}}, "/devicePlugin/allocatorPolicy"),
        ({"devicePlugin": {"require": "all"}}, "/devicePlugin/require"),
        ({"devicePlugin": {"prefix": "opt/amd-cdi"}}, "/devicePlugin/prefix"),
        ({"devicePlugin": {"prefix": "/opt/amd cdi"}}, "/devicePlugin/prefix"),
        ({"devicePlugin": {"pluginPath": "/"}}, "/devicePlugin/pluginPath"),
        ({"devicePlugin": {"extraArgs": ["pulse"]}}, "/devicePlugin/extraArgs"),
        ({"devicePlugin": {"extraEnvs": [{"value": "x"}]}}, "/devicePlugin/extraEnvs"),
        ({"devicePlugin": {"image": {"pullPolicy": "Often"}}}, "/devicePlugin/image/pullPolicy"),
        ({"devicePlugin": {"image": {"repository": ""}}}, "/devicePlugin/image/repository"),
        ({"devicePlugin": {"updateStrategy": {"type": "Now"}}}, "/devicePlugin/updateStrategy"),
        ({"devicePlugin": {"hostNetwork": "yes"}}, "/devicePlugin/hostNetwork"),
        ({"global": {"imagePullSecrets": [{"name": "x"}]}}, "/global/imagePullSecrets"),
        ({"fullnameOverride": "Not_A_Name"}, "/fullnameOverride"),
        # HAMi's chart has it, and this one has nothing that it could mean.
        ({"devicePlugin": {"migStrategy": "none"}}, "migStrategy"),
    ],
)
def test_schema_says_which_value_is_wrong(values: Any, place: str) -> None:
    done = run("template", "amd-cdi", CHART, values=values)
    assert done.returncode != 0
    assert place in done.stderr


def test_manifest_is_what_the_defaults_come_to() -> None:
    done = run("template", "amd-cdi", CHART, "--namespace=amd-cdi", "--no-hooks")
    assert (MANIFESTS / "amd-cdi.yaml").read_text() == done.stdout


def test_a_node_is_known_by_any_of_its_labellers() -> None:
    affinity = pod(rendered())["affinity"]["nodeAffinity"]
    (terms,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"].values()
    # Terms are alternatives, expressions of one term are not.
    assert [len(term["matchExpressions"]) for term in terms] == [1] * len(terms)
    assert {term["matchExpressions"][0]["key"] for term in terms} == {
        "feature.node.kubernetes.io/amd-gpu",
        "feature.node.kubernetes.io/pci-0300_1002.present",
        "feature.node.kubernetes.io/pci-0380_1002.present",
        "feature.node.kubernetes.io/pci-1200_1002.present",
        "amd.com/gpu.product-name",
    }


def test_notes_say_what_the_release_gives_up() -> None:
    def notes(values: Any) -> str:
        command = ("install", "amd-cdi", CHART, "--dry-run=client", "--namespace=gpus")
        done = run(*command, values=values)
        assert done.returncode == 0, done.stderr
        return done.stdout[done.stdout.index("NOTES:") :]

    assert "--namespace gpus test amd-cdi" in notes({})
    assert "without any enforcement" not in notes({})
    assert "without any enforcement" in notes({"devicePlugin": {"require": "none"}})
    assert "More memory is offered" in notes({"devicePlugin": {"deviceMemoryScaling": 2}})
