"""`refold`: the command line.

Exit status: 0 done; 1 the answer is no, or something differs; 2 unusable input or a log that cannot be used, with one
line on standard error; 70 a defect in refold; 130 after Ctrl-C; 141 after the reader of the output closed the pipe; 143
after SIGTERM.

SIGTERM and Ctrl-C end a command, whenever they arrive. Both raise an exception, so that unfinished files are removed
and the log is closed. But Python drops an exception that is raised within a callback from C, such as that of a weak
reference: it only prints that the exception was ignored. So a dropped exception is raised again (`handle_signals`):

1. Python passes a dropped exception to `sys.unraisablehook`. If it is one of the two, a timer is set.
2. AGAIN_S later, when the callback has returned, the timer's signal handler raises the exception again. If it is
   dropped again, step 1 follows again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

import refold
from refold.avro.errors import RefoldError
from refold.explorer.cli.lazy_group import LazyGroup
from refold.explorer.cli.options import merged, place_options
from refold.explorer.queries.log_target import LogTarget

DEBUG = "REFOLD_DEBUG"
UNUSABLE, DEFECT, INTERRUPTED, PIPE_CLOSED, TERMINATED = 2, 70, 130, 141, 143
AGAIN_S = 0.01
COMMANDS = {
    "Record": {
        "demo": ("record.demo:demo", "See refold work, end to end."),
        "record": ("record.record:record", "Run a program and capture its model calls."),
        "proxy": ("record.proxy:proxy", "Capture model calls by a proxy that agents are pointed at."),
        "receive": ("record.receive:receive", "Record traces and logs of agents that OpenTelemetry sends."),
        "mcp-record": ("record.mcp_record:mcp_record", "Run an MCP server, and record what it is asked."),
        "import": ("record.import_:import_", "Import exported observations or recorded conversations."),
        "observe": ("record.observe:observe", "Record an observation of an entity, and print its id."),
    },
    "Ask": {
        "state": ("ask.state:state", "Show an entity as it was, and what put each value there."),
        "find": ("ask.find:find", "Find the entities whose id or values hold a text."),
        "history": ("ask.history:history", "List what changed in an entity: old, new, when, by whom."),
        "why": ("ask.why:why", "Trace a value to the observations that led to it."),
        "diff": ("ask.history:diff", "Show what changed between two points."),
        "knew": ("ask.knew:knew_", "Show what an agent knew at a moment, and what the log held."),
        "explore": ("explore:explore", "Explore a log in a browser."),
        "deck": ("deck:deck", "Explore a log in the terminal."),
        "mcp": ("mcp:mcp", "Let an agent ask its own history, by MCP."),
        "tail": ("ask.tail:tail", "Print changes as they happen."),
        "types": ("ask.types:types", "List the types, show the fields of one, or register one."),
        "mark": ("ask.markers:mark", "Name a point in the log; use it later as @NAME."),
        "markers": ("ask.markers:markers", "List the markers, oldest first."),
        "blob": ("ask.blob:blob", "Print a stored content by its SHA-256."),
    },
    "Runs": {
        "runs": ("runs.runs:runs", "List the runs of agents, the newest first."),
        "run": ("runs.run:run_group", "Show, replay, resume, fork or compare one run."),
        "play": ("runs.play:play", "Run a program; its model calls are answered from a recording."),
        "checkout": ("runs.checkout:checkout", "Open a run at a hash: its state there, and how to continue."),
        "approvals": ("runs.approvals:approvals", "List what policies ask people about calls of runs."),
        "approve": ("runs.approvals:approve", "Let a call through that a policy asks about."),
        "deny": ("runs.approvals:deny", "Reject a call that a policy asks about."),
        "policy": ("runs.policy:policy", "Test policies on the calls of recorded runs."),
        "heal": ("runs.heal:heal", "Heal a run: find what is wrong, prove a remedy, and continue."),
        "effects": ("runs.effects:effects", "List what write tools did; settle what is unknown; undo."),
        "bisect": ("runs.bisect:bisect_", "Find the commit at which an agent stops matching a run."),
        "golden": ("runs.golden:golden", "Keep runs as tests, and run today's code against them."),
    },
    "Agents": {
        "up": ("agents.up:up", "Run the agents of refold.toml, and keep them running."),
        "agents": ("agents.agents:agents", "Show supervised agents, and start, pause or stop them."),
    },
    "Operate": {
        "init": ("operate.init:init", "Create the log if it does not exist, and describe it."),
        "doctor": ("operate.doctor:doctor", "Check a log and its environment, and say what to fix."),
        "verify": ("operate.verify:verify", "Replay the whole log and compare with what is stored."),
        "rebuild": ("operate.rebuild:rebuild", "Rebuild every entity at a point; print the root hash."),
        "snapshot": ("operate.snapshot:snapshot", "Seal the state of every entity; rebuilds start from it."),
        "export": ("operate.export:export", "Write every observation to a file."),
        "sink": ("operate.sink:sink", "Keep a store up to date with a log, at an exact cut."),
        "retain": ("operate.retain:retain", "Remove the content of old runs."),
        "recover": ("operate.recover:recover", "Delete the entity tables and rebuild them."),
        "blobs": ("operate.blobs:blobs", "Count stored contents, and those that nothing refers to."),
        "deadletters": ("operate.deadletters:deadletters", "List records that are not observations, and retry them."),
        "quarantine": ("operate.quarantine:quarantine", "Set a harmful definition or a damaged record aside."),
    },
    "Kafka": {
        "worker": ("kafka.worker:worker", "Fold a log on Kafka; emit each change exactly once."),
        "plan": ("kafka.plan:plan_", "Say what a load on Kafka needs: partitions, workers, memory, disks."),
        "acl": ("kafka.acl:acl", "Show or grant the Kafka access that each role needs."),
        "rewind": ("kafka.rewind:rewind", "Set a consumer group's offsets to a point of the log."),
    },
}


def _say_version(context: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        from refold.avro.kernel import find_kernel

        click.echo(f"refold {refold.__version__} ({find_kernel().text})")
        context.exit()


@click.group(
    cls=LazyGroup,
    sections=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_say_version,
              help="Show the version, and whether the native kernel is used, and exit.")  # fmt: skip
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

    Every command explains itself with --help. The options --log, --types, --reducers, --owner-timeout and --worker may
    also follow a command. Set REFOLD_LOG to leave out --log.

    \b
    Exit status
      0    done
      1    the answer is no: verify found a mismatch, diff a difference, doctor a problem
      2    unusable input, or a log that cannot be used: one line on standard error says why
      70   a defect in refold; REFOLD_DEBUG=1 shows where
      130  interrupted (Ctrl-C)
    """
    context.obj = merged(LogTarget(), log_url, types, owner_timeout, worker_url)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


