"""`refold proxy`: capture requests to models, or answer them from a recording."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
import msgspec

from refold.agents.policy.rules import Policy, RunBudget
from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log
from refold.explorer.cli.output.screen import counted
from refold.explorer.cli.runs.code import redact_option, redactor_for
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run
from refold.streams.runtime import wait_for

if TYPE_CHECKING:
    from refold.agents.capture.capture import CaptureSettings
    from refold.agents.capture.playback import RecordedUpstream
    from refold.agents.capture.server import LoopbackServer
    from refold.agents.capture.spool_drain import StoredExchanges
    from refold.agents.journal.record import Recording

CLOSING_S = 10.0
SHOWN_MAX = 20
SWITCH_S = 0.0002
"""How long the storing thread may hold the interpreter while a piece of a stream waits. Python's default of 5 ms is
noticeable.
"""
# A proxy writes little at a time, so a larger cache and larger write buffers would only fill up over hours.
LOG_MEMORY_BYTES = 48 << 20
PORT = 8080
SPOOL_MIB = 1024

spool_option = click.option(
    "--spool", type=click.Path(path_type=Path), metavar="FOLDER",
    help="The folder where captured exchanges wait for the log [one of yours, by the log].",
)  # fmt: skip
spool_max_option = click.option(
    "--spool-max", "spool_mib", type=click.IntRange(1), default=SPOOL_MIB, show_default=True, metavar="MIB",
    help="How many bytes may wait there. Exchanges beyond that are passed on but not kept, and are counted.",
)  # fmt: skip
fork_option = click.option(
    "--fork", "is_forking", is_flag=True,
    help="Pass the first request that is not recorded, and all after it, to the provider: a fork of the run.",
)  # fmt: skip
policy_option = click.option(
    "--policy", metavar="FILE", help="Check each request before it is passed on (docs/guides/policy.md)."
)


class BudgetLimit(click.ParamType):
    """One limit of a budget, NAME=NUMBER."""

    name = "budget"

    def convert(self, value: str, param: click.Parameter | None, context: click.Context | None) -> tuple[str, float]:
        """Return the name and the number."""
        name, _, text = value.partition("=")
        try:
            number = float(text)
        except ValueError:
            self.fail(f"{value}: write it NAME=NUMBER, such as tokens=200000", param, context)
        if name not in RunBudget.__struct_fields__:
            self.fail(f"{name}: a budget has {', '.join(RunBudget.__struct_fields__)}", param, context)
        return name, int(number) if number.is_integer() else number


budget_option = click.option(
    "--budget", "limits", type=BudgetLimit(), multiple=True, metavar="NAME=NUMBER",
    help="What the program may use, such as tokens, cost_usd or time_s (docs/guides/policy.md). Repeatable.",
)  # fmt: skip


def budget_of(limits: Iterable[tuple[str, float]]) -> RunBudget:
    """Return the budget of the command line.

    Raises:
        InputError: A limit is impossible.
    """
    try:
        budget = msgspec.convert(dict(limits), RunBudget)
    except msgspec.ValidationError as error:
        raise InputError(f"--budget: {error}") from None
    if budget.problem:
        raise InputError(f"--budget: {budget.problem}")
    return budget


@click.command()
@click.option("--listen", default=f"127.0.0.1:{PORT}", show_default=True, metavar="HOST:PORT",
              help="The address to listen on, loopback only; port 0 is any free port.")  # fmt: skip
@click.option("--upstream", metavar="URL", help="The provider, such as https://api.openai.com.")
@click.option("--agent", default="proxy", show_default=True, metavar="NAME", help="The agent's name in the runs.")
@click.option("--silence", "silence_s", type=click.FloatRange(0.1), metavar="SECONDS",
              help="How long the provider may send nothing [as long as the agent waits].")  # fmt: skip
@click.option("--replay", "run_id", metavar="RUN", help="Answer only from this run; there is no upstream.")
@fork_option
@click.option("--rhythm", type=click.Choice(["none", "recorded"]), default="none", show_default=True,
              help="With --replay: send pieces at once, or with their recorded pauses.")  # fmt: skip
@redact_option
@policy_option
@spool_option
@spool_max_option
@on_log
def proxy(
    target: LogTarget, listen: str, upstream: str | None, agent: str, silence_s: float | None, run_id: str | None,
    is_forking: bool, rhythm: str, redact: str | None, policy: str | None, spool: Path | None, spool_mib: int,
) -> int:  # fmt: skip
    """Capture model calls by a proxy that agents are pointed at.

    Every request is passed unchanged to --upstream, and every piece of the response is returned at once, byte for byte.
    A copy becomes a run in the log: a session is recognised by its conversation, each turn is a step, and tool calls
    have their results. The proxy parses the APIs of Anthropic (messages), OpenAI (chat completions and responses),
    Gemini, Ollama and Bedrock. Any other exchange is stored unchanged. Credentials are never stored. While the log is
    slow or unavailable, captured exchanges wait in a spool.

    SIGTERM and Ctrl-C end it: it stores the exchanges that wait, and ends the runs.

    With --replay it answers from a captured run, and connects to nothing. A request that is not recorded gets an error
    that names the turn and what differs. With --replay, --fork and --upstream that request and all after it are passed
    on, and captured as a fork, whose parent is the run.

    With --policy a request that the policy denies is not passed on. The agent gets status 403, with an error in the
    provider's own form, and the denial is recorded.

    \b
    Examples
      refold proxy --upstream https://api.openai.com
      OPENAI_BASE_URL=http://127.0.0.1:8080/v1 python my_agent.py
      refold proxy --replay 8f2c --listen 127.0.0.1:8081
    """
    host, port = address_of(listen)
    stop = Event()
    stop_by_signals(stop)
    if is_forking and (run_id is None or upstream is None):
        raise InputError("--fork takes a recorded run with --replay, and the provider with --upstream")
    if run_id is not None and not is_forking:
        if policy is not None:
            raise InputError("--replay passes no request on, so there is nothing to check: leave --policy out")
        if upstream is not None:
            raise InputError("--replay answers from the recording alone: leave --upstream out, or give --fork")
        return _replay(target, run_id, host, port, redact, stop, is_paced=rhythm == "recorded")
    if upstream is None:
        raise InputError("give the provider's address with --upstream, or a recorded run with --replay")
    capture_module = capture_modules()
    given = capture_settings(
        target, agent, {"upstream": capture_module.shown(upstream)}, redact, spool, spool_mib,
        host=host, port=port, silence_s=silence_s, policy=None if policy is None else Policy.load(policy),
    )  # fmt: skip
    if run_id is not None:
        given, _, run_id = forking_settings(target, run_id, redact, given, is_paced=rhythm == "recorded")
    capture = capture_module.Capture(given, {"": upstream})
    answering = "" if run_id is None else f"answers from run {run_id}, then "
    click.echo(f"refold proxy: {capture.url} {answering}passes on to {capture_module.shown(upstream)}; Ctrl-C ends it")
    wait_for(stop)
    print_stored(capture.close(CLOSING_S), given.log_url)
    return 0


def _replay(
    target: LogTarget, run_id: str, host: str, port: int, redact: str | None, stop: Event, *, is_paced: bool
) -> int:
    serving, replaying, run_id = serve_recording(target, run_id, redact, host, port, is_paced=is_paced)
    click.echo(f"refold proxy: {serving.url} answers from run {run_id}; Ctrl-C ends it")
    wait_for(stop)
    serving.close()
    return 1 if replaying.unrecorded else 0


def serve_recording(
    target: LogTarget, run_id: str, redact: str | None, host: str, port: int, *, is_paced: bool
) -> tuple[LoopbackServer, RecordedUpstream, str]:
    """Return a server that answers from a run and from those captured with it, the recorded answers, and the run's
    full id.
    """
    module = capture_modules()
    replaying, _, run_id = _recorded_upstream(target, run_id, redact, is_paced=is_paced)
    return module.Serving(lambda: replaying, host, port), replaying, run_id


def forking_settings(
    target: LogTarget, run_id: str, redact: str | None, settings: CaptureSettings, *, is_paced: bool
) -> tuple[CaptureSettings, RecordedUpstream, str]:
    """Return the settings of a capture that first answers from a run, the recorded answers, and the run's full id."""
    replaying, recordings, run_id = _recorded_upstream(target, run_id, redact, is_paced=is_paced)
    if redact is None and any(each.redacted for each in recordings):
        raise InputError(f"run {run_id} was recorded through a redactor, and its fork would not be: give --redact")
    return settings._replace(parents=recordings, replaying=replaying), replaying, run_id


