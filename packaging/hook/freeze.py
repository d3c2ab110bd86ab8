"""Writes what the hook imports as C: code objects in arrays, and the table of built-in modules.

Run as ``freeze.py REPOSITORY FILE`` by the interpreter whose static library is linked, since
bytecode is of one version of Python. The same sources give the same bytes.
"""

from __future__ import annotations

import ast
import marshal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NO_PART = {"install.py"}
"""The file of ``ocihook`` that is no part of the hook."""

FASTER = {"_json"}
"""Extension modules that the hook can do without: the static library has no extension module."""

INITIALISERS = {
    "builtins": "NULL",
    "sys": "NULL",
    "marshal": "PyMarshal_Init",
    "_warnings": "_PyWarnings_Init",
}
"""Where it is not ``PyInit_<name>``; the first two are there before the table is read."""

TELL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
for module in sys.modules.values():
    spec = module.__spec__
    if spec is not None:
        print(spec.name, spec.origin, int(spec.submodule_search_locations is not None), sep="\\t")
"""


@dataclass(frozen=True, order=True)
class Module:
    """A module that is imported when all of the hook is."""

    name: str
    origin: str
    """Path of the source, or ``built-in`` or ``frozen``, as import specs have it."""

    package: bool

    @property
    def symbol(self) -> str:
        """Name of its code in C."""
        return "code_" + self.name.replace("_", "__").replace(".", "_")

    def code(self, root: Path) -> bytes:
        """Return its compiled source; the file's name in it tells nothing of this machine."""
        path = Path(self.origin)
        start = root if path.is_relative_to(root) else Path(ast.__file__).parent
        text = path.read_bytes()
        return marshal.dumps(compile(text, path.relative_to(start), "exec", dont_inherit=True))


def main() -> None:
    """Write the file."""
    root, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    loaded = imported(root, wanted(root))
    built_in = sorted(module.name for module in loaded if module.origin == "built-in")
    sources = sorted(module for module in loaded if module.origin.endswith(".py"))
    rest = {module.name for module in loaded if module.origin not in {"built-in", "frozen"}}
    rest -= {module.name for module in sources} | FASTER
    if rest:
        sys.exit(f"expected the hook to import sources and built-in modules, found {rest}")
    target.write_text(text(built_in, sources, root), encoding="ascii")


def wanted(root: Path) -> list[str]:
    """Return the modules that the hook's files import anywhere, also in their functions."""
    files = [path for path in (root / "ocihook").glob("*.py") if path.name not in NO_PART]
    names = {f"ocihook.{path.stem}" for path in files if path.stem != "__init__"}
    for path in [*files, root / "cdi/cumask.py"]:
        for node in ast.walk(Running().visit(ast.parse(path.read_bytes()))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names.add(node.module)
    return sorted(names)


class Running(ast.NodeTransformer):
    """Leaves out what is there for the type checker alone."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        """Leave out ``if TYPE_CHECKING``."""
        names = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if names else node


def imported(root: Path, names: list[str]) -> list[Module]:
    """Return all modules that a fresh interpreter has when it has imported these."""
    command = [sys.executable, "-IS", "-c", TELL, str(root), *names]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    rows = [line.split("\t") for line in told.splitlines()]
    return [Module(name, origin, package == "1") for name, origin, package in rows]


def text(built_in: list[str], sources: list[Module], root: Path) -> str:
    """Return the C file."""
    codes = [
        f"static const unsigned char {module.symbol}[] = "
        f"{{{','.join(map(str, module.code(root)))}}};"
        for module in sources
    ]
    frozen = [
        f'\t{{.name = "{module.name}", .code = {module.symbol}, .size = sizeof {module.symbol}, '
        f".is_package = {int(module.package)}}},"
        for module in sources
    ]
    initialisers = {name: INITIALISERS.get(name, f"PyInit_{name}") for name in built_in}
    functions = sorted(set(initialisers.values()) - {"NULL"})
    lines = [
        "#include <Python.h>",
        *codes,
        "extern const struct _frozen frozen_modules[];",
        "const struct _frozen frozen_modules[] = {",
        *frozen,
        "\t{.name = NULL},",
        "};",
        *(f"extern PyObject *{function}(void);" for function in functions),
        # Takes the place of the library's own table, with which all of its modules would be linked.
        "struct _inittab _PyImport_Inittab[] = {",
        *(f'\t{{"{name}", {function}}},' for name, function in initialisers.items()),
        "\t{NULL, NULL},",
        "};",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
