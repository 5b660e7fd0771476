"""Options that commands share: the log, the types, JSON output, and points in time."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import click

from refold.explorer.queries.log_target import LogTarget
from refold.streams.defaults import CLOCKS, OWNER_TIMEOUT_S

_FORMS = """\b
WHEN is one of
  2026-11-21T03:12:00Z   a time, RFC 3339 with its zone
  @deploy-1              a marker
  cut:TEXT               a cut, as every answer about the past prints it
  offset:0=41,1=17       next offsets; a partition left out is at its start
{version}\
  run:ID#STEP            after a step of a run
  now                    everything recorded so far
"""
WHEN = _FORMS.format(version="")
WHEN_OF_ENTITY = _FORMS.format(version="  v12                    a version of the entity\n")
"""The same, for commands about one entity: only these accept a version as a point."""

Command = Callable[..., "int | None"]


class InOrder(click.Group):
    """A group that lists its commands in the order in which they were added, and names those like a mistyped one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if not (near := get_close_matches(args[0], self.list_commands(ctx))):
                raise
            said = f"{error.message.rstrip('.')}, did you mean {' or '.join(near)}?"
            raise click.UsageError(said, ctx) from None


def _positive(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value:g} is not a number of seconds above 0")
    return value


def _register(context: click.Context, option: click.Parameter, names: tuple[str, ...]) -> None:
    """Register custom reducers in this process, and in every process that it starts."""
    if names:
        from refold.reducers import registered

        registered.allow(names)
        os.environ.update(registered.environment())


def place_options(command: Command) -> Command:
    """Add --log, --types, --owner-timeout and --worker, passed as `log_url`, `types`, `owner_timeout` and `worker_url`.
    Also add --reducers, which registers the modules that it names.
    """
    for option in (
        click.option(
            "--worker",
            "worker_url",
            metavar="URL",
            help="A worker's address, for a log on Kafka [$REFOLD_WORKER, else found by its group].",
        ),
        click.option(
            "--owner-timeout",
            type=float,
            metavar="SECONDS",
            callback=_positive,
            help=f"How long to wait for the log's owner, or for Kafka's brokers [{OWNER_TIMEOUT_S:g}].",
        ),
        click.option(
            "--types",
            multiple=True,
            metavar="PATH",
            help="An .avsc file, or a folder of them; may be repeated [$REFOLD_TYPES].",
        ),
        click.option(
            "--reducers",
            multiple=True,
            metavar="MODULE",
            callback=_register,
            expose_value=False,
            help="Allow custom reducers: MODULE or MODULE:FUNCTION; may be repeated [$REFOLD_REDUCERS].",
        ),
        click.option("--log", "log_url", metavar="URL", help="The log [$REFOLD_LOG, else file:.refold]."),
    ):
        command = option(command)
    return command


def merged(
    outer: LogTarget, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None, worker_url: str | None
) -> LogTarget:
    """Merge the options before a command's name with those after it. Those after it take precedence."""
    return LogTarget(
        log_url or outer.url, (*outer.types, *types), owner_timeout or outer.owner_timeout_s,
        worker_url or outer.worker,
    )  # fmt: skip


def on_log(command: Command) -> Command:
    """Pass a command its LogTarget as the first argument."""

    @functools.wraps(command)
    def run(
        log_url: str | None,
        types: tuple[str, ...],
        owner_timeout: float | None,
        worker_url: str | None,
        **given: Any,
    ) -> int | None:
        outer = click.get_current_context().find_object(LogTarget) or LogTarget()
        return command(merged(outer, log_url, types, owner_timeout, worker_url), **given)

    return place_options(run)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
at = click.option("--at", metavar="WHEN", help="The point in time to answer for [now].")
clock = click.option(
    "--clock",
    type=click.Choice(CLOCKS),
    default="recorded",
    show_default=True,
    help="What a time means: when the log took it (known by then), or when it happened (true by then).",
)
entity = click.argument("entity", metavar="TYPE/ID")
run_argument = click.argument("run_id", metavar="RUN")