def main() -> NoReturn:
    """Run the command line. This is the console script."""
    handle_signals()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit status. A failure prints one line on standard error."""
    if "_REFOLD_COMPLETE" in os.environ:
        cli.main(prog_name="refold")
    if any(_is_no_text(each) for each in arguments):
        return _refuse("an argument is not UTF-8 text; name such a file by a link or by its folder")
    try:
        with cli.make_context("refold", list(arguments)) as context:
            status = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        return _refuse(_usage(error))
    except (KeyboardInterrupt, click.Abort):
        # If the interrupt came within executed text, such as that of a dataclass, Python remembers it, and would end
        # `python -m` by SIGINT at its exit. It forgets it when the next text is executed.
        exec("")
        return INTERRUPTED
    except BrokenPipeError:
        _leave_closed_pipe()
        return PIPE_CLOSED
    except RefoldError as error:
        return _refuse(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{place}{error.strerror or error}")
    except Exception as error:  # the last resort: anything else is a defect of refold
        _print_error(f"a defect: {type(error).__name__}: {error}; please report it, with what {DEBUG}=1 shows")
        return DEFECT
    return int(status or 0)


def _is_no_text(argument: str) -> bool:
    """Whether the argument holds bytes that are not UTF-8, which can be neither shown nor stored."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return True
    return False


def _usage(error: click.ClickException) -> str:
    """Describe a mistake in the command line, and name the help text that describes the command."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "refold"
    return f"{error.format_message().rstrip('.')}; see {path} --help"


def _refuse(message: str) -> int:
    _print_error(message)
    return UNUSABLE


def _print_error(message: str) -> None:
    if os.environ.get(DEBUG, "") not in ("", "0"):
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        print("refold:", " ".join(message.split()), file=sys.stderr, flush=True)


def _leave_closed_pipe() -> None:
    """Send the interpreter's final flush to /dev/null, so that it does not complain about the closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class Terminated(SystemExit):
    """Raised when SIGTERM arrives."""


def handle_signals() -> None:
    """Handle SIGTERM in this process, and raise dropped SIGTERM and Ctrl-C exceptions again."""
    dropped: list[BaseException] = []
    hook = sys.unraisablehook

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        error = found.exc_value
        if not isinstance(error, Terminated | KeyboardInterrupt):
            hook(found)
            return
        dropped.append(error)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    def again(number: int, frame: FrameType | None) -> None:
        if dropped:
            raise dropped.pop()

    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGALRM, again)
    sys.unraisablehook = unraisable


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(TERMINATED)


if __name__ == "__main__":
    main()
