"""Random datums of any schema, in the form that Avro's writers accept."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from refold.avro.nodes import BUILT_IN, Node, branches, id_of


def datums(node: Node) -> st.SearchStrategy[Any]:
    """Return a strategy for datums of a schema. In a union of several records a datum is (name, record)."""
    choices = branches(node)
    named = any(id_of(choice) in BUILT_IN for choice in choices) and isinstance(node, list)
    return st.one_of([_datum(choice, named=named) for choice in choices])


def _datum(node: dict[str, Any], *, named: bool) -> st.SearchStrategy[Any]:
    kind = node["type"]
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(allow_nan=False, width=32),
        "double": st.floats(allow_nan=False),
        "string": st.text(max_size=8),
        "bytes": st.binary(max_size=8),
    }
    if kind in simple:
        return simple[kind]
    if kind == "enum":
        return st.sampled_from(node["symbols"])
    if kind == "fixed":
        return st.binary(min_size=node["size"], max_size=node["size"])
    if kind == "array":
        return st.lists(datums(node["items"]), max_size=3)
    if kind == "map":
        return st.dictionaries(st.text(max_size=4), datums(node["values"]), max_size=3)
    record = st.fixed_dictionaries({field["name"]: datums(field["type"]) for field in node["fields"]})
    return record.map(lambda value: (node["name"], value)) if named else record
