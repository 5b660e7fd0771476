"""`refold why`: the observations that a value comes from."""

from __future__ import annotations

from collections.abc import Iterator

import click

from refold.agents.journal.matching import compared_requests_in, matchings
from refold.agents.log import AgentLog
from refold.avro.observation import type_of
from refold.explorer.cli.options import WHEN_OF_ENTITY, as_json, at, clock, on_log
from refold.explorer.cli.output.formatting import ValueFormatter
from refold.explorer.cli.output.screen import ObservedText, Screen, counted, moment, observed_texts
from refold.explorer.queries.entity import FieldReference, field_of, opened_chain_json
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.sealed import Opener
from refold.explorer.queries.shapes import patch_of
from refold.streams.view import EntityView, TraceLink


@click.command(epilog=WHEN_OF_ENTITY)
@click.argument("value", metavar="TYPE/ID.FIELD[.KEY]")
@click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Follow at most N causes back [all of them].")
@at
@clock
@as_json
@on_log
def why(target: LogTarget, value: str, depth: int | None, at: str | None, clock: str, as_json: bool) -> int:
    """Trace a value to the observations that led to it.

    From these observations it follows the causes back to the first ones. KEY is a key of a map field. An id may contain
    dots: if several readings of the argument name an entity that exists, the one with the longest id is used.

    \b
    Examples
      refold why tool_config/acme.rate_limit
      refold why document/user-mia.fields.email --at @deploy-1
      refold why evaluation/8f2c.score --depth 1 --json
    """
    screen = Screen()
    with target.read() as log:
        point, view, reference = field_of(log, value, at, clock)
        whole = view.why(reference.field, reference.key)
        chain = [link for link in whole if depth is None or link.depth <= depth]
        if as_json:
            screen.json(opened_chain_json(log, chain, point.cut))
            return 0
        screen.point(point)
        sources = (link.observation.source for link in chain if link.observation is not None)
        _show(screen, log, view, reference, chain, observed_texts(log, sources, point.cut))
        if len(whole) > len(chain):
            screen.say(f"and {counted(len(whole) - len(chain), 'observation')} further back")
    return 0


def _show(
    screen: Screen,
    log: AgentLog,
    view: EntityView,
    reference: FieldReference,
    chain: list[TraceLink],
    observed: ObservedText,
) -> None:
    formatter = ValueFormatter(log.types, Opener(log).value)
    value = view.shown()[reference.field]
    if reference.key is None:
        shown, name = formatter.field(reference.entity, reference.field, value), reference.field
    else:
        shown, name = (
            formatter.element(reference.entity, reference.field, value[reference.key]),
            f"{reference.field}.{reference.key}",
        )
    screen.say(f"{reference.entity} v{view.version}", "bold")
    screen.say(f"{name} = {screen.cell(shown)}", "bold")
    for link in chain:
        screen.say()
        for line in chain_lines(screen, log, formatter, link, observed):
            screen.say("  " * min(link.depth, 12) + line)
    screen.say()
    screen.say(f"{counted(len(chain), 'observation')}, {counted(max(link.depth for link in chain), 'step')} back")


def chain_lines(
    screen: Screen, log: AgentLog, formatter: ValueFormatter, link: TraceLink, observed: ObservedText, *,
    only: str | None = None,
) -> Iterator[str]:  # fmt: skip
    """Yield the lines for one observation of a chain: its entity, fields, position and source.

    Args:
        screen: The output.
        log: The log of the observation.
        humane: Formats the values.
        link: The observation.
        observed: Formats the time of observation.
        only: Show only this field; empty: no field; None: all fields.
    """
    lead = "because of " if link.depth else ""
    if link.observation is None or link.position is None or link.recorded_at is None:
        yield f"{lead}{link.observation_id}, which is not in this log before the point"
        return
    observation, source = link.observation, link.observation.source
    yield f"{lead}{observation.entity}  observation {link.observation_id}"
    parts = [("run", source.run), ("step", source.step), ("tool", source.tool)]
    by = " ".join([source.agent or "-", *(f"{name} {given}" for name, given in parts if given), f"seq {source.seq}"])
    yield (
        f"  at {link.position}  observed {observed(observation.observed_at, source)}  "
        f"recorded {moment(link.recorded_at * 1000)}  by {by}"
    )
    for name, given in patch_of(observation, log.port.registry).items():
        if only not in (None, name):
            continue
        yield f"  {name} = {screen.cell(formatter.field(observation.entity, name, given))}"
        if (type_of(observation.entity), name) == ("step", "journal"):
            opened = Opener(log).value(observation.entity, name, given)
            yield from (f"    {each}" for each in matchings(compared_requests_in(opened)))
    if observation.link is not None:
        yield f"  {observation.kind} {observation.link.relation} {observation.link.target}"
    yield from (f"  cleared {name}" for name in observation.cleared)
    yield from (f"  retracts {each.hex()}" for each in observation.retracts)
