"""Who asks, and what the kernel lets him open."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class User:
    """A user with the groups that his processes have."""

    uid: int
    gids: frozenset[int]
    name: str

    @property
    def is_root(self) -> bool:
        """Whether he may do everything."""
        return self.uid == 0

    def may_open(self, mode: int, uid: int, gid: int) -> bool:
        """Whether he may read and write a file of this mode and these owners."""
        shift = 6 if uid == self.uid else 3 if gid in self.gids else 0
        return self.is_root or (mode >> shift) & 6 == 6


def asking() -> User:
    """Return who runs this process."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return User(uid, frozenset([*os.getgroups(), os.getegid()]), name)


def group_name(gid: int) -> str:
    """Return the name of a group, or its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
