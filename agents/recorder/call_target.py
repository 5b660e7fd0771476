"""What tools, clients and nested runs request from the run that their code belongs to (recorder/context.py finds
it)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from refold.agents.journal.record import Recording
from refold.agents.recorder.answers import Answers, WithinRun
from refold.agents.recorder.calls import Calling
from refold.agents.recorder.children import Children, RunOptions, begin_child
from refold.agents.recorder.tools import Tool


class CallTarget:
    """The part of a run that implements Caller."""

    id: str
    task: str
    answers: Answers
    _is_live: bool
    _answers: Answers
    _calling: Calling
    _children: Children
    _on_stray: Callable[[str], Exception] | None

    def require_no_recording(self, agent: str) -> None:
        """As Caller."""
        if not self._is_live:
            departure = WithinRun(self.id, agent, "the recording has nothing of it")
            self._answers.depart(departure)
            raise departure

    def is_asking(self, inside: tuple[Any, ...]) -> bool:
        """As Caller."""
        return self._calling in inside

    def begin_within(self, head: Recording, given: RunOptions, log: str) -> Self:
        """As Caller."""
        self._children.require_log(log)
        child: Self = begin_child(self, self._calling, self._children, head, given)
        return child

    def stray(self, what: str) -> Exception | None:
        """As Caller."""
        return None if self._on_stray is None else self._on_stray(what)

    def call_tool(self, found: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool as part of this run; an awaitable where it is async."""
        return self._calling.tool(found, args, kwargs)
