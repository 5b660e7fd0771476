"""Tables on a terminal (explorer/cli/output/fitting.py): no word is broken while a column can be left out instead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refold.explorer.cli.output.fitting import GAP, TableColumn, fitted

WORDS = st.text("abc-", min_size=1, max_size=14)
CELLS = st.lists(WORDS, max_size=5).map(" ".join)
COLUMNS = st.lists(
    st.builds(
        TableColumn, WORDS, st.sampled_from(["", "dim", "cyan", "red"]), st.booleans(), st.just(value=False),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip
RUNS = (
    TableColumn("run", "cyan"), TableColumn("agent"), TableColumn("version", "dim", drop=1),
    TableColumn("started", "dim", is_fixed=True), TableColumn("parent", "dim", drop=2), TableColumn("title"),
)  # fmt: skip
ROWS = [
    ["incident-1", "refund-desk", "1.0", "2026-11-25 23:36:29", "-", "A leaking kettle"],
    ["nightly-1", "refund-agent", "-", "2026-11-25 23:36:26", "-", "-"],
]


@given(COLUMNS, st.data(), st.integers(20, 160))
def test_table_fits_where_possible(columns: list[TableColumn], data: st.DataObject, width: int) -> None:
    rows = data.draw(st.lists(st.tuples(*(CELLS for _ in columns)), min_size=1, max_size=4))
    found = fitted(columns, rows, width)
    total = sum(found.widths.values()) + GAP * (len(found.widths) - 1)
    natural = [max(len(columns[n].header), *(len(row[n]) for row in rows)) for n in range(len(columns))]
    assert 0 in found.widths
    assert all(found.widths[n] <= natural[n] for n in found.widths)
    if sum(natural) + GAP * (len(columns) - 1) <= width:
        assert found == ({n: natural[n] for n in range(len(columns))}, [])
    # A table that is still too wide has nothing left to drop or cut.
    if total > width:
        assert not any(columns[n].style == "dim" or columns[n].drop for n in found.widths if n)
        assert all(each <= 8 or columns[n].is_fixed for n, each in found.widths.items())
    # A dropped column was not empty, and does not fit next to the shown ones.
    for n, column in enumerate(columns):
        if n not in found.widths and column.header not in found.dropped:
            assert {row[n] for row in rows} <= {"", "-"}


def test_empty_columns_are_dropped_before_optional_ones() -> None:
    assert fitted(RUNS, ROWS, 100).dropped == []
    assert [*fitted(RUNS, ROWS, 76).widths] == [0, 1, 2, 3, 5]  # no run has a parent
    narrow = fitted(RUNS, ROWS, 58)
    assert ([*narrow.widths], narrow.dropped) == ([0, 1, 3, 5], ["version"])
    assert (narrow.widths[0], narrow.widths[5]) == (len("incident-1"), 11)  # titles wrap between words


def test_name_up_to_half_a_line_is_shown_whole() -> None:
    columns = (TableColumn("entity", "bold"), TableColumn("value"))
    name = "action/nightly-1#2/crm.claims/1"
    assert fitted(columns, [[name, "x" * 200]], 80).widths == {0: len(name), 1: 80 - GAP - len(name)}


def test_values_are_truncated_before_names() -> None:
    columns = (TableColumn("entity", "bold"), TableColumn("old", "red"), TableColumn("new", "green"), TableColumn("by"))
    name = "action/nightly-1#2/crm.claims/1"
    found = fitted(columns, [[name, "x" * 24, "y" * 24, "refund-agent"]], 80)
    assert found.widths[0] == len(name)
    assert sum(found.widths.values()) + GAP * 3 == 80
