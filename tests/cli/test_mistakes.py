"""What people type wrongly: one clear line, the right exit status, and nothing is written.

The status is 2 for what no machine would take, and 1 for what is not so on this one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import need
from tests.cli.conftest import MakeHost
from tests.cli.host import Host, Result, snapshot

CREATE = ("share", "create", "x", "--gpu", "0")

USAGE = [
    # Commands and options
    (["lst"], "No such command 'lst'", "list"),
    (["help"], "No such command 'help'"),
    (["share", "ls"], "No such command 'ls'", "list"),
    (["share", "delete", "x"], "No such command 'delete'"),
    (["--verbose", "list"], "No such option", "--verbose"),
    (["--json"], "Missing command"),
    (["list", "--sysrot", "/"], "No such option", "--sysroot"),
    (["generate", "now"], "unexpected extra argument", "now"),
    (["topology", "0"], "unexpected extra argument", "0"),
    (["--state-dir"], "--state-dir", "requires an argument"),
    # Sizes and amounts
    ([*CREATE, "--memroy", "48g"], "No such option", "--memroy", "--memory"),
    ([*CREATE, "--memory", "48"], "a number without a unit is in bytes", "48GiB or 48MiB"),
    ([*CREATE, "--memory", "0.25"], "less than 1 MiB", "0.25GiB"),
    ([*CREATE, "--memory", "5 apples"], "'5 apples'", "powers of 1024", "48GiB"),
    ([*CREATE, "--memory", "-5GiB"], "'-5GiB'"),
    ([*CREATE, "--memory", "1,5GiB"], "'1,5GiB'"),
    ([*CREATE, "--memory", "101%"], "from 1 to 100", "'101%'"),
    ([*CREATE, "--memory", ""], "found ''"),
    ([*CREATE, "--cores", "0"], "from 1 to 100", "'0'"),
    ([*CREATE, "--cores", "101"], "from 1 to 100", "'101'"),
    ([*CREATE, "--cores", "25.5"], "a whole number", "'25.5'"),
    ([*CREATE, "--cores", "a quarter"], "'a quarter'"),
    ([*CREATE, "--cus", "0"], "--cus", "0 is not in the range"),
    ([*CREATE, "--cus", "many"], "--cus", "'many'"),
    ([*CREATE, "--cus", "8", "--cores", "8"], "--cores or --cus, not both"),
    ([*CREATE, "--memory-scaling", "0.5"], "from 1 to 1000", "'0.5'"),
    ([*CREATE, "--memory-scaling", "twice"], "'twice'"),
    # GPUs
    (["share", "create", "x"], "Missing option '--gpu'"),
    (["share", "create", "x", "--gpu", "all"], "index, UUID or PCI address", "'all'"),
    (["share", "create", "x", "--gpu", "0,1"], "--gpu again for each further GPU", "'0,1'"),
    (["share", "create", "x", "--gpu", "-1"], "'-1'"),
    (["share", "create", "x", "--gpu", ""], "found ''"),
    (["share", "create", "x", "--gpu", "amd.com/gpu=0"], "'amd.com/gpu=0'", "--gpu 0"),
    (["share", "create", "x", "--gpu", "renderD128"], "'renderD128'"),
    ([*CREATE, "--gpu", "0"], "name each GPU of the share once"),
    # Names
    (["share", "create", "--gpu", "0"], "Missing argument 'NAME'"),
    (["share", "create", "x", "y", "--gpu", "0"], "unexpected extra argument", "y"),
    (["share", "create", "al ice", "--gpu", "0"], "a share's name", "'al ice'"),
    (["share", "create", "al/ice", "--gpu", "0"], "a share's name", "'al/ice'"),
    (["share", "create", "alice.", "--gpu", "0"], "a letter or digit at both ends"),
    (["share", "create", "a" * 64, "--gpu", "0"], "1 to 63"),
    (["share", "create", "", "--gpu", "0"], "found ''"),
    (["share", "remove", "amd.com/gpu=0"], "a share made by share create", "amd-cdi share list"),
    (["share", "remove", "a/b"], "a share's name", "'a/b'"),
    (["show"], "Missing argument 'DEVICE...'"),
    (["show", "amd.com/gpu:0"], "KIND=NAME", "'amd.com/gpu:0'", "amd.com/gpu=0"),
    (["show", "amd.com/gpu"], "KIND=NAME"),
    (["show", "gpu=0"], "KIND=NAME"),
    (["show", ""], "KIND=NAME"),
    # generate
    (["generate", "--split", "0"], "--split", "0 is not in the range"),
    (["generate", "--split", "3.5"], "'3.5'"),
    (["generate", "--format", "yml"], "'yml' is not one of", "yaml"),
    (["generate", "--device-name-strategy", "indx"], "'indx' is not one of index, uuid, pci"),
    (["generate", "--device-name-strategy", "index,uuid"], "'index,uuid'", "once for each"),
    (["generate", "--require", "all"], "'all' is not one of", "dmem"),
    (["generate", "--hook-stage", "Prestart"], "'Prestart' is not one of", "prestart"),
    (["generate", "--hook-path", "hook"], "the option hook-path must be an absolute path"),
    (["generate", "--watch", "--dry-run"], "--watch"),
    (["generate", "--on-conflict", "ask"], "'ask' is not one of", "omit"),
    (["generate", "--watch", "--output", "-"], "--watch"),
    (["inject", "config.json"], "Missing argument 'DEVICE...'"),
    # Where the node lies
    (["list", "--sample", "mi210"], "--sample or --sysroot, not both"),
    (["generate", "--spec-dir", "same", "--state-dir", "same"], "both the state and the spec"),
]

FAILURES = [
    (["share", "create", "x", "--gpu", "12"], "no GPU '12' on this node; name one of 0, 1"),
    (["share", "create", "x", "--gpu", "0:3"], "no GPU '0:3'"),
    ([*CREATE, "--memory", "1000g"], "GPU 0", "the GPU has 24560 MiB", "--memory"),
    ([*CREATE, "--cus", "97"], "from 1 to 96", "found 97"),
    (["share", "remove", "x"], "there is no share 'share-x'", "amd-cdi share list"),
    (["share", "remove", "0"], "there is no share 'share-0'"),
    (["show", "share-x"], "no CDI device 'amd.com/gpu=share-x'", "amd-cdi list"),
    (["show", "nvidia.com/gpu=0"], "no CDI device 'nvidia.com/gpu=0'"),
    (["generate", "--split", "1000"], "cannot be split into 1000", "split into 48 or fewer"),
    (["generate", "--output", "."], "a directory", "choose a file"),
    (["generate", "--output", "/"], "a file was expected, found /"),
    (["generate", "--output", "none/x.yaml"], "No such file or directory"),
    (["hooks-d", "--output", "/"], "a file was expected, found /"),
    (["topology", "--svg", "none/x.svg"], "No such file or directory"),
    (["generate", "--sysroot", "none"], "is not a directory", "--sysroot"),
]

GARBAGE = [
    (["generate"], "AMD_CDI_SPLIT", "two"),
    (["generate"], "AMD_CDI_REQUIRE", "hope"),
    (["generate"], "AMD_CDI_HOOK_STAGE", "poststop"),
    (["generate"], "AMD_CDI_FORMAT", "toml"),
    (["generate"], "AMD_CDI_WATCH", "perhaps"),
    (["generate"], "AMD_CDI_DRY_RUN", "perhaps"),
    (["generate"], "AMD_CDI_HOOK_PATH", "hook"),
    (["generate"], "AMD_CDI_DEVICE_NAME_STRATEGY", "serial"),
    (["list"], "AMD_CDI_JSON", "perhaps"),
    (["list"], "AMD_CDI_DEBUG", "perhaps"),
    (["share", "list"], "AMD_CDI_STATE_DIR", "a\u2028b"),
    (["share", "create", "x"], "AMD_CDI_GPU", "0,1"),
    ([*CREATE], "AMD_CDI_MEMORY", "some"),
    ([*CREATE], "AMD_CDI_CORES", "200"),
    ([*CREATE], "AMD_CDI_CUS", "few"),
    ([*CREATE], "AMD_CDI_MEMORY_SCALING", "nan"),
]


def one_line(result: Result) -> None:
    """Check that one line says what is wrong; the others say how the command goes."""
    said = [
        line
        for line in result.err.splitlines()
        if line and not line.startswith(("Usage: ", "Try ", "amd-cdi: warning: "))
    ]
    assert len(said) == 1, result.err
    assert said[0].startswith(("Error: ", "amd-cdi: error: ")), result.err


@pytest.fixture
def node(radeons: Host) -> Host:
    """Before anything was ever written."""
    return radeons


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [(row[0], row[1:]) for row in USAGE],
    ids=[" ".join(row[0]) for row in USAGE],
)
def test_wrong_usage(node: Host, arguments: list[str], parts: tuple[str, ...]) -> None:
    result = node.run(*arguments).failed(*parts, status=2)
    one_line(result)
    assert list(node.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [(row[0], row[1:]) for row in FAILURES],
    ids=[" ".join(row[0]) for row in FAILURES],
)
def test_what_is_not_so_on_this_machine(
    node: Host, arguments: list[str], parts: tuple[str, ...]
) -> None:
    result = node.run(*arguments).failed(*parts)
    one_line(result)
    assert list(node.folder.iterdir()) == []


@pytest.mark.parametrize(("arguments", "variable", "value"), GARBAGE)
def test_garbage_in_a_variable(node: Host, arguments: list[str], variable: str, value: str) -> None:
    result = node.run(*arguments, **{variable: value}).failed(status=2)
    one_line(result)
    if value.isprintable():
        assert value in result.err
    assert list(node.folder.iterdir()) == []


def test_creating_and_removing_twice(node: Host) -> None:
    node.run(*CREATE, "--cores", "25", "--memory", "1g").done()
    before = snapshot(node.folder)
    node.run(*CREATE, "--cores", "25", "--memory", "1g").done()
    one_line(node.run(*CREATE, "--cores", "50", "--memory", "1g").failed("there is another share"))
    assert snapshot(node.folder) == before
    node.share("remove", "x").done()
    one_line(node.share("remove", "x").failed("there is no share 'share-x'"))


@pytest.mark.parametrize("name", ["Alice", "al_ice", "al.ice", "a" * 63])
def test_names_that_look_wrong_and_are_right(node: Host, name: str) -> None:
    made = node.share("create", name, "--gpu", "0", "--cores", "25", "--memory", "1g").done()
    assert made.out.startswith(f"amd.com/gpu=share-{name}\n")
    node.share("remove", f"amd.com/gpu=share-{name}").done()


def test_list_before_the_first_generate(node: Host) -> None:
    result = node.run("list").done()
    assert "no CDI spec in" in result.err


@pytest.fixture
def unprivileged(own: MakeHost, tmp_path: Path) -> Host:
    """A user who may read everything and write nothing."""
    need.superuser("being another user")
    host = own("rx7900xtx")
    host.run(*CREATE, "--cores", "25", "--memory", "1g").done()
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o005 and folder.is_relative_to("/tmp"):
            folder.chmod(0o755)
    setpriv = need.program("setpriv")
    return host.under(str(setpriv), "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "--split", "2"],
        ["share", "create", "y", "--gpu", "1", "--cores", "25", "--memory", "1g"],
        ["share", "remove", "x"],
        ["generate", "--remove", "--yes", "--force"],
    ],
    ids=" ".join,
)
def test_without_root(unprivileged: Host, arguments: list[str]) -> None:
    before = snapshot(unprivileged.folder)
    result = unprivileged.run(*arguments).failed("Permission denied", "run it as root")
    one_line(result)
    assert snapshot(unprivileged.folder) == before
    # What only reads needs no root.
    unprivileged.run("show", "share-x").done()
    unprivileged.run("share", "list").done()


def test_a_spec_directory_that_cannot_be_written(own: MakeHost) -> None:
    need.namespaces()
    host = own("rx7900xtx")
    host.generate().done()
    script = f'mount --bind -o ro "{host.spec_dir}" "{host.spec_dir}" && exec "$@"'
    readonly = host.under("unshare", "--mount", "sh", "-c", script, "sh")
    before = snapshot(host.folder)
    for arguments in (["generate", "--split", "2"], ["generate", "--remove", "--yes"]):
        result = readonly.run(*arguments).failed("Read-only file system", "writable filesystem")
        one_line(result)
        assert snapshot(host.folder) == before
