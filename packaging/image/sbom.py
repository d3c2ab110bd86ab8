"""Lists all that is in the image as a software bill of materials, in CycloneDX's JSON.

    python packaging/image/sbom.py "$(podman image mount amd-cdi)" >amd-cdi.cdx.json

What the image says of itself is taken: Debian's database of packages and the metadata of Python's.
The same image gives the same bytes.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from debian.deb822 import Packages
from packageurl import PackageURL

APP = "app"
"""Where the virtual environment is."""


def bill(root: Path) -> Bom:
    """Return what there is below the root of an image."""
    parts = [*debian_packages(root), *python_packages(root)]
    (own,) = [part for part in parts if part.name == "amd-cdi"]
    parts.remove(own)
    own.type = ComponentType.CONTAINER
    metadata = BomMetaData(component=own, timestamp=datetime.fromtimestamp(0, UTC))
    names = " ".join(sorted(str(part.purl) for part in (own, *parts)))
    number = uuid.uuid5(uuid.NAMESPACE_URL, names)
    made = Bom(components=parts, metadata=metadata, serial_number=number)
    made.register_dependency(own, parts)
    return made


def debian_packages(root: Path) -> Iterator[Component]:
    """Yield the packages that dpkg has installed."""
    with (root / "var/lib/dpkg/status").open("rb") as status:
        for entry in Packages.iter_paragraphs(status, use_apt_pkg=False):
            if entry["Status"].endswith(" installed"):
                where = {"arch": entry["Architecture"]}
                yield part("deb", entry["Package"], entry["Version"], "debian", where)


def python_packages(root: Path) -> Iterator[Component]:
    """Yield the packages of the virtual environment, and the interpreter that it is made of."""
    (library,) = (root / APP).glob("lib/python3*/site-packages")
    for found in distributions(path=[str(library)]):
        yield part("pypi", found.name.lower().replace("_", "-"), found.version)
    lines = (root / APP / "pyvenv.cfg").read_text("utf-8").splitlines()
    settings = dict(line.split(" = ", 1) for line in lines)
    yield part("generic", "cpython", settings["version"])


def part(
    kind: str, name: str, version: str, namespace: str = "", where: dict[str, str] | None = None
) -> Component:
    """Return a component by the names that vulnerability databases know it by."""
    purl = PackageURL(kind, namespace or None, name, version, where)
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl))


if __name__ == "__main__":
    sys.stdout.write(JsonV1Dot6(bill(Path(sys.argv[1]))).output_as_string(indent=2) + "\n")
