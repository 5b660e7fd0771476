"""The five answers as text: what the log says, written for a reader who is new to refold.

Observations and entities in few words, for lists.

The comparisons that must hold for the demo to prove anything: values that were computed twice must be equal.

Output to the terminal: aligned lines that are never cut, with colour only on a terminal.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

import refold
from refold.explorer.demo import answers
from refold.explorer.demo.answers import AgentReport, RefoldedVersion
from refold.explorer.demo.deployer import OVERWRITTEN, RELEASED
from refold.explorer.demo.names import CONFIG, CRASH, DEPLOYED, DEPLOYER, EVALUATION, PIPELINE, SESSION

HEAD, GOOD, BAD, DIM, NAME, MARKED = "bold", "green", "bold red", "dim", "cyan", "yellow"
ID_DIGITS = 12


class Page:
    """The demo's output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line."""
        self._console.print(Text(text, style=style))

    def head(self, text: str) -> None:
        """Print a heading."""
        self.line()
        self.line(text, HEAD)

    def by(self, who: str, text: str) -> None:
        """Print who does something, and what."""
        self._console.print(Text.assemble("   ", (f"{who:<13} ", NAME), text))

    def verdict(self, label: str, good: bool, text: str) -> None:
        """Print a result: a label, coloured as good or bad, and a text."""
        self._console.print(Text.assemble("   ", (f"{label:<18}  ", GOOD if good else BAD), text))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], marked: Container[str] = ()) -> None:
        """Print a table with columns as wide as they need. A row that has a cell in `marked` is highlighted."""
        widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
        self.line()
        for index, row in enumerate((head, *rows)):
            cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            style = DIM if index == 0 else MARKED if any(cell in marked for cell in row) else ""
            self.line(f"   {'  '.join(cells)}".rstrip(), style)


def clock(micros: int) -> str:
    """Format a time of day in UTC, to the millisecond."""
    return f"{_moment(micros):%H:%M:%S}.{micros // 1000 % 1000:03}"


