"""A shell script that looks around in a container, and what it saw."""

from collections.abc import Mapping
from dataclasses import dataclass

PATH = "/probe"

GRANTED = frozenset({"", "No such device or address"})
"""What opening a node answers where the cgroup allows it: nothing, or ENXIO without a driver."""

REFUSED = "Operation not permitted"
"""EPERM: the answer of the cgroup's device filter."""

# For busybox as for dash with coreutils. Each argument is the `major:minor` of a device that was
# not granted: the script makes a node of its own for it and tries to open that.
SCRIPT = r"""#!/bin/sh
opening() { answer=$( (: <"$1") 2>&1 ); echo "${answer##*: }"; }
find /dev -type c -o -type b | while read -r path; do
    echo "node $path $(stat -c '%t %T' "$path") $(opening "$path")"
done
for number; do
    mknod /made c "${number%:*}" "${number#*:}" && echo "stranger $number $(opening /made)"
    rm -f /made
done
tr '\0' '\n' </proc/1/environ | sed 's/^/environment /'
sed 's/^/mount /' </proc/self/mountinfo
# The files of which this very `cat` is made.
cat /proc/self/maps | sed -n 's|^[^/]* /|file /|p'
"""


@dataclass(frozen=True)
class Node:
    major: int
    minor: int
    answer: str
    """Of opening it: empty, or the text of the error."""


@dataclass(frozen=True)
class Sight:
    """What the probe saw."""

    nodes: Mapping[str, Node]
    """By path below /dev; GPU nodes as `kfd` and `dri/renderD128`."""
    strangers: Mapping[str, str]
    """The answer of opening each device that was not granted, by `major:minor`."""
    environment: Mapping[str, str]
    mounts: Mapping[str, frozenset[str]]
    """The options of each mount (`ro` or `rw` among them) by its path in the container."""
    files: frozenset[str]
    """What a program of the container is made of: itself, its loader and its libraries."""

    def gpu_nodes(self) -> dict[str, Node]:
        return {name: node for name, node in self.nodes.items() if name.startswith(("kfd", "dri"))}


def parse(output: str) -> Sight:
    """The probe's standard output; raises ValueError on a line it does not write."""
    nodes: dict[str, Node] = {}
    strangers: dict[str, str] = {}
    environment: dict[str, str] = {}
    mounts: dict[str, frozenset[str]] = {}
    files: set[str] = set()
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "node":
            path, major, minor, answer = rest.split(" ", 3)
            nodes[path.removeprefix("/dev/")] = Node(int(major, 16), int(minor, 16), answer)
        elif kind == "stranger":
            number, answer = rest.split(" ", 1)
            strangers[number] = answer
        elif kind == "environment":
            name, _, value = rest.partition("=")
            environment[name] = value
        elif kind == "mount":
            # proc_pid_mountinfo(5): id, parent, device, root, mount point, options
            fields = rest.split(" ")
            mounts[fields[4]] = frozenset(fields[5].split(","))
        elif kind == "file":
            files.add(rest)
        else:
            raise ValueError(f"not a line of the probe: {line!r}")
    return Sight(nodes, strangers, environment, mounts, frozenset(files))
