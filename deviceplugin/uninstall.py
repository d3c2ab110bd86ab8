"""Takes the plugin, and what was installed for it, off every node, before its DaemonSet goes.

Run as ``python -m deviceplugin.uninstall NAMESPACE NAME`` in the cluster. A DaemonSet is the one
who reaches all of its nodes: its pods end with the plugin, and new ones run ``amd-cdi uninstall``
with the same folders of the node. That leaves a node as it is while shares live on it.
"""

from __future__ import annotations

import sys
from typing import Any

from cdi.errors import AmdCdiError, PermanentError
from deviceplugin import cluster
from deviceplugin.cluster import Cluster, Json
from deviceplugin.deadline import Deadline

REMOVE = 'amd-cdi uninstall "$@" || echo "this node keeps what it has"'

WAIT = "trap exit TERM; sleep infinity & wait"

SECONDS = 180.0
"""How long all nodes may take; a pod has 30 of them to end."""

PAUSE_SECONDS = 1.0


def leaving(daemon_set: Json) -> Json:
    """Return the patch of a DaemonSet whose pods install, then serve: they uninstall, then wait."""
    spec = daemon_set["spec"]["template"]["spec"]
    (installer,), (plugin,) = spec["initContainers"], spec["containers"]
    waiting = {**plugin, "command": ["sh", "-c", WAIT], "args": []}
    removing = {**installer, "command": ["sh", "-c", REMOVE, "sh"]}
    return {
        "spec": {
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "100%"},
            },
            "template": {"spec": {"initContainers": [removing], "containers": [waiting]}},
        }
    }


def done(daemon_set: Json) -> bool:
    """Whether all pods are as the DaemonSet has them now."""
    status: dict[str, Any] = daemon_set.get("status") or {}
    wanted = status.get("desiredNumberScheduled", 0)
    counted = [status.get(name, 0) for name in ("updatedNumberScheduled", "numberAvailable")]
    seen = status.get("observedGeneration") == daemon_set["metadata"]["generation"]
    return bool(seen and counted == [wanted, wanted])


def uninstall(api: Cluster, namespace: str, name: str) -> None:
    """Leave all nodes; raises AmdCdiError if that cannot be seen to be done."""
    deadline = Deadline.after(SECONDS)
    daemon_set = api.daemon_set(namespace, name, deadline)
    if daemon_set is None:
        return
    daemon_set = api.patch_daemon_set(namespace, name, leaving(daemon_set), deadline)
    while not done(daemon_set):
        if not deadline.sleep(PAUSE_SECONDS):
            raise PermanentError(
                f"all pods of DaemonSet {namespace}/{name} were expected to have left their nodes "
                f"within {SECONDS:g} s, found {daemon_set.get('status')}",
                "see which do not start, or uninstall with --no-hooks and run `amd-cdi uninstall` "
                "on their nodes later",
            )
        daemon_set = api.daemon_set(namespace, name, deadline) or daemon_set


def main() -> None:
    """Read the command line and leave."""
    try:
        api = cluster.connect()
        if api is None:
            raise PermanentError(
                "a pod with a service account was expected", "run it in the cluster"
            )
        uninstall(api, *sys.argv[1:])
    except AmdCdiError as error:
        sys.exit(f"amd-cdi: error: {error}")


if __name__ == "__main__":
    main()
