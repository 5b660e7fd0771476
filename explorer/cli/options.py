"""What commands have in common: which log, which types, JSON or text, and how a point in time is given."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refold.avro.errors import InputError, StorageError
from refold.streams.defaults import CLOCKS, OWNER_TIMEOUT_S

# Logs are imported where one is opened: --help and --version need none.
if TYPE_CHECKING:
    from refold.agents.log import AgentLog
    from refold.avro.definition import TypeDefinition

TYPES_ENVIRONMENT = "REFOLD_TYPES"

_FORMS = """\b
WHEN is one of
  2026-11-21T03:12:00Z   a time, RFC 3339 with its zone
  @deploy-1              a marker
  cut:TEXT               a cut, as printed by any answer about the past
  offset:0=41,1=17       next offsets; a partition not named stands at its start
{version}\
  run:ID#STEP            after a step of a run
  now                    everything recorded so far
"""
WHEN = _FORMS.format(version="")
WHEN_OF_ENTITY = _FORMS.format(version="  v12                    a version of the entity\n")
"""The same for a command that asks about one entity: only there a version names a point."""

Command = Callable[..., "int | None"]


class InOrder(click.Group):
    """Lists its commands in the order in which one meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@dataclass(frozen=True, slots=True)
class LogTarget:
    """The log a command works on. url None: REFOLD_LOG, or file:.refold; no types: those of REFOLD_TYPES; worker None:
    REFOLD_WORKER, or whoever is in the workers' group."""

    url: str | None = None
    types: tuple[str, ...] = ()
    owner_timeout_s: float = OWNER_TIMEOUT_S
    worker: str | None = None

    def read(self) -> AgentLog:
        """The log, opened to read: it is never made, and nothing in it changes."""
        return self._open(read_only=True)

    @contextmanager
    def write(self, *, make: bool = True) -> Iterator[AgentLog]:
        """The log, opened to write and closed behind; with `make`, it is made where there is none."""
        from refold.streams.open import given_url

        if not make and not self.exists():
            raise InputError(
                f"{given_url(self.url)}: no log is here yet; record into it first, or give its path with --log"
            )
        with self._open() as log:
            yield log
            log.flush()
            try:
                log.close()
            except StorageError as error:
                raise StorageError(f"done, and durable, but the log could not be closed: {error}") from error

    def _open(self, *, read_only: bool = False) -> AgentLog:
        from refold.agents.log import open_log

        return open_log(
            self.url, types=self.type_paths(), read_only=read_only, owner_timeout_s=self.owner_timeout_s,
            worker=self.worker,
        )  # fmt: skip

    def exists(self) -> bool:
        """Whether there is a log."""
        from refold.streams.open import log_exists

        return log_exists(self.url, self.owner_timeout_s)

    def type_paths(self) -> list[Path]:
        """The type files and folders given, else those that the environment lists."""
        listed = self.types or os.environ.get(TYPES_ENVIRONMENT, "").split(os.pathsep)
        return [Path(each) for each in listed if each]

    def own_types(self) -> dict[str, TypeDefinition]:
        """The user's own types, by name."""
        from refold.avro.shipped import load_types
        from refold.reducers.custom import code_of

        return load_types(self.type_paths(), code_of)


def _positive(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value:g} is no number of seconds above 0")
    return value


def _register(context: click.Context, option: click.Parameter, names: tuple[str, ...]) -> None:
    """Register custom reducers in this process, and in every one that it starts."""
    if names:
        from refold.reducers import registered

        registered.allow(names)
        os.environ.update(registered.environment())


def place_options(command: Command) -> Command:
    """--log, --types, --owner-timeout and --worker, as `log_url`, `types`, `owner_timeout` and `worker_url`; and
    --reducers, which registers what it names."""
    for option in (
        click.option(
            "--worker",
            "worker_url",
            metavar="URL",
            help="The pages of a worker, for a log on Kafka [$REFOLD_WORKER, else as its group says].",
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
    """What stands behind the command goes before what stands in front of it."""
    return LogTarget(
        log_url or outer.url, (*outer.types, *types), owner_timeout or outer.owner_timeout_s,
        worker_url or outer.worker,
    )  # fmt: skip


def on_log(command: Command) -> Command:
    """Give a command its Place as the first argument."""

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
at = click.option("--at", metavar="WHEN", help="The point to answer for [now].")
clock = click.option(
    "--clock",
    type=click.Choice(CLOCKS),
    default="recorded",
    show_default=True,
    help="What a time means: when the log took it (known by then), or when it happened (true by then).",
)
entity = click.argument("entity", metavar="TYPE/ID")