def _recorded_upstream(
    target: LogTarget, run_id: str, redact: str | None, *, is_paced: bool
) -> tuple[RecordedUpstream, list[Recording], str]:
    """Return the recorded answers, the run with those captured with it, and the run's full id."""
    module = capture_modules()
    with target.read() as log:
        run_id = known_run(log, run_id, log.point().cut)
        recordings = module.together(log, log.recording(run_id))
        given = redactor_for(redact)
        redacting = None if given is None else log.capturing(given).redactor()

    def observation_of(run: str, step: int) -> str:
        with target.read() as log:
            found = log.states([entity := f"step/{run}#{step}"]).get(entity)
        return "" if found is None or "status" not in found.fields else found.observations_of("status")[0].hex()

    replaying: RecordedUpstream = module.Replaying(
        recordings, redacting, is_paced=is_paced, say=lambda line: click.echo(f"refold: {line}", err=True),
        observation_of=observation_of,
    )  # fmt: skip
    return replaying, recordings, run_id


class CaptureModules:
    """The modules that capturing needs, imported."""

    def __init__(self) -> None:
        from refold.agents.capture.capture import Capture, CaptureSettings
        from refold.agents.capture.exchange import shown_url
        from refold.agents.capture.playback import RecordedUpstream, recorded_together
        from refold.agents.capture.server import LoopbackServer

        self.Capture, self.CaptureSettings = Capture, CaptureSettings
        self.shown, self.Replaying, self.Serving = shown_url, RecordedUpstream, LoopbackServer
        self.together = recorded_together


