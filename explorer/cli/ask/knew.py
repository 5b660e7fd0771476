"""`refold knew`: what an agent had read up to a moment, compared with what the log held then."""

from __future__ import annotations

import click

from refold.agents.journal.difference import shown_apart
from refold.agents.knew import Knowledge, KnownEntity
from refold.explorer.cli.options import WHEN, as_json, on_log
from refold.explorer.cli.options import at as at_option
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.formatting import ValueFormatter
from refold.explorer.cli.output.screen import Screen, counted, moment
from refold.explorer.cli.runs.lines import Lines
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run import knowledge_json

READS = (
    TableColumn("read", "dim", is_fixed=True),
    TableColumn("run", "dim"),
    TableColumn("step", is_fixed=True),
    TableColumn("entity", "bold"),
    TableColumn("version", is_fixed=True),
    TableColumn("held", is_fixed=True),
    TableColumn("stale", "yellow"),
    TableColumn("state", "dim", is_fixed=True),
)


@click.command("knew", epilog=WHEN)
@click.argument("agent", metavar="AGENT")
@at_option
@click.option("--run", "run_id", metavar="RUN", help="Only what it knew in this run.")
@click.option("--step", type=click.IntRange(1), metavar="N", help="Only in this step of the run.")
@click.option("--all", "is_all", is_flag=True, help="List every read and answer, not only the latest.")
@as_json
@on_log
def knew_(
    target: LogTarget, agent: str, at: str | None, run_id: str | None, step: int | None, is_all: bool, as_json: bool
) -> int:
    """Show what an agent knew at a moment, and what the log held.

    An agent knew the entities that it had read, and the answers of tools and models. A time is one on the agent's own
    clock: it selects what the agent knew by then, whenever that was recorded. Each entity is shown as it was read,
    rebuilt from the log and checked against the recorded hash. Then follow the fields whose value in the log was
    another. A read is stale if the log had a newer version of the entity, either when it was read or by the given
    moment. If a question was asked several times, the last answer is shown.

    \b
    Examples
      refold knew refund-agent --at 2026-11-21T03:12:00Z
      refold knew refund-agent --at run:8f2c#3 --run 8f2c
      refold knew refund-agent --all --json
    """
    screen = Screen()
    with target.read() as log:
        found = log.knew(agent, at, run=run_id, step=step, every=is_all)
        if as_json:
            screen.json(knowledge_json(agent, found))
        else:
            _show(screen, ValueFormatter(log.types), found)
    return 0


def _show(screen: Screen, formatter: ValueFormatter, found: Knowledge) -> None:
    screen.point(found.point)
    screen.say()
    screen.table(READS, [_row(screen, each) for each in found.reads])
    for each in found.reads:
        screen.say()
        screen.say(f"{each.read.entity} v{each.known.version}, as step {each.read.step} read it", "bold")
        for name, value in each.known.shown().items():
            screen.say(f"  {name} = {screen.cell(formatter.field(each.read.entity, name, value))}")
        for differing in each.differing:
            known, held = shown_apart(differing.left, differing.right)
            screen.say(f"  but {differing.path} was {held} in the log, and not {known}", "yellow")
    lines = Lines()
    for answered in found.answers:
        screen.say()
        at = f"{moment(answered.at)}  run {answered.run}, step {answered.step}"
        screen.say(f"{answered.call.asked.kind} {lines.request(answered.call)}", "bold")
        screen.say(f"  -> {lines.answer(answered.call)}")
        screen.say(f"  {at}", "dim")
    screen.say()
    for missing in found.unread:
        screen.say(f"step {missing.step} of run {missing.run}: {missing.why}", "yellow")
    stale = sum(each.is_stale for each in found.reads)
    read = f"{counted(len(found.reads), 'read')}, {stale:,} stale" if found.reads else "it had read nothing by then"
    screen.say(f"{read}; {counted(len(found.answers), 'answer')} of tools, models and runs within")


def _row(screen: Screen, each: KnownEntity) -> list[str]:
    stale = []
    if each.newer_then:
        stale.append(f"{each.newer_then} newer when read")
    if each.newer_by:
        stale.append(f"{each.newer_by} newer by then")
    return [
        moment(each.read.at), each.read.run, str(each.read.step), each.read.entity, f"v{each.known.version}",
        "-" if each.held is None else f"v{each.held.version}", ", ".join(stale) or "-",
        screen.id(each.read.state_hash),
    ]  # fmt: skip
