"""`refold`: the command line.

Exit status: 0 done; 1 the answer is no, or something differs; 2 unusable input or a log that cannot be
used, with one line on standard error; 70 a defect in refold; 130 after Ctrl-C; 141 when whoever reads the
output went away; 143 after SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

import refold
from refold.avro.errors import RefoldError
from refold.explorer.cli.late import Late
from refold.explorer.cli.options import Place, merged, place_options
from refold.explorer.cli.stopping import install

DEBUG = "REFOLD_DEBUG"
UNUSABLE, DEFECT, INTERRUPTED, PIPE_CLOSED = 2, 70, 130, 141
COMMANDS = {
    "demo": ("demo:demo", "See the main job end to end."),
    "record": ("record:record", "Run a program, and capture what it asks of models."),
    "play": ("play:play", "Run a program, its models answered from a recording."),
    "proxy": ("proxy:proxy", "Capture what agents ask of models, by a proxy that they are pointed at."),
    "import": ("importing:import_", "Bring in exported observations or recorded conversations."),
    "export": ("exporting:export", "Write every observation to a file, once each."),
    "observe": ("observing:observe", "Record an observation of an entity, and print its id."),
    "state": ("state:state", "Show an entity as it was, and what put each value there."),
    "history": ("past:history", "List what changed in an entity: old, new, when, by whom."),
    "why": ("provenance:why", "Trace a value to the observations it rests on."),
    "diff": ("past:diff", "Show what leads from one point to another."),
    "runs": ("runs:runs", "List the runs of agents, the newest first."),
    "run": ("run_group:run_group", "Look at one run of an agent, and work with it."),
    "effects": ("effects:effects", "Look at what write tools did, settle what is unknown, undo."),
    "checkout": (
        "checkout:checkout",
        "Open a run where it stood at a hash: its state there, and how to go on from it.",
    ),
    "knew": ("knowing:knew_", "Show what an agent knew by a moment, beside what the log held then."),
    "bisect": ("bisecting:bisect_", "Find the commit at which an agent parts from a recorded run."),
    "golden": ("golden:golden", "Keep runs as tests: each in one file, and today's code run against it."),
    "retain": ("retaining:retain", "Let the content of old runs expire."),
    "rebuild": ("rebuild:rebuild", "Rebuild every entity as it was; print the root over all."),
    "verify": ("whole:verify", "Fold the whole log again and compare with what is stored."),
    "mark": ("markers:mark", "Name a point, to ask for it as @NAME later."),
    "markers": ("markers:markers", "List the markers, oldest first."),
    "snapshot": ("snapshot:snapshot", "Seal what every entity is now, for rebuilds to begin from."),
    "tail": ("follow:tail", "Print what happened to each entity, and go on if asked."),
    "types": ("types:types", "List the types, show the fields of one, or register one."),
    "blob": ("contents:blob", "Get a content by its SHA-256, as a value names its blob."),
    "blobs": ("blobs:blobs", "Count the contents in the store, and those that nothing in the log names."),
    "recover": ("recovering:recover", "Throw the entity tables away and make them again."),
    "rewind": ("rewinding:rewind", "Set the offsets of a consumer group of yours to a point of a log on Kafka."),
    "deadletters": ("deadletters:deadletters", "Look at records that are no observations, and retry them."),
    "quarantine": ("quarantine:quarantine", "Set a definition aside that hinders others, or a damaged record."),
    "doctor": ("doctor:doctor", "Examine a log and its surroundings."),
    "sink": ("sink:sink", "Keep a store up with a log: its state at an exact cut, and history."),
    "init": ("making:init", "Make the log where there is none, and say what is there."),
    "acl": ("acl:acl", "What each role needs of the access lists of a secured Kafka, and no more."),
    "worker": ("worker:worker", "Fold a log on Kafka: keep its entity tables, and emit each change once."),
}


@click.group(
    cls=Late,
    late=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(refold.__version__, message="refold %(version)s")
@place_options
@click.pass_context
def cli(
    context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None,
    worker_url: str | None,
) -> int:  # fmt: skip
    """What your agents observed and did, and what their world looked like at any moment.

    \b
      refold demo                                     see it work
      refold record -- python my_agent.py             capture a program's model calls, its code as it is
      refold import runs.jsonl --format chat          bring recorded conversations in
      refold state tool_config/acme --at @deploy-1    one entity, as it was
      refold why tool_config/acme.rate_limit          who put that value there
      refold diff @deploy-1 now                       what changed since

    Every command says more with --help. --log, --types, --reducers, --owner-timeout and --worker may also stand
    behind a command. With REFOLD_LOG the log need not be named again and again.

    \b
    Exit status
      0    done
      1    the answer is no: verify found a mismatch, diff a difference, doctor a problem
      2    unusable input, or a log that cannot be used: one line on standard error says why
      70   a defect in refold; REFOLD_DEBUG=1 shows where
      130  interrupted (Ctrl-C)
    """
    context.obj = merged(Place(), log_url, types, owner_timeout, worker_url)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


def main() -> NoReturn:
    """The console script."""
    install()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """One command; its exit status. What went wrong is on standard error, on one line."""
    if "_REFOLD_COMPLETE" in os.environ:
        cli.main(prog_name="refold")
    if any(_is_no_text(each) for each in arguments):
        return _refuse("an argument is not UTF-8 text; give the names of such files through a link or a folder")
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


def _is_no_text(argument: str) -> bool:
    """Whether it holds bytes that are not UTF-8, which could be shown and stored nowhere."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return True
    return False


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
