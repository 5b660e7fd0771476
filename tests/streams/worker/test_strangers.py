"""Requests from untrusted clients have the documented form, or are refused before anything is done."""

from __future__ import annotations

from typing import Any, cast

import cbor2
import pytest

from refold.avro.errors import InputError
from refold.streams.log.kafka.lookups import parse_lookup
from refold.streams.worker.operations import Operations


class Log:
    """A log of four partitions; any other request to the service would fail the test."""

    partitions = 4


class Service:
    log = Log()


def operations() -> Operations:
    return Operations(cast(Any, Service()), cast(Any, None))


NO_NUMBERS: list[Any] = [2**63, 2**64, -1, 1.5, float("inf"), "1", True, [], {}]

NO_EPOCHS: list[Any] = [[[9, 1, 1]], [[]], [[0, 1]], [0], 7, None]
NO_OFFSETS: list[Any] = [[], 7, None, "x"]
NO_FLAGS: list[Any] = [1, "false", None, []]
NO_KINDS: list[Any] = [None, -1, 2**64, 1.5, True, "x" * 2_000, b"x" * 5_000, [1], {}]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *[("snapshot", {"pinned_at": each}) for each in NO_NUMBERS],
        *[("pin", {"epochs": [[0, 1, 1]], "pinned_at": each}) for each in NO_NUMBERS],
        *[("pin", {"epochs": [[0, each, 1]], "pinned_at": 1}) for each in NO_NUMBERS],
        *[("flush", {"offsets": {"0": each}, "schemas": 1}) for each in NO_NUMBERS],
        *[("flush", {"offsets": {"0": 1}, "schemas": each}) for each in NO_NUMBERS],
        *[("flush", {"offsets": {each: 1}, "schemas": 1}) for each in ("4", "-1", "x", "٣", "1_0", "9" * 5_000, "")],
        *[("flush", {"offsets": each, "schemas": 1}) for each in NO_OFFSETS],
        *[("pin", {"epochs": each, "pinned_at": 1}) for each in NO_EPOCHS],
        *[("collect", {"dry_run": each, "damaged": False}) for each in NO_FLAGS],
        *[("recover", {"wait": each}) for each in NO_FLAGS],
        ("flush", {}), ("pin", {}), ("unpin", {"epochs": 1}),
    ],
)  # fmt: skip
def test_malformed_operation_is_refused(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"docs/OPERATIONS\.md") as caught:
        operations().do(name, given)
    assert len(str(caught.value)) < 300


LOOKUPS: list[list[Any]] = [
    ["arrivals", 0, "document/a", 0, 5], ["records", 0, "document/a", [b"q"]], ["checkpoint", 0, "document/a", 5, 1],
    ["places", b"\0" * 32], ["rows", 0, b""], ["totals", 0],
]  # fmt: skip


@pytest.mark.parametrize("question", LOOKUPS, ids=lambda each: each[0])
def test_lookup_format(question: list[Any]) -> None:
    assert parse_lookup(cbor2.dumps(question)) == (question[0], question[1:])
    wrong: list[Any] = [question[:-1], [*question, 1], question[0], [question]]
    wrong += [[*question[:at], each, *question[at + 1 :]] for at in range(len(question))
              for each in NO_KINDS]  # fmt: skip
    for each in wrong:
        with pytest.raises(InputError) as caught:
            parse_lookup(cbor2.dumps(each))
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("content", [b"", b"\xff", b"\x81" * 100_000, b"\x80", b"\x01", b"\xd8\x1c\x81\xd8\x1d\x00"])
def test_invalid_lookup_is_refused(content: bytes) -> None:
    with pytest.raises(InputError):
        parse_lookup(content)
