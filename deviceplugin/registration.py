"""What HAMi's scheduler knows of the node: the annotation ``hami.io/node-amd-register``.

Its keys, their order and what is left out are HAMi's: the scheduler reads it into a Go structure
whose empty fields are not written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from deviceplugin.devices import Unit

ANNOTATION = "hami.io/node-amd-register"

SEPARATORS = str.maketrans(",:;", "   ")
"""Type and id travel in lists separated by these, so neither may have one."""


def encode(units: Iterable[Unit], unhealthy: Collection[tuple[str, int]]) -> str:
    """Return the annotation of a node; ``unhealthy`` are places of units.

    What cannot be booked is left out: the scheduler takes no memory for as much as is asked for,
    and its pods would never start. Kubelet knows of it, for pods that HAMi does not schedule.
    """
    bookable = [unit for unit in units if unit.bookable]
    return json.dumps(
        [entry(unit, healthy=unit.place not in unhealthy) for unit in bookable],
        separators=(",", ":"),
        ensure_ascii=False,
    )


def entry(unit: Unit, *, healthy: bool) -> dict[str, Any]:
    """Return a unit as HAMi's scheduler reads it."""
    gpu, partition = unit.gpu, unit.partition
    return _filled(
        {
            "id": unit.id,
            "index": partition.card_minor,
            "count": unit.shares,
            "devmem": unit.memory_mib,
            "devcore": partition.cus,
            "type": gpu.product.translate(SEPARATORS),
            "numa": gpu.numa_node,
            "mode": gpu.compute_mode if unit.hard else "",
            "health": healthy,
            "devicevendor": "amd",
            "custominfo": _filled(
                {
                    "pciBDF": gpu.pci,
                    # The scheduler rounds CUs up to multiples of this, whatever it stands for.
                    "cuPerWGP": unit.atom if unit.atom > 1 else 0,
                    "computeQueues": partition.queues,
                    "xgmiPeers": list(gpu.xgmi_peers),
                    "partitionProfiles": list(gpu.compute_modes),
                }
            ),
        }
    )


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
