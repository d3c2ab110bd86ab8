"""``amd-cdi doctor``: whether shares will be enforced on this node, and what it lacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cdi.command import output
from cdi.command.arguments import Settings
from cdi.doctor import image
from cdi.doctor.examination import Subject, examine
from cdi.doctor.finding import LEVELS, Finding, worst
from cdi.doctor.user import asking

VERDICTS = {
    "works": "shares are enforced on this node",
    "less": "shares are enforced on this node, with less than could be",
    "fails": "shares do not work on this node",
}
MARKS = {"works": "ok", "less": "less", "fails": "FAILS"}


def doctor(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="FOLDER|NAME",
            envvar="AMD_CDI_IMAGE",
            help="Say whether shares start in this image too: the folder of a root filesystem, or "
            "an image that podman or docker has.",
        ),
    ] = "",
) -> None:
    """Say whether shares will be enforced on this node, what it lacks, and what to do.

    It exits with 0 if all is well, with 1 if shares work with something less, and with 2 if they
    do not work.
    """
    given: Settings = ctx.obj
    with image.mounted(name) as rootfs:
        found = examine(
            Subject(
                given.paths,
                tuple(given.spec_dirs),
                asking(),
                (name, rootfs) if rootfs else None,
            )
        )
    verdict = worst(found)
    if given.as_json:
        output.document({"verdict": verdict, "findings": [asdict(finding) for finding in found]})
    else:
        output.lines(line for finding in found for line in _lines(finding))
        output.lines([VERDICTS[verdict]])
    raise typer.Exit(LEVELS.index(verdict))


def _lines(finding: Finding) -> list[str]:
    parts = (("so", finding.consequence), ("do", finding.remedy))
    return [
        f"{MARKS[finding.level]}: {finding.what} ({finding.evidence})",
        *(f"    {word}: {text}" for word, text in parts if text),
    ]
