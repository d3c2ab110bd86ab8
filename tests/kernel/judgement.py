"""The hook run as a runtime runs it, on a process whose cgroup stays to be looked at."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel import runtimes, tools
from tests.kernel.cgroup import Cgroup
from tests.kernel.containers import Container, Outcome, Running


@contextmanager
def member(cgroup: Cgroup) -> Iterator[Running]:
    """The charging program as a process of this cgroup."""
    process = subprocess.Popen(
        tools.inside().charge, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        cgroup.admit(process.pid)
        yield Running(process)
    finally:
        process.communicate()


def judge(container: Container, process: Running, program: str, folder: Path) -> Outcome:
    """Run the container's only hook, as if this process were about to become this program.

    The bundle is laid in the folder; the state has what runc and crun both give.
    """
    (folder / "config.json").write_text(json.dumps(runtimes.config(container, [program])))
    state = {
        "ociVersion": "1.0.2",
        "id": container.name,
        "status": "creating",
        "pid": process.process.pid,
        "bundle": str(folder),
    }
    [hook] = container.hooks
    done = subprocess.run(
        hook.args,
        executable=hook.path,
        env={},
        input=json.dumps(state),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