def stamp(micros: int) -> str:
    """Format a time in RFC 3339, rounded up to the next millisecond."""
    millis = -(-micros // 1000)
    return f"{_moment(millis * 1000):%Y-%m-%dT%H:%M:%S}.{millis % 1000:03}Z"


def day(micros: int) -> str:
    """Format a date in UTC."""
    return f"{_moment(micros):%Y-%m-%d}"


def _moment(micros: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(micros // 1_000_000, dt.UTC)


@dataclass(slots=True)
class Checks:
    """Counts comparisons, and remembers those that failed."""

    made: int = 0
    differing: list[str] = field(default_factory=list)

    def equal(self, what: str, expected: object, found: object) -> bool:
        """Return whether both are equal; remember the comparison if not."""
        self.made += 1
        if expected != found:
            self.differing.append(f"{what}: expected {expected}, found {found}")
        return expected == found


WIDTH = 31
SAID = ("passed", "score", "rate_limit", "timeout_ms", "current_step", "outcome", "decision", "status")


def brief(statement: refold.Observation) -> str:
    """Describe an observation in at most WIDTH characters."""
    text = _patch_text(statement.type, statement.patch)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def _patch_text(kind: str, patch: Mapping[str, Any]) -> str:
    if kind == "document":
        return _pairs({name: json.loads(value) for name, value in patch["fields"].items()})
    if kind == "pipeline" and "outputs" in patch:
        return _pairs({name: json.loads(value) for name, value in patch["outputs"].items()})
    if kind == "action" and "retries" in patch:
        return str(patch["retries"][-1]["error"])
    if kind == "action":
        return f"asks {patch['tool']}" if "tool" in patch else "has its answer"
    return _pairs({name: patch[name] for name in SAID if name in patch})


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def status_text(entity: refold.EntityView) -> str:
    """Describe an entity by a few of its fields."""
    fields, kind = entity.fields, entity.entity.partition("/")[0]
    if kind == "pipeline":
        done, step = fields["outputs"], f"step {fields['position']} of {fields['position_total']}"
        return f"{fields['status']} {step}, {fields['current_step']}: {done['paid']} of {done['approved']} paid"
    if kind == "tool_config":
        return _pairs({name: fields[name] for name in ("rate_limit", "timeout_ms")})
    if kind == "action":
        return f"{fields['status']}: {fields['tool']} for claim {fields['inputs']['claim']}, no answer"
    return str(fields["fields"]["status"] if kind == "document" else fields["status"])


NEAR = 3
"""A source is listed if it is at most this many causes away from the verdict."""
TIMELINE = 10


class CheckedAnswers:
    """Prints answers from a log about one point of it. Each is compared with what is known from elsewhere."""

    def __init__(self, page: Page, checks: Checks, log: refold.Log, view: refold.StateView) -> None:
        self._page = page
        self._checks = checks
        self._log = log
        self._view = view

    def replay(self, last: AgentReport) -> None:
        """1: every version of the pipeline, and all entities, compared with the agent's notes and the live state."""
        page, equal, view = self._page, self._checks.equal, self._view
        page.head("1  What did the pipeline go through?")
        page.line(f"   Every version of {PIPELINE}, computed again from the log; no tool is called.")
        page.line("   The agent had noted the hash of the state it saw; equal hashes mean equal states.")
        replayed = answers.replay(self._log, view)
        head = ("version", "time", "what happened", "failed tries", "state hash", "agent noted")
        page.table(head, [_version(each) for each in replayed])
        noted = [(each.noted, each.state_hash) for each in replayed if each.noted]
        equal("states that the agent noted", [then for then, _ in noted], [now for _, now in noted])
        state = view[PIPELINE]
        now, then = (state.version, state.state_hash), (last.version, last.state_hash)
        matches = equal("the state the agent last held", then, now)
        page.line()
        word = "matches" if matches else "differs from"
        page.verdict(f"state {word} v{last.version}", matches, state.state_hash)
        equal("state hashes of the live tables", answers.live_hashes(self._log), view.entity_hashes())
        equal("mismatches that verify finds", [], self._log.verify().mismatches)
        if self._checks.differing:
            page.verdict("deterministic: no", False, "what differs is said at the end")
        else:
            text = f"all {len(view)} entities have the hash they had before the agent died"
            page.verdict("deterministic: yes", True, text)

    def changes(self) -> None:
        """2: the silent overwrite, field by field, and that the agent never saw it."""
        page, equal = self._page, self._checks.equal
        page.head(f"2  What changed on {CONFIG} since @{DEPLOYED}?")
        rows = self._log.history(CONFIG, since=f"@{DEPLOYED}", until=self._view.cut)
        head = ("field", "old", "new", "time", "by", "observation")
        page.table(head, [_change(row) for row in rows])
        overwrites = {(name, RELEASED[name], new, DEPLOYER) for name, new in OVERWRITTEN.items()}
        found = {(row.field, row.old, row.new, row.source.agent) for row in rows}
        equal(f"changes since @{DEPLOYED}", overwrites, found)
        read, in_force = answers.planned_by(self._view), self._view[CONFIG].version
        equal("the overwrite stayed unread", True, read < in_force)
        page.line()
        page.line(f"   The agent planned by v{read}, read in its first step. At the end v{in_force} was in force.")

    def evaluation(self, judged: refold.StateView) -> None:
        """3: the verdict, the state it is about, and its sources, nearest first."""
        page, equal, evaluation = self._page, self._checks.equal, judged[EVALUATION]
        fields = evaluation.fields
        page.head("3  Why did the evaluation fail?")
        page.line(f"   {fields['rationale']} Score {fields['score']:.2f}, needed {fields['threshold']}.")
        subject, state_hash = self._view[fields["subject"]], fields["subject_state_hash"]
        about = (fields["subject_version"], state_hash)
        equal("the state that was judged", (subject.version, subject.state_hash), about)
        page.line(f"   It judged {subject.entity} v{about[0]}, state {state_hash[:ID_DIGITS]}.")
        page.line("   Its observation names those it rests on, these name their own causes, and so on.")
        page.line("   Away is how many causes lie between; place is its position in the log.")
        chain = evaluation.why("passed")
        known = [(each, each.observation) for each in chain if each.observation is not None]
        equal("sources found in the log", len(chain), len(known))
        near = sorted(
            (str(each.depth), text.entity, brief(text), text.source.agent, str(each.position),
             each.observation_id[:ID_DIGITS]) for each, text in known if each.depth <= NEAR
        )  # fmt: skip
        page.table(("away", "entity", "what it says", "by", "place", "observation"), near, {CONFIG})
        beyond, start = len(chain) - len(near), known[-1][1].entity
        page.line(f"   and {beyond} more before these, the farthest: {start}")
        overwrite = self._view[CONFIG].observations_of("rate_limit")[0].hex()
        if equal("the overwrite is among the sources", True, overwrite in [each.observation_id for each in chain]):
            page.line()
            page.line(f"   {overwrite[:ID_DIGITS]} is the overwrite of question 2: the refused payments went by it.")

    def crash(self, crashed_at: int, kept: int) -> None:
        """4: the state at the crash, and the events before it.

        Args:
            crashed_at: When the agent died, in microseconds since 1970.
            kept: How many observations were acknowledged.
        """
        page, view = self._page, self._view
        page.head(f"4  What was the state when the agent died, at {clock(crashed_at)}?")
        whole = self._checks.equal("acknowledged observations in the log", kept, view.observations)
        outcome = "all that were acknowledged" if whole else f"{kept} were acknowledged"
        page.line(f"   {view.observations} observations led to it: {outcome}.")
        kinds = Counter(entity.partition("/")[0] for entity in view).most_common(3)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds)
        page.line(f"   They fold into {len(view)} entities ({counts}, ...). Those that matter here:")
        payment = answers.unanswered(view)
        names = [PIPELINE, SESSION, CONFIG, payment.entity, answers.document_of(payment)]
        states = [(name, f"v{view[name].version}", status_text(view[name])) for name in names]
        page.table(("entity", "version", "state"), states)
        moments = answers.timeline(self._log, view.cut, names)[-TIMELINE:]
        lines = [(clock(each.at), each.entity, each.text, each.agent) for each in moments]
        died = (clock(crashed_at), SESSION, "killed (nothing says so in the log)", "")
        page.table(("time", "entity", "what happened", "by"), [*lines, died], {CONFIG})

    def clocks(self, at: str, document: str) -> None:
        """5: one moment by two clocks: what was known then, and what was true then according to today's knowledge."""
        page = self._page
        page.head("5  What was known at that moment, and what was true?")
        page.line("   Later, the provider's statement came in: the last payment had gone through after all.")
        known = self._log.state(document, f"@{CRASH}").fields["fields"]
        true = self._log.state(document, at, "observed").fields["fields"]
        rows = [("known then", known["status"], known.get("reference", "")),
                ("true then", true["status"], true.get("reference", ""))]  # fmt: skip
        page.table((document, "status", "reference"), rows)
        found = (known["status"], true["status"])
        self._checks.equal(f"{document} known, and true", ("approved", "paid"), found)
        self._checks.equal(f"the root at @{CRASH}, asked again", self._view.root, self._log.rebuild(f"@{CRASH}").root)


def _version(each: RefoldedVersion) -> tuple[str, ...]:
    compared = "" if not each.noted else "same" if each.noted == each.state_hash else each.noted[:ID_DIGITS]
    tries = "" if each.failed_tries is None else str(each.failed_tries)
    return (f"v{each.version}", clock(each.at), each.what, tries, each.state_hash[:ID_DIGITS], compared)


def _change(row: refold.Row) -> tuple[str, ...]:
    when, observation = clock(row.observed_at), row.observation[:ID_DIGITS]
    return (row.field, str(row.old), str(row.new), when, row.source.agent, observation)
