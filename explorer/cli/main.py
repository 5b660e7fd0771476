"""`refold`: the command line.

Exit status: 0 done; 1 the answer is no, or something differs; 2 unusable input or a log that cannot be
used, with one line on standard error; 70 a defect in refold; 130 after Ctrl-C; 141 when whoever reads the
output went away; 143 after SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

import refold
from refold.avro.errors import RefoldError
from refold.explorer.cli import (
    contents,
    demo,
    doctor,
    exporting,
    follow,
    importing,
    markers,
    observing,
    past,
    provenance,
    state,
    types,
    whole,
)
from refold.explorer.cli.options import Place, merged, place_options

DEBUG = "REFOLD_DEBUG"
UNUSABLE, DEFECT, INTERRUPTED, PIPE_CLOSED, TERMINATED = 2, 70, 130, 141, 143


class InOrder(click.Group):
    """Lists its commands in the order in which one meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=InOrder,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(refold.__version__, message="refold %(version)s")
@place_options
@click.pass_context
def cli(context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None) -> int:
    """What your agents observed and did, and what their world looked like at any moment.

    \b
      refold demo                                     see it work
      refold import runs.jsonl --format chat          bring recorded conversations in
      refold state tool_config/acme --at @deploy-1    one entity, as it was
      refold why tool_config/acme.rate_limit          who put that value there
      refold diff @deploy-1 now                       what changed since

    Every command says more with --help. --log, --types and --owner-timeout may also stand behind a
    command. With REFOLD_LOG the log need not be named again and again.

    \b
    Exit status
      0    done
      1    the answer is no: verify found a mismatch, diff a difference, doctor a problem
      2    unusable input, or a log that cannot be used: one line on standard error says why
      70   a defect in refold; REFOLD_DEBUG=1 shows where
      130  interrupted (Ctrl-C)
    """
    context.obj = merged(Place(), log_url, types, owner_timeout)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


for _command in (
    demo.demo,
    importing.import_,
    exporting.export,
    observing.observe,
    state.state,
    past.history,
    provenance.why,
    past.diff,
    whole.rebuild,
    whole.verify,
    markers.mark,
    markers.markers,
    follow.tail,
    types.types,
    contents.blob,
    doctor.doctor,
):
    cli.add_command(_command)


def main() -> NoReturn:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:]))


def _terminate(*_: object) -> NoReturn:
    """End as an exception does, so that unfinished files are removed and a log is closed."""
    raise SystemExit(TERMINATED)


def run(arguments: Sequence[str]) -> int:
    """One command; its exit status. What went wrong is on standard error, on one line."""
    if "_REFOLD_COMPLETE" in os.environ:
        cli.main(prog_name="refold")
    try:
        with cli.make_context("refold", list(arguments)) as context:
            status = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        return _refuse(_usage(error))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _leave_closed_pipe()
        return PIPE_CLOSED
    except RefoldError as error:
        return _refuse(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{place}{error.strerror or error}")
    except Exception as error:
        _say(f"a defect: {type(error).__name__}: {error}; please report it, with what {DEBUG}=1 shows")
        return DEFECT
    return int(status or 0)


def _usage(error: click.ClickException) -> str:
    """A mistake in the command line, and where to look the command up."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "refold"
    return f"{error.format_message().rstrip('.')}; see {path} --help"


def _refuse(message: str) -> int:
    _say(message)
    return UNUSABLE


def _say(message: str) -> None:
    if os.environ.get(DEBUG, "") not in ("", "0"):
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        print("refold:", " ".join(message.split()), file=sys.stderr, flush=True)


def _leave_closed_pipe() -> None:
    """Let the interpreter's own flush at its end go nowhere, instead of complaining."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    main()
