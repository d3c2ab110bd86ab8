"""All checks of a node, one after the other: one that fails itself costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cdi.doctor import gpus, hook, kernel, library, runtimes, specs, upkeep
from cdi.doctor.finding import Finding
from cdi.doctor.gpus import Gpus
from cdi.doctor.kernel import Kernel
from cdi.doctor.library import Library
from cdi.doctor.user import User
from cdi.state.paths import Paths


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined, for whom."""

    paths: Paths
    spec_dirs: tuple[Path, ...]
    user: User
    rootfs: tuple[str, Path] | None = None
    """An image's name and root filesystem."""

    @property
    def root(self) -> Path:
        """The root of the system."""
        return self.paths.sysroot


class _Examination:
    """What is known so far; later checks need what earlier ones have read."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.ledger, self.broken = specs.read_ledger(subject.paths.state_dir)
        self.kernel = Kernel("", "", v1=False, controllers=frozenset())
        self.gpus = Gpus(None)
        self.library = Library(self.ledger.options.library_path, "not looked at")
        self.spec_version = ""

    @property
    def root(self) -> Path:
        return self.subject.root

    def read_library(self) -> None:
        self.library = library.read(self.root, self.ledger.options.library_path)

    def of_gpus(self) -> Iterable[Finding]:
        self.gpus = gpus.read(self.root)
        return gpus.findings(self.gpus, self.subject.user)

    def of_kernel(self) -> Iterable[Finding]:
        self.kernel = kernel.read(self.root)
        node = self.gpus.node
        own = node.gpus if node else ()
        held = not self.library.problem
        return kernel.findings(self.kernel, own, self.ledger.options.require, library=held)

    def of_library(self) -> Iterable[Finding]:
        require = self.ledger.options.require
        return library.findings(self.library, require, dmem=self.kernel.has_dmem)

    def of_image(self) -> Iterable[Finding]:
        if self.subject.rootfs is None or self.library.problem:
            return []
        name, rootfs = self.subject.rootfs
        trial = library.try_image(self.ledger.options.hook_path, self.library, rootfs)
        dmem = self.kernel.has_dmem and self.ledger.options.require != "library"
        return library.image_findings(name, trial, dmem=dmem)

    def of_hook(self) -> Iterable[Finding]:
        return hook.findings(hook.read(self.root, self.ledger.options.hook_path))

    def of_specs(self) -> Iterable[Finding]:
        subject = self.subject
        found = specs.read(subject.paths, subject.spec_dirs, self.ledger, self.gpus.node)
        self.spec_version = found.version
        return specs.findings(found, self.ledger, self.broken)

    def of_runtimes(self) -> Iterable[Finding]:
        if self.root != Path("/"):
            return []
        found = runtimes.read(self.root, self.ledger.options)
        return runtimes.findings(found, str(self.subject.paths.spec_dir), self.spec_version)

    def of_upkeep(self) -> Iterable[Finding]:
        return upkeep.findings(upkeep.read(self.root, self.subject.paths.usage_dir))


def examine(subject: Subject) -> list[Finding]:
    """Return all that was found."""
    known = _Examination(subject)
    checks: list[tuple[str, Callable[[], Iterable[Finding] | None]]] = [
        ("the library", known.read_library),
        ("the GPUs", known.of_gpus),
        ("the kernel", known.of_kernel),
        ("the library", known.of_library),
        ("the hook", known.of_hook),
        ("the image", known.of_image),
        ("the specs", known.of_specs),
        ("the runtimes", known.of_runtimes),
        ("the upkeep", known.of_upkeep),
    ]
    return [finding for what, check in checks for finding in _made(what, check)]


def _made(what: str, check: Callable[[], Iterable[Finding] | None]) -> list[Finding]:
    try:
        return list(check() or ())
    except Exception as error:  # noqa: BLE001 -- the other checks are wanted all the same
        return [
            Finding("less", f"{what} could not be looked at", f"{type(error).__name__}: {error}")
        ]