def capture_modules() -> CaptureModules:
    """Import the modules that capturing needs.

    Raises:
        InputError: The extra `capture` is not installed.
    """
    try:
        import brotli  # noqa: F401
        import zstandard  # noqa: F401

        return CaptureModules()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("aiohttp", "brotli", "zstandard", "multidict", "yarl"):
            raise
        raise InputError(f'{error.name} is not installed: pip install "refold[capture]"') from None


def capture_settings(
    target: LogTarget, agent: str, settings: dict[str, Any], redact: str | None, spool: Path | None, spool_mib: int,
    **more: Any,
) -> CaptureSettings:  # fmt: skip
    """Return the settings for capturing into a command's log. Also set this process's switch interval for it."""
    from refold.agents.log import open_log
    from refold.agents.state_home import whole_url
    from refold.streams.open import resolved_url

    module = capture_modules()
    sys.setswitchinterval(SWITCH_S)
    url = whole_url(resolved_url(target.url))
    built: CaptureSettings = module.CaptureSettings(
        url,
        partial(
            open_log, url, types=target.type_paths(), owner_timeout_s=target.owner_timeout_s, worker=target.worker,
            memory_bytes=LOG_MEMORY_BYTES,
        ),
        agent, settings, lambda line: click.echo(f"refold: {line}", err=True), redactor_for(redact),
        None if spool is None else spool.absolute(), spool_mib << 20, **more,
    )  # fmt: skip
    return built


def resumed_settings(settings: CaptureSettings, run: str) -> CaptureSettings:
    """Return the settings of a capture that continues from what was captured under an id."""
    from refold.agents.capture.resumed import resuming

    return resuming(settings, run, CLOSING_S)


def print_stored(stored: StoredExchanges, log_url: str) -> None:
    """Print what was captured, and the command that shows it."""
    runs = counted(stored.runs.total, "run")
    if stored.exchanges:
        click.echo(f"refold: {counted(stored.exchanges, 'exchange')} in {runs}, in {log_url}", err=True)
    for run in stored.runs.runs[:SHOWN_MAX]:
        click.echo(f"  refold run steps {run}", err=True)
    if stored.runs.total > SHOWN_MAX:
        click.echo(f"  and {counted(stored.runs.total - SHOWN_MAX, 'run')} more: refold runs", err=True)
    if stored.unanswered:
        click.echo(f"refold: {counted(stored.unanswered, 'exchange')} without a response: {stored.why}", err=True)
    if stored.missed:
        click.echo(f"refold: {counted(stored.missed, 'exchange')} not kept", err=True)
    if stored.waiting:
        click.echo(
            f"refold: {counted(stored.waiting, 'exchange')} left in the spool, for the next `refold proxy` or `refold "
            "record` into this log",
            err=True,
        )


def address_of(listen: str) -> tuple[str, int]:
    """Parse HOST:PORT, or a port alone.

    Raises:
        InputError: The text has another form.
    """
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise InputError(f"--listen {listen}: write it HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def stop_by_signals(stop: Event) -> None:
    """Set an event at SIGTERM and Ctrl-C."""

    def ended(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)
