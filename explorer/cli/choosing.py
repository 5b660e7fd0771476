"""Which dead letters a command is about: by position, or by reason, type and point."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import Command
from refold.streams.client import Log
from refold.streams.deadletters import Letter, letters
from refold.streams.log.port import Position
from refold.streams.verdicts import REASONS

POSITION = re.compile(r"(\d{1,5})=(\d{1,18})\Z", re.ASCII)
NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was given. No reasons or no type: any."""

    reasons: tuple[str, ...]
    type_name: str | None
    since: str | None
    until: str | None

    @property
    def is_limited(self) -> bool:
        """Whether anything was given."""
        return bool(self.reasons or self.type_name or self.since or self.until)

    def among(self, log: Log) -> Iterator[Letter]:
        """The log's dead letters that these are."""
        first = {} if self.since is None else log.point(self.since).cut.offsets
        last = None if self.until is None else log.point(self.until).cut.offsets
        return (
            each
            for each in letters(log.port)
            if (not self.reasons or each.verdict.reason in self.reasons)
            and self.type_name in (None, each.type_name)
            and each.verdict.offset >= first.get(each.verdict.partition, 0)
            and (last is None or each.verdict.offset < last.get(each.verdict.partition, 0))
        )


def chosen_by(command: Command) -> Command:
    """--reason, --type, --since and --until, as `reasons`, `type_name`, `since` and `until`."""
    for option in (
        click.option("--until", metavar="WHEN", help="Only those recorded up to this point."),
        click.option("--since", metavar="WHEN", help="Only those recorded after this point."),
        click.option("--type", "type_name", metavar="TYPE", help="Only those of a type, as far as that can be told."),
        click.option("--reason", "reasons", type=click.Choice(REASONS), multiple=True,
                     help="Only those with this reason; may be repeated."),
    ):  # fmt: skip
        command = option(command)
    return command


def positions_of(given: Sequence[str]) -> list[Position]:
    """The positions behind PARTITION=OFFSET."""
    found = [(each, POSITION.match(each)) for each in given]
    for text, match in found:
        if match is None:
            raise InputError(
                f"{text!r:.80}: a dead letter is named by its record's PARTITION=OFFSET, as `refold deadletters list` "
                "shows it"
            )
    return [Position(int(match[1]), int(match[2])) for _, match in found if match is not None]


def at_positions(log: Log, positions: Sequence[Position]) -> list[Letter]:
    """The dead letters on these records, in this order; InputError where a record has none."""
    there = {each.position: each for each in letters(log.port) if each.position in positions}
    missing = [each for each in dict.fromkeys(positions) if each not in there]
    if missing:
        named = ", ".join(map(str, islice(missing, NAMED_MAX))) + (", ..." if len(missing) > NAMED_MAX else "")
        raise InputError(f"{named}: there is no dead letter on it; `refold deadletters list` shows those there are")
    return [there[each] for each in dict.fromkeys(positions)]
