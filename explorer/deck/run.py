"""The screen of a run: its steps, and panes for one of them. It opens at the failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Static

from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.avro.errors import NotAnswerable
from refold.explorer.deck.frame import Chooser, DeckColumn, DeckScreen, Pane, Rows
from refold.explorer.deck.step_panes import PANES, pane_text
from refold.explorer.deck.texts import failure_text, lines, outcome_text, value_text
from refold.explorer.queries.open_runs import UnendedRun
from refold.explorer.queries.query import Query
from refold.explorer.queries.run import RunQuery, StepsQuery, clear_json, known_of
from refold.explorer.queries.run_names import known_run
from refold.explorer.queries.run_shapes import failure_json
from refold.explorer.views.recorded_text import duration, visible
from refold.explorer.views.step_view import failed_steps, opening_step, step_at, step_rows
from refold.streams.cut import Cut

AROUND = 500


class RunAnswer(NamedTuple):
    """A run at a cut.

    Attributes:
        recording: The recording; None if the run's content cannot be read. `clear` then has the parts that are stored
            in clear.
        known: What is known of a run that has not ended.
    """

    run: str
    cut: Cut
    recording: Recording | None
    clear: dict[str, Any]
    forks: tuple[str, ...]
    known: UnendedRun | None = None


class RunScreen(DeckScreen):
    """One run, opened at a step.

    Args:
        step: The number of the step; 0: the one that opening_step returns.
    """

    about = (
        "A run: its steps on the left, the chosen step on the right. It opens at the failure.\n"
        "The panes: 1 what it did, 2 the state before and after, 3 what the model was asked, 4 what it had read."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "pane(0)", "did", show=False), Binding("2", "pane(1)", "state", show=False),
        Binding("3", "pane(2)", "model", show=False), Binding("4", "pane(3)", "read", show=False),
        Binding("right_square_bracket", "turn(1)", "next pane", key_display="]"),
        Binding("left_square_bracket", "turn(-1)", "pane before", key_display="[", show=False),
        Binding("f", "failure", "failure"),
        Binding("r", "raw", "as recorded", show=False),
        Binding("e", "entity", "entity"),
        Binding("x", "related", "runs"),
        Binding("space", "mark", "mark", show=False),
        Binding("c", "compare", "compare"),
    ]  # fmt: skip

    def __init__(self, run: str, step: int = 0, at: str = "", *, is_live: bool | None = None) -> None:
        super().__init__()
        self._run, self._step, self._at = run, step, at
        self.is_live = not at if is_live is None else is_live
        self._pane = 0
        self._is_raw = False
        self._answer: RunAnswer | None = None
        self._shown: dict[str, Any] | None = None

    @property
    def name_shown(self) -> str:
        """The name of the screen, with the run's title or else its id."""
        recording = None if self._answer is None else self._answer.recording
        return f"Run {(recording.title if recording else '') or self._run}"

    def compose_answer(self) -> ComposeResult:
        """Yield the steps, with the pane next to them."""
        with Horizontal():
            yield Rows([DeckColumn("", 2), DeckColumn("#", 4), DeckColumn("step")], id="steps")
            with Vertical():
                yield Static(id="tabs", markup=False)
                yield Pane(id="pane")

    async def load(self) -> str:
        """Ask `refold run show`, then show the step."""
        at = self.deck.at or ("" if self.is_live else self._at)
        if self.deck.at:
            self.is_live = False
        given = self._run

        def asked(log: AgentLog) -> tuple[RunAnswer, list[dict[str, Any]], int]:
            cut = log.point(at or None).cut
            run = known_run(log, given, cut)
            forks = tuple(row.run for row in log.runs(parent=run, at=str(cut), limit=50))
            try:
                recording = log.recording(run, cut)
            except NotAnswerable as error:
                return RunAnswer(run, cut, None, clear_json(log, run, cut, error), forks), [], 0
            number = min(self._step or opening_step(recording), len(recording.steps))
            rows = list(step_rows(log, recording, number, AROUND, cut))
            known = known_of(log, recording, cut, is_now=not at)
            return RunAnswer(run, cut, recording, {}, forks, known), rows, number

        answer, rows, number = await self.ask(asked)
        self._answer, self._run, self._step = answer, answer.run, number
        self.cut_text = str(answer.cut)
        self.queries = [RunQuery(answer.run, self.cut_text)]
        if answer.recording is not None and answer.recording.outcome:
            self.is_live = False  # it has ended, so nothing more is recorded
        table = self.query_one("#steps", Rows)
        table.show([
            (str(row["number"]), [
                outcome_text("failed" if row["failed"] else row["outcome"]), str(row["number"]), _step_name(row),
            ])
            for row in rows
        ])  # fmt: skip
        if rows:
            table.move_cursor(row=number - rows[0]["number"])
        self._show_step()
        return ""

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the step under the cursor."""
        number = int(event.row_key.value or 0)
        # A new layout reports its first row as highlighted, although the cursor is on another row by now.
        if event.cursor_row == event.data_table.cursor_row and number and number != self._step:
            self._step = number
            self._show_step()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Move the focus to the pane."""
        self.query_one(Pane).focus()

    def _show_step(self) -> None:
        answer = self._answer
        if answer is None:
            return
        if answer.recording is None or not answer.recording.steps:
            self._show_text(lines(_head(answer)))
            return
        recording, number, cut = answer.recording, self._step, answer.cut

        def show(found: tuple[dict[str, Any], Query]) -> None:
            self._shown, knew = found
            asked = [knew] if self._shown["has_entity"] else []
            self.queries = [RunQuery(answer.run, str(cut)), *asked, StepsQuery(answer.run, str(cut), number)]
            self._show_pane()

        self.answer_then(lambda log: step_at(log, recording, number, cut), show)

    def _show_pane(self) -> None:
        if self._shown is None or self._answer is None or self._answer.recording is None:
            return
        text = pane_text(self._pane, self._shown, is_raw=self._is_raw)
        recording = self._answer.recording
        failure = failure_json(recording.failure)
        if self._pane == 0 and failure is not None and self._step == len(recording.steps):
            text.append("\n\n").append_text(Text("the run ended with", "dim")).append("\n")
            text.append_text(failure_text(failure))
        if self._pane == 0 and self._answer.known is not None and self._step == len(recording.steps):
            text.append("\n\n").append_text(Text(visible(self._answer.known.text), "yellow"))
        self._show_text(text)

    def _show_text(self, text: Text) -> None:
        tabs = Text(no_wrap=True, overflow="ellipsis")
        for index, name in enumerate(PANES):
            tabs.append(f" {index + 1} {name} ", "reverse" if index == self._pane else "dim").append(" ")
        self.query_one("#tabs", Static).update(tabs)
        self.query_one(Pane).show(text)

    def action_pane(self, index: int) -> None:
        """Choose a pane."""
        self._pane = index
        self._show_pane()

    def action_turn(self, by: int) -> None:
        """Choose the next or the previous pane."""
        self.action_pane((self._pane + by) % len(PANES))

    def action_raw(self) -> None:
        """Switch between requests and answers as recorded, and as messages."""
        self._is_raw = not self._is_raw
        self._show_pane()

    def action_failure(self) -> None:
        """Go to the next failed step. After the last, start again at the first."""
        recording = None if self._answer is None else self._answer.recording
        failed = [] if recording is None else failed_steps(recording)
        if not failed:
            self.say_problem("no step failed")
            return
        self._step = next((each for each in failed if each > self._step), failed[0])
        self.action_again()

    def action_entity(self) -> None:
        """Open an entity that the step read or wrote, at the moment of the read or write."""
        found = dict(_entities(self._shown)) if self._shown is not None else {}
        if len(found) == 1:
            self._open_entity(next(iter(found)))
        elif found:
            self.app.push_screen(Chooser("Which entity?", list(found.items())), self._open_entity)
        else:
            self.say_problem("this step read and observed no entity")

    def _open_entity(self, entity: str | None) -> None:
        if entity is None or self._shown is None:
            return
        read = next((each for each in self._shown["reads"] if each["entity"] == entity), None)
        self.deck.open_entity(entity, (read or {}).get("cut") or self.cut_text, self.cut_text)

    def action_related(self) -> None:
        """Open a run that this one belongs to, or one that belongs to it."""
        found = [] if self._answer is None else list(_related_runs(self._answer))
        if not found:
            self.say_problem("no other run belongs to this one")
            return
        self.app.push_screen(Chooser("Which run?", found), self._open_run)

    def _open_run(self, run: str | None) -> None:
        if run is not None:
            self.deck.open_run(run, at=self.cut_text, is_live=self.is_live)

    def action_mark(self) -> None:
        """Mark this run, to compare it with another."""
        self.deck.marked = self._run
        self.app.notify(f"{self._run} is marked; press c on another run", markup=False)

    def action_compare(self) -> None:
        """Compare with the marked run; else with the run that this was forked from; else with the first fork of this
        run.
        """
        answer = self._answer
        if answer is None or answer.recording is None:
            return
        marked = "" if self.deck.marked == answer.run else self.deck.marked
        parent, forks = answer.recording.parent, answer.forks
        if marked or parent:
            self.deck.open_compare(marked or parent, answer.run, self.cut_text)
        elif forks:
            self.deck.open_compare(answer.run, forks[0], self.cut_text)
        else:
            self.say_problem("this run has no fork; mark another run with space first")


