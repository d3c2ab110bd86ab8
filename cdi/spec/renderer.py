"""The CDI spec of a node: a pure function of the node, its shares and the options.

- Spec level: ``/dev/kfd``.
- GPUs and partitions: their render and card nodes and nothing else, so that a container can have
  several and any image works.
- Shares: the nodes, the environment that limits HIP to the share, the library, the share's values
  and the usage region as mounts, and the hook that refuses to start what is not held to it. One
  device is all that a container gets: of two, the second would overwrite the environment of the
  first.

GPUs, partitions and users' shares stand in one file, the share of each pod in one of its own: one
more costs the same however many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cdi import cumask
from cdi.errors import PermanentError
from cdi.node.gpu import Node, Partition
from cdi.plan.names import gpu_names, partition_names, spec_file
from cdi.plan.options import Options
from cdi.plan.share import Grant, Share, resolve
from cdi.spec import cdiversion
from cdi.spec.edits import ContainerEdits, Device, DeviceNode, Hook, Mount, Spec

KIND = "amd.com/gpu"

CONTAINER_DIR = "/usr/local/vgpu"
CONTAINER_LIBRARY = f"{CONTAINER_DIR}/libamvgpu.so"
CONTAINER_VALUES = f"{CONTAINER_DIR}/share.conf"
CONTAINER_USAGE = f"{CONTAINER_DIR}/usage"

HOOK_TIMEOUT_SECONDS = 10
"""The hook refuses by itself after 5 s; runtimes take a timeout of 0 literally."""

HOOK_ENV = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
"""Explicit, as a hook without an environment may inherit the container's."""


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Where the node keeps what is mounted into the containers of shares."""

    values_dir: Path
    usage_dir: Path | None
    """None where there is no filesystem of bounded size for usage regions."""

    def values(self, share: str) -> str:
        """Return the file with the values of a share."""
        return f"{self.values_dir}/{share}.conf"


@dataclass(frozen=True, slots=True)
class Held:
    """A share that is held to something, and what lies on the node that says to what."""

    name: str
    gpus: int
    values: bytes
    """Content of the values file, which libamvgpu trusts before any environment."""
    arguments: bytes
    """Content of the arguments file, for a hook that is started without a share of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A share as a device."""

    share: Share
    device: Device
    file: str
    """Name of the spec that the device stands in."""
    held: Held | None
    """None if there is nothing to hold it to, as it is all of its GPUs."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a node offers, in a stable order: GPUs, partitions, shares, ``all``."""

    gpus: tuple[Device, ...]
    offers: tuple[Offer, ...]
    every: tuple[Device, ...]
    """``all``, unless it was left out."""
    warnings: tuple[str, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices."""
        return (*self.gpus, *[offer.device for offer in self.offers], *self.every)

    @property
    def held(self) -> tuple[Held, ...]:
        """The shares that are held to something."""
        return tuple([offer.held for offer in self.offers if offer.held is not None])

    def by_file(self, main: str) -> dict[str, list[Device]]:
        """Return the devices by the spec they stand in; ``main`` is that of the GPUs."""
        files = {main: list(self.gpus)}
        for offer in self.offers:
            files.setdefault(offer.file, []).append(offer.device)
        files[main] += self.every
        return files

    def without(self, names: Collection[str]) -> Rendering:
        """Return the rendering without the devices of these names."""
        return replace(
            self,
            gpus=tuple(device for device in self.gpus if device["name"] not in names),
            offers=tuple(offer for offer in self.offers if offer.share.name not in names),
            every=tuple(device for device in self.every if device["name"] not in names),
        )


def render(
    node: Node,
    shares: Iterable[Share],
    options: Options,
    host_paths: HostPaths,
    known: Iterable[Offer] = (),
) -> Rendering:
    """Return every device of a node.

    A share that cannot be enforced on the node as it is now, or whose CUs another share has, is
    left out with a warning: a container that asks for it does not start. ``known`` has what was
    rendered before from the same node, options and paths, and need not be rendered again.
    """
    warnings = [
        f"GPU {gpu.index} ({gpu.pci}) has no name by {', '.join(options.strategies)}, "
        "so it can only be had with all others; add --device-name-strategy index"
        for gpu in node.gpus
        if not gpu_names(gpu, options.strategies)
    ]
    gpus = {gpu.pci: gpu for gpu in node.gpus}
    rendered = {offer.share.name: offer for offer in known}
    offers: list[Offer] = []
    for share in shares:
        offer = rendered.get(share.name)
        try:
            if offer is None or offer.share != share:
                offer = _offer(share, resolve(share, gpus), options, host_paths)
            offers.append(offer)
        except PermanentError as error:
            warnings.append(f"left out: {error}")
    offers, conflicts = _without_conflicts(offers)
    warnings += [f"left out: {conflict}" for conflict in conflicts]
    *gpu_devices, every = _gpu_devices(node, options)
    return Rendering(tuple(gpu_devices), tuple(offers), (every,), tuple(warnings))


def _without_conflicts(offers: Iterable[Offer]) -> tuple[list[Offer], list[str]]:
    """Return the offers that can be had beside those before them, and why the others cannot."""
    kept: list[Offer] = []
    conflicts: list[str] = []
    taken: dict[tuple[str, int], int] = {}
    for offer in offers:
        slices = offer.share.slices
        if any(taken.get(slice_.place, 0) & slice_.reserved for slice_ in slices):
            try:
                _require_turns(offer.share, [other.share for other in kept])
            except PermanentError as error:
                conflicts.append(str(error))
                continue
        for slice_ in slices:
            taken[slice_.place] = taken.get(slice_.place, 0) | slice_.reserved
        kept.append(offer)
    return kept, conflicts


def _gpu_devices(node: Node, options: Options) -> tuple[Device, ...]:
    """Return the devices of GPUs and partitions, and at last that of all of them."""
    devices: list[Device] = []
    for gpu in node.gpus:
        names = gpu_names(gpu, options.strategies)
        devices += _named(names, {"deviceNodes": _nodes(gpu.partitions)})
        for partition in gpu.partitions if gpu.partitioned else ():
            names = partition_names(gpu, partition, options.strategies)
            devices += _named(names, {"deviceNodes": _nodes([partition])})
    every = _nodes([partition for gpu in node.gpus for partition in gpu.partitions])
    return (*devices, *_named(["all"], {"deviceNodes": every}))


def _offer(share: Share, grants: Sequence[Grant], options: Options, host_paths: HostPaths) -> Offer:
    """Return the device of a share and what holds its container to it."""
    visible = _visibility(grants)
    edits: ContainerEdits = {"deviceNodes": _nodes([grant.partition for grant in grants])}
    file = spec_file(options.file, share.name)
    if all(grant.whole for grant in grants) and not share.oversubscribed:
        whole: ContainerEdits = {**edits, "env": visible}
        return Offer(share, {"name": share.name, "containerEdits": whole}, file, None)
    _require_charged(share, grants, options)
    env = [*visible, *_limits(share, grants), f"LD_AUDIT={CONTAINER_LIBRARY}"]
    if host_paths.usage_dir:
        env.append(f"HIP_DEVICE_MEMORY_SHARED_CACHE={CONTAINER_USAGE}")
    hook = _hook(share.name, grants, options, host_paths)
    held = Held(share.name, len(grants), _lines(env), _lines(hook["args"][1:]))
    edits |= {"env": env, "mounts": _mounts(share.name, options, host_paths), "hooks": [hook]}
    return Offer(share, {"name": share.name, "containerEdits": edits}, file, held)


def assemble(devices: Sequence[Device]) -> Spec:
    """Return the spec of these devices, declared with the lowest version that fits."""
    spec: Spec = {
        "cdiVersion": "",
        "kind": KIND,
        "containerEdits": {"deviceNodes": [{"path": "/dev/kfd", "permissions": "rw"}]},
        "devices": list(devices),
    }
    spec["cdiVersion"] = cdiversion.needed(spec)[0]
    return spec


def _named(names: Iterable[str], edits: ContainerEdits) -> list[Device]:
    return [{"name": name, "containerEdits": edits} for name in names]


def _nodes(partitions: Iterable[Partition]) -> list[DeviceNode]:
    """Return the DRM nodes of partitions.

    Path and permissions only: the runtime looks up the rest when a container starts, and what was
    looked up earlier may be stale.
    """
    paths = []
    for partition in partitions:
        if partition.card_minor is not None:
            paths.append(f"/dev/dri/card{partition.card_minor}")
        paths.append(f"/dev/dri/renderD{partition.render_minor}")
    return [{"path": path, "permissions": "rw"} for path in paths]


def _require_charged(share: Share, grants: Sequence[Grant], options: Options) -> None:
    """Raise PermanentError if dmem alone is to hold memory that it does not charge."""
    for grant in grants if options.require == "dmem" else ():
        if grant.partition.memory_kind == "shared":
            raise PermanentError(
                f"share {share.name!r}: dmem was expected to hold the memory of GPU "
                f"{grant.gpu.pci}, and that is shared with the host, which dmem does not charge",
                "let the library hold shares, with --require any",
            )


def _require_turns(share: Share, others: Sequence[Share]) -> None:
    """Raise PermanentError if another has CUs of a share at the same time."""
    for slice_ in share.slices:
        for other in others:
            for theirs in other.slices:
                common = theirs.reserved & slice_.reserved
                if theirs.place == slice_.place and common and not share.takes_turns_with(other):
                    raise PermanentError(
                        f"share {share.name!r}: CU {cumask.format_cus(common)} of GPU "
                        f"{slice_.pci} belongs to share {other.name!r} as well",
                        "remove one of the two",
                    )


def rocr_tokens(grants: Sequence[Grant]) -> list[str]:
    """Return what ROCR_VISIBLE_DEVICES names the GPUs of a share by, in the share's order.

    A whole GPU goes by its ROCr id. Partitions share that of their GPU and some parts have none:
    they go by index, counted in the order of the KFD nodes that the container can open.
    """
    order = sorted(grant.partition.kfd_node for grant in grants)
    return [grant.gpu.rocr_id or str(order.index(grant.partition.kfd_node)) for grant in grants]


def _visibility(grants: Sequence[Grant]) -> list[str]:
    return [
        f"ROCR_VISIBLE_DEVICES={','.join(rocr_tokens(grants))}",
        f"HIP_VISIBLE_DEVICES={','.join(str(index) for index in range(len(grants)))}",
    ]


def _limits(share: Share, grants: Sequence[Grant]) -> list[str]:
    """Return the environment that holds HIP to a share; ROCr's index i is the i-th grant."""
    return [
        f"HSA_CU_MASK={cumask.format_mask([grant.mask_cus for grant in grants])}",
        *(f"HIP_DEVICE_MEMORY_LIMIT_{index}={grant.memory}" for index, grant in enumerate(grants)),
        *(["HIP_OVERSUBSCRIBE=1"] if share.oversubscribed else []),
    ]


def _lines(words: Iterable[str]) -> bytes:
    return "".join(f"{word}\n" for word in words).encode()


def _mounts(name: str, options: Options, host_paths: HostPaths) -> list[Mount]:
    """Return the library, the values and the usage region of a share."""
    mounts = [
        _mount(options.library_path, CONTAINER_LIBRARY, "ro"),
        _mount(host_paths.values(name), CONTAINER_VALUES, "ro", "noexec"),
    ]
    if host_paths.usage_dir:
        mounts.append(_mount(f"{host_paths.usage_dir}/{name}", CONTAINER_USAGE, "rw", "noexec"))
    return mounts


def _mount(host_path: str, container_path: str, *access: str) -> Mount:
    """Return a bind mount of a file.

    Whoever has no root on the host may not take away what the file's own mount forbids, such as
    noexec where usage regions lie: so all is forbidden that is not needed.
    """
    return {
        "hostPath": host_path,
        "containerPath": container_path,
        "options": [*access, "nosuid", "nodev", "bind"],
    }


def _hook(name: str, grants: Sequence[Grant], options: Options, host_paths: HostPaths) -> Hook:
    args = [Path(options.hook_path).name, "run", "--share", name, "--require", options.require]
    if options.allow_extra_devices:
        args.append("--allow-extra-devices")
    args += ["--library", options.library_path, "--values", host_paths.values(name)]
    for index, (grant, token) in enumerate(zip(grants, rocr_tokens(grants), strict=True)):
        partition = grant.partition
        fields = [
            f"pci={grant.gpu.pci}",
            f"index={index}",
            f"rocr={token}",
            f"cus={cumask.format_cus(grant.mask_cus).replace(',', '+')}",
            f"count={partition.cus}",
            f"atom={grant.atom}",
            f"bytes={grant.memory}",
            f"render={partition.render_minor}",
        ]
        if partition.card_minor is not None:
            fields.append(f"card={partition.card_minor}")
        if partition.memory_kind != "VRAM":
            fields.append(f"memory={partition.memory_kind}")
        args += ["--gpu", ",".join(fields)]
    return {
        "hookName": options.hook_stage,
        "path": options.hook_path,
        "args": args,
        "env": list(HOOK_ENV),
        "timeout": HOOK_TIMEOUT_SECONDS,
    }
