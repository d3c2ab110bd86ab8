"""The planner: what fits is placed apart and tightly, what does not is refused with reasons."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdi.cumask import runs, span
from cdi.errors import PermanentError
from cdi.node.gpu import Gpu, Node
from cdi.plan import planner
from cdi.plan.amount import ALL, MIB, Amount
from cdi.plan.planner import Want
from cdi.plan.share import Share
from tests.unit.nodes import GIB, MI300X, RADEON, cpx, gpu, node, partition, radeon, share, slice_of


def want(of: Gpu, cus: Amount = ALL, memory: Amount = ALL, index: int = 0) -> Want:
    return Want(of, of.partitions[index], cus, memory)


def percent(value: int) -> Amount:
    return Amount(value, percent=True)


def number(value: int) -> Amount:
    return Amount(value, percent=False)


def small(cus: int, atom: int, vram: int = 1000 * MIB) -> Gpu:
    """Return a CDNA GPU whose atom is its number of XCCs."""
    return gpu(partitions=(partition(cus=cus, xccs=atom, memory_bytes=vram),))


def placed(cus: Amount, *living: Share, of: Gpu | None = None) -> int:
    """Return where a want of CUs goes, with next to no memory."""
    return planner.plan("share-x", [want(of or gpu(), cus, number(1))], living).slices[0].cus


# How much


@pytest.mark.parametrize(
    ("of", "cus", "bits"),
    [
        (gpu(), percent(25), span(0, 72)),  # 76 of 304, in atoms of 8
        (gpu(), percent(50), span(0, 152)),
        (gpu(), percent(99), span(0, 296)),  # 300
        (gpu(), percent(1), span(0, 8)),  # 3: less than an atom is one
        (gpu(), number(1), span(0, 8)),
        (gpu(), number(15), span(0, 8)),
        (gpu(), number(16), span(0, 16)),
        (gpu(), number(304), span(0, 304)),
        (radeon(), percent(25), span(0, 24)),
        (radeon(), number(7), span(0, 6)),
        (small(9, 2), number(9), span(0, 8)),  # the ninth CU fills no atom
    ],
)
def test_a_share_is_rounded_down_to_whole_atoms(of: Gpu, cus: Amount, bits: int) -> None:
    assert placed(cus, of=of) == bits


def test_all_of_a_free_gpu_is_all_of_it() -> None:
    """Nothing masks a whole GPU, so the rest that fills no atom is granted as well."""
    (slice_,) = planner.plan("share-x", [want(small(9, 2))], ()).slices
    assert (slice_.cus, slice_.memory) == (span(0, 9), 1000 * MIB)


@pytest.mark.parametrize(
    ("memory", "granted"),
    [
        (number(1), 1),
        (number(48 * GIB), 48 * GIB),
        (percent(25), 48 * GIB),
        (percent(33), 64880 * MIB),  # 64880.64 MiB of 196608
        (percent(100), 192 * GIB),
    ],
)
def test_memory(memory: Amount, granted: int) -> None:
    (slice_,) = planner.plan("share-x", [want(gpu(), percent(50), memory)], ()).slices
    assert slice_.memory == granted


# Where


def test_the_smallest_run_that_fits_is_taken_from_its_low_end() -> None:
    taken = share("a", slice_of(gpu(), span(40, 8) | span(64, 8) | span(96, 8), 1))
    # Free: 0-39, 48-63, 72-95, 104-303.
    assert placed(number(8), taken) == span(48, 8)
    assert placed(number(24), taken) == span(72, 24)
    assert placed(number(32), taken) == span(0, 32)
    assert placed(number(48), taken) == span(104, 48)


def test_of_equal_runs_the_first_is_taken() -> None:
    taken = share("a", slice_of(gpu(), span(8, 8) | span(24, 280), 1))
    assert placed(number(8), taken) == span(0, 8)


def test_it_is_split_only_where_nothing_fits() -> None:
    taken = share("a", slice_of(gpu(), span(40, 8) | span(64, 8) | span(96, 208), 1))
    # Free: 0-39, 48-63, 72-95: the largest whole, and of the rest the run that fits best.
    assert placed(number(48), taken) == span(0, 40) | span(48, 8)
    assert placed(number(64), taken) == span(0, 40) | span(72, 24)


def test_partitions_are_places_of_their_own() -> None:
    living = share("a", slice_of(cpx(), span(0, 38), 24 * GIB, index=3))
    for index in range(8):
        wants = [want(cpx(), number(38), number(24 * GIB), index)]
        if index == 3:
            with pytest.raises(PermanentError, match="GPU 0:3"):
                planner.plan("share-x", wants, [living])
        else:
            (slice_,) = planner.plan("share-x", wants, [living]).slices
            assert (slice_.partition, slice_.cus) == (index, span(0, 38))


def test_several_gpus_keep_their_order() -> None:
    wants = [want(radeon(), number(4), number(GIB)), want(gpu(), number(8), number(GIB))]
    slices = planner.plan("share-x", wants, ()).slices
    assert [(each.pci, each.cus) for each in slices] == [
        (RADEON, span(0, 4)),
        (MI300X, span(0, 8)),
    ]


# What does not fit


def test_what_is_free_is_said() -> None:
    living = share("a", slice_of(gpu(), span(0, 296), 191 * GIB))
    with pytest.raises(PermanentError, match=r"16 CUs were asked for, and 8 of 304 .*\(296-303\)"):
        planner.plan("share-x", [want(gpu(), number(16), number(1))], [living])
    with pytest.raises(PermanentError, match=r"2048 MiB of memory .*, and 1024 MiB of 196608 MiB"):
        planner.plan("share-x", [want(gpu(), number(8), number(2 * GIB))], [living])


def test_orphaned_cus_are_not_free() -> None:
    """A share that was planned otherwise may leave parts of atoms."""
    living = share("a", slice_of(gpu(), span(0, 300), 1))
    with pytest.raises(PermanentError, match="0 of 304 are free in whole atoms of 8"):
        planner.plan("share-x", [want(gpu(), number(1), number(1))], [living])


@pytest.mark.parametrize("scale", [0.99, 0, -1, 1000.1, float("nan"), float("inf")])
def test_a_scale_is_a_number_from_one(scale: float) -> None:
    with pytest.raises(PermanentError, match="memory scale"):
        planner.plan("share-x", [want(gpu())], (), scale)


def test_a_scale_books_more_than_there_is() -> None:
    half = share("a", slice_of(gpu(), span(0, 8), 150 * GIB))
    wants = [want(gpu(), number(8), number(100 * GIB))]
    with pytest.raises(PermanentError, match="43008 MiB of 196608 MiB is free"):
        planner.plan("share-x", wants, [half])
    made = planner.plan("share-x", wants, [half], 1.5)
    assert made.oversubscribed
    with pytest.raises(PermanentError, match="is free"):
        planner.plan("share-y", wants, [half, made], 1.5)


def test_nothing_and_the_same_twice_are_errors() -> None:
    with pytest.raises(PermanentError, match="at least one GPU"):
        planner.plan("share-x", [], ())
    with pytest.raises(PermanentError, match="more than once"):
        planner.plan("share-x", [want(gpu()), want(gpu())], ())


# Names


@pytest.mark.parametrize(
    ("name", "pci"),
    [
        ("0", MI300X),
        ("1", RADEON),
        (MI300X, MI300X),
        (RADEON.upper(), RADEON),
        ("8eff74a1-0000-1000-801b-b56457addd1b", MI300X),
        ("8EFF74A1-0000-1000-801B-B56457ADDD1B", MI300X),
        ("GPU-8e1bb56457addd1b", MI300X),
    ],
)
def test_a_gpu_has_several_names(name: str, pci: str) -> None:
    assert planner.find(node(), name)[0].pci == pci


@pytest.mark.parametrize("name", ["", "2", "0:0", "GPU-", " 0", "all"])
def test_what_is_no_name_of_a_gpu(name: str) -> None:
    with pytest.raises(PermanentError, match="no GPU"):
        planner.find(node(), name)


def test_a_partition_is_named_with_its_gpu() -> None:
    for name in ("0:5", f"{MI300X}:5", "8eff74a1-0000-1000-801b-b56457addd1b:5"):
        assert planner.find(Node((cpx(),)), name)[1].index == 5
    with pytest.raises(PermanentError, match="is partitioned"):
        planner.find(Node((cpx(),)), "0")


# Splits


def test_equal_shares_of_every_gpu() -> None:
    shares = planner.split(node(), 3, ("index",), ())
    assert [(each.name, each.slices[0].cus, each.slices[0].memory) for each in shares] == [
        # 38 atoms of 8 in three are 12 each; 48 of 2 are 16.
        ("0-1of3", span(0, 96), 64 * GIB),
        ("0-2of3", span(96, 96), 64 * GIB),
        ("0-3of3", span(192, 96), 64 * GIB),
        ("1-1of3", span(0, 32), 8 * GIB),
        ("1-2of3", span(32, 32), 8 * GIB),
        ("1-3of3", span(64, 32), 8 * GIB),
    ]


def test_no_equal_shares_where_a_share_lives() -> None:
    living = share("a", slice_of(gpu(), span(0, 8), GIB))
    assert [each.name for each in planner.split(node(), 2, ("index",), [living])] == [
        "1-1of2",
        "1-2of2",
    ]


def test_one_share_of_all_is_the_whole_gpu() -> None:
    (whole,) = planner.split(Node((small(9, 2),)), 1, ("index",), ())
    assert (whole.slices[0].cus, whole.slices[0].memory) == (span(0, 9), 1000 * MIB)


def test_a_split_finer_than_the_atoms_is_refused() -> None:
    assert len(planner.split(Node((gpu(),)), 38, ("index",), ())) == 38
    with pytest.raises(PermanentError, match="38 atoms of 8; split into 38 or fewer"):
        planner.split(Node((gpu(),)), 39, ("index",), ())


def test_no_split_is_none() -> None:
    assert planner.split(node(), 0, ("index",), ()) == ()


# Properties


@given(
    free=st.sets(st.integers(0, 10), min_size=1),
    data=st.data(),
)
def test_a_choice_has_the_fewest_pieces_there_are(free: set[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(free)))
    chosen = planner.choose(sum(1 << cu for cu in free), size)
    members = {cu for cu in range(11) if chosen >> cu & 1}
    assert members <= free
    assert len(members) == size
    fewest = min(pieces(set(subset)) for subset in combinations(sorted(free), size))
    assert pieces(members) == fewest
    if fewest == 1:
        lengths = [length for _, length in stretches(free) if length >= size]
        assert any(
            first == min(members) and length == min(lengths) for first, length in stretches(free)
        )


def stretches(cus: set[int]) -> list[tuple[int, int]]:
    """Return first and length of what follows each other in a set."""
    found: list[tuple[int, int]] = []
    for cu in sorted(cus):
        if found and sum(found[-1]) == cu:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((cu, 1))
    return found


def pieces(cus: set[int]) -> int:
    return len(stretches(cus))


AMOUNTS = st.one_of(st.builds(percent, st.integers(1, 100)), st.builds(number, st.integers(1, 40)))
MEMORY = st.one_of(
    st.builds(percent, st.integers(1, 100)), st.builds(number, st.integers(1, 1000 * MIB))
)


@settings(deadline=None)
@given(
    cus=st.integers(8, 40),
    atom=st.sampled_from([1, 2, 4, 8]),
    requests=st.lists(st.tuples(AMOUNTS, MEMORY, st.booleans()), max_size=25),
)
def test_shares_that_come_and_go_are_held_to_the_rules(
    cus: int, atom: int, requests: list[tuple[Amount, Amount, bool]]
) -> None:
    of = small(cus, atom)
    living: list[Share] = []
    for turn, (wanted, memory, one_goes) in enumerate(requests):
        if one_goes and living:
            living.pop(turn % len(living))
        wants = [want(of, wanted, memory)]
        try:
            made = planner.plan(f"share-{turn}", wants, living)
        except PermanentError:
            assert not fits(of, wanted, memory, living)
            continue
        assert made == planner.plan(f"share-{turn}", wants, living)
        assert planner.matches(made, wants)
        living.append(made)
        (slice_,) = made.slices
        asked = wanted.value if not wanted.percent else cus * wanted.value // 100
        assert slice_.cus.bit_count() <= max(asked, atom)
        if slice_.cus != span(0, cus):
            assert all(first % atom == 0 and count % atom == 0 for first, count in runs(slice_.cus))
        taken = [each.slices[0] for each in living]
        assert sum(each.cus.bit_count() for each in taken) == combined(living).bit_count()
        assert combined(living) < 1 << cus
        assert sum(each.memory for each in taken) <= 1000 * MIB


def fits(of: Gpu, wanted: Amount, memory: Amount, living: list[Share]) -> bool:
    """Say whether there is room, by counting atoms and bytes."""
    (part,) = of.partitions
    size = wanted.value if not wanted.percent else part.cus * wanted.value // 100
    if size > part.cus:
        return False
    free = [
        first
        for first in range(0, part.cus - part.atom + 1, part.atom)
        if not combined(living) & span(first, part.atom)
    ]
    rest = 1000 * MIB - sum(each.slices[0].memory for each in living)
    asked = memory.value if not memory.percent else 10 * memory.value * MIB
    return asked <= rest and max(1, size // part.atom) <= len(free)


def combined(living: list[Share]) -> int:
    found = 0
    for each in living:
        found |= each.slices[0].cus
    return found


@given(parts=st.integers(1, 40), cus=st.integers(8, 40), atom=st.sampled_from([1, 2, 4, 8]))
def test_equal_shares_are_equal_and_apart(parts: int, cus: int, atom: int) -> None:
    try:
        shares = planner.split(Node((small(cus, atom),)), parts, ("index",), ())
    except PermanentError:
        assert cus // atom < parts
        return
    assert len(shares) == parts
    assert len({each.slices[0].cus.bit_count() for each in shares}) == 1
    assert combined(list(shares)).bit_count() == sum(
        each.slices[0].cus.bit_count() for each in shares
    )
    assert sum(each.slices[0].memory for each in shares) <= 1000 * MIB