def _step_name(row: dict[str, Any]) -> str:
    took = "" if row["milliseconds"] is None else f" {duration(row['milliseconds'])}"
    retries = f" ↻{row['retries']}" if row["retries"] else ""
    name = row["name"] or ", ".join(row["calls"])
    return f"{name[: 19 - len(took) - len(retries)]}{retries}{took}"


def _head(answer: RunAnswer) -> Iterator[Text]:
    """Yield what is shown of a run that has no steps or whose content cannot be read."""
    if answer.recording is None:
        yield Text(str(answer.clear["content"] or "its content cannot be read"), "yellow")
        yield value_text({name: value for name, value in answer.clear.items() if name != "content"})
        return
    yield Text("no step is recorded at this cut")
    if answer.known is not None:
        yield Text(visible(answer.known.text), "yellow")
    failure = failure_json(answer.recording.failure)
    if failure is not None:
        yield failure_text(failure)


def _entities(shown: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the entities that a step read or observed, each with its line in the list of choices."""
    for each in shown["reads"]:
        yield each["entity"], f"{each['entity']}  read, v{each['version']}" + (", stale" if each["stale"] else "")
    for call in shown["calls"]:
        if call["kind"] == "observe":
            yield call["name"], f"{call['name']}  observed"


def _related_runs(answer: RunAnswer) -> Iterator[tuple[str, str]]:
    recording = answer.recording
    if recording is not None and recording.parent:
        yield recording.parent, f"{recording.parent}  this run is a fork of it"
    if recording is not None and recording.caller:
        yield recording.caller, f"{recording.caller}  this run began in its step {recording.caller_step}"
    for child in () if recording is None else recording.children.values():
        yield child.run, f"{child.run}  {child.agent}, began in step {child.caller_step}"
    for fork in answer.forks:
        yield fork, f"{fork}  a fork of this run"
