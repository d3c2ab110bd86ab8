"""What runtimes make of an OCI configuration."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from cdi.errors import AmdCdiError, PermanentError
from cdi.spec.edits import ContainerEdits
from cdi.spec.inject import inject
from tests import need

NULL: dict[str, Any] = {"type": "c", "major": 1, "minor": 3}


def test_environment_of_the_same_name_is_replaced_in_its_place() -> None:
    config = {"process": {"env": ["PATH=/bin", "A=old", "AB=keep"]}}
    result = inject(config, {"env": ["A=new", "B=2"]}, Path("/"))
    assert result["process"]["env"] == ["PATH=/bin", "A=new", "AB=keep", "B=2"]
    assert config == {"process": {"env": ["PATH=/bin", "A=old", "AB=keep"]}}


def test_a_node_gets_the_identity_that_the_host_has() -> None:
    edits: ContainerEdits = {"deviceNodes": [{"path": "/dev/null", "permissions": "rw"}]}
    assert inject({}, edits, Path("/"))["linux"] == {
        "devices": [{"path": "/dev/null", **NULL}],
        "resources": {"devices": [{"allow": True, **NULL, "access": "rw"}]},
    }


def test_a_node_belongs_to_the_user_of_the_container() -> None:
    config = {"process": {"user": {"uid": 1000, "gid": 0}}}
    edits: ContainerEdits = {"deviceNodes": [{"path": "/x", "hostPath": "/dev/null"}]}
    (device,) = inject(config, edits, Path("/"))["linux"]["devices"]
    assert device == {"path": "/x", **NULL, "uid": 1000}


def test_a_node_of_the_same_path_is_replaced() -> None:
    config = {"linux": {"devices": [{"path": "/dev/null", "type": "b", "major": 9, "minor": 9}]}}
    edits: ContainerEdits = {"deviceNodes": [{"path": "/dev/null"}]}
    result = inject(config, edits, Path("/"))
    assert result["linux"]["devices"] == [{"path": "/dev/null", **NULL}]
    assert result["linux"]["resources"]["devices"][0]["access"] == "rwm"


def test_a_node_that_is_missing_or_none_is_an_error(tmp_path: Path) -> None:
    edits: ContainerEdits = {"deviceNodes": [{"path": "/dev/kfd"}]}
    with pytest.raises(AmdCdiError, match=str(tmp_path / "dev/kfd")):
        inject({}, edits, tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    with pytest.raises(PermanentError, match="a device node was expected"):
        inject({}, edits, tmp_path)


def test_nodes_are_looked_up_in_the_sysroot(tmp_path: Path) -> None:
    need.superuser("making a device node")
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/kfd", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    result = inject({}, {"deviceNodes": [{"path": "/dev/kfd"}]}, tmp_path)
    assert result["linux"]["devices"] == [{"path": "/dev/kfd", "type": "c", "major": 1, "minor": 5}]


def test_mounts_are_replaced_by_destination_and_sorted_by_depth() -> None:
    config = {
        "mounts": [{"destination": "/a/b/c", "source": "x"}, {"destination": "/a/b", "source": "y"}]
    }
    edits: ContainerEdits = {
        "mounts": [
            {"hostPath": "/h", "containerPath": "/a/b/c", "options": ["ro"]},
            {"hostPath": "/i", "containerPath": "/a"},
        ]
    }
    assert inject(config, edits, Path("/"))["mounts"] == [
        {"destination": "/a", "source": "/i", "options": []},
        {"destination": "/a/b", "source": "y"},
        {"destination": "/a/b/c", "source": "/h", "options": ["ro"]},
    ]


def test_hooks_are_appended_under_their_stage() -> None:
    config = {"hooks": {"prestart": [{"path": "/first"}]}}
    edits: ContainerEdits = {
        "hooks": [
            {"hookName": "prestart", "path": "/second", "args": ["x"], "timeout": 5},
            {"hookName": "poststop", "path": "/third"},
        ]
    }
    assert inject(config, edits, Path("/"))["hooks"] == {
        "prestart": [{"path": "/first"}, {"path": "/second", "args": ["x"], "timeout": 5}],
        "poststop": [{"path": "/third"}],
    }


def test_groups_are_added_once_and_never_root() -> None:
    config = {"process": {"user": {"additionalGids": [44]}}}
    result = inject(config, {"additionalGids": [0, 44, 109]}, Path("/"))
    assert result["process"]["user"]["additionalGids"] == [44, 109]


@pytest.mark.parametrize(
    "config",
    [
        *[{"process": []}, {"process": {"env": [1]}}, {"process": {"env": 5}}, {"linux": "x"}],
        *[{"mounts": [1]}, {"hooks": []}, {"hooks": {"prestart": 1}}],
        {"linux": {"devices": [{}]}},
    ],
)
def test_a_configuration_of_other_types_is_an_error(config: dict[str, Any]) -> None:
    edits: ContainerEdits = {
        "env": ["A=1"],
        "deviceNodes": [{"path": "/dev/null"}],
        "mounts": [{"hostPath": "/h", "containerPath": "/c"}],
        "hooks": [{"hookName": "prestart", "path": "/x"}],
    }
    with pytest.raises(PermanentError, match="OCI configuration"):
        inject(config, edits, Path("/"))
