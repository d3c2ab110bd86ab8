"""The platform devices that carry the DRM nodes of a GPU's further partitions."""

from __future__ import annotations

from cdi.node import drm, sysfs


def minors(platform: str, warnings: list[str]) -> dict[int, int | None]:
    """Return the card minor by render minor of the partitions' platform devices.

    There are more of them than live partitions; those that no KFD node names are not in use.
    """
    found: dict[int, int | None] = {}
    try:
        names = sysfs.listing(platform) or ()
    except sysfs.FileError as error:
        warnings.append(f"partitions may be missing: {error}")
        return found
    for name in sorted(names):
        # Both spellings: amdgpu_xcp_7 and amdgpu_xcp.7.
        if name.startswith(("amdgpu_xcp_", "amdgpu_xcp.")) and sysfs.is_decimal(name[11:]):
            try:
                card, render = drm.minors(f"{platform}/{name}/drm")
            except sysfs.FileError as error:
                warnings.append(f"the partition {name[:40]} is left out: {error}")
            else:
                if render is not None:
                    found[render] = card
    return found
