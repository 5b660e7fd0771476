"""Calls that a run's code makes, in addition to steps: models, decisions, reads, observations, clock and randomness.

Each request is a call of the run: recorder/calls.py makes it, or answers it from the recording.
`CallTarget` has the requests of tools, clients and nested runs; recorder/context.py finds the run that their code
belongs to. `head_of` makes the head of a run: its arguments, as they are recorded.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, overload

from refold.agents.journal.record import Recording
from refold.agents.journal.volatile import Volatile
from refold.agents.recorder.answers import Answers, WithinRun
from refold.agents.recorder.calls import CallRecorder
from refold.agents.recorder.children import Children, RunOptions, begin_child
from refold.agents.recorder.context import Strays
from refold.agents.recorder.plain import decoded, kept
from refold.agents.recorder.run_backend import Nondeterminism, ReadView
from refold.agents.recorder.run_sinks import MemorySink, RunSink
from refold.agents.recorder.tools import Tool


def head_of(
    run: str, agent: str, *, version: str = "", code_version: str = "", kind: str = "", task: str = "",
    title: str = "", user: str = "", seed: int | None = None, input: Any = None,
    state: Mapping[str, Any] | None = None, tags: Iterable[str] = (), metadata: Mapping[str, Any] | None = None,
) -> Recording:  # fmt: skip
    """Return the recording of a run that has done nothing yet.

    Raises:
        InputError: The input, the state or the metadata cannot be recorded.
    """
    return Recording(
        run=run, agent=agent, version=version, code_version=code_version, kind=kind, task=task, title=title,
        user=user, seed=seed, input=decoded(kept(input, "the run's input")),
        state=decoded(kept(dict(state or {}), "the run's state")), tags=tuple(tags),
        metadata=decoded(kept(dict(metadata or {}), "the run's metadata")),
    )  # fmt: skip


class CallTarget:
    """The part of a run that implements Caller."""

    id: str
    task: str
    answers: Answers
    _is_live: bool
    _answers: Answers
    _calling: CallRecorder
    _children: Children
    _on_stray: Callable[[str], Exception] | None
    _sink: RunSink

    @property
    def is_in_memory(self) -> bool:
        """See Caller (recorder/context.py)."""
        return isinstance(self._sink, MemorySink)

    def require_no_recording(self, agent: str) -> None:
        """See Caller (recorder/context.py)."""
        if not self._is_live:
            departure = WithinRun(self.id, agent, "the recording has nothing of it")
            self._answers.depart(departure)
            raise departure

    def is_asking(self, inside: tuple[Any, ...]) -> bool:
        """See Caller (recorder/context.py)."""
        return self._calling in inside

    def begin_child_run(self, head: Recording, options: RunOptions, log: str) -> Self:
        """See Caller (recorder/context.py)."""
        self._children.require_log(log)
        child: Self = begin_child(self, self._calling, self._children, head, options)
        return child

    def stray(self, what: str) -> Exception | None:
        """See Caller (recorder/context.py)."""
        return None if self._on_stray is None else self._on_stray(what)

    def call_tool(self, found: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool as part of this run. Returns an awaitable if the tool is async."""
        return self._calling.tool(found, args, kwargs)


P = ParamSpec("P")
T = TypeVar("T")
Key = Callable[[Any], Any]


class RunCalls(CallTarget):
    """The calls that a run's author makes by name."""

    _chance: Nondeterminism
    _dice: random.Random

    @overload
    def model(
        self, client: Callable[..., T], /, *args: Any, returns: Any, ignore: Iterable[str] = (), key: Key | None = None,
        **kwargs: Any,
    ) -> T: ...  # fmt: skip

    @overload
    def model(self, client: Callable[..., T], /, *args: Any, ignore: Iterable[str], **kwargs: Any) -> T: ...

    @overload
    def model(self, client: Callable[..., T], /, *args: Any, key: Key, **kwargs: Any) -> T: ...

    @overload
    def model(self, client: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def model(  # type: ignore[misc]  # a client's own parameters are not named as these
        self, client: Callable[..., Any], /, *args: Any, returns: Any = None, ignore: Iterable[str] = (),
        key: Key | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Call a model's client, sync or async, with these arguments.

        Args:
            client: The function to call.
            args: Its positional arguments.
            returns: The type of the answer, if it is not JSON.
            ignore: Paths of the request that are not compared when a recorded call is searched, as for a tool.
            key: Maps the request to the value that is compared instead, as for a tool.
            kwargs: Its keyword arguments.

        Returns:
            The answer; an awaitable if the client is async.

        Raises:
            InputError: The request or the answer cannot be recorded.
        """
        return self._calling.model(client, args, kwargs, returns, Volatile(ignore, key))

    def client(self, client: T, *, ignore: Iterable[str] = (), key: Key | None = None) -> T:
        """Return an SDK's client, sync or async, whose HTTP exchanges belong to this run:
        `run.client(openai.OpenAI())`.

        The SDK is used unchanged, also for streams, raw responses and its own retries. In a replay its objects are
        built from the recorded bytes.

        Args:
            client: The SDK's client, or one of httpx.
            ignore: Paths in the JSON of requests that are not compared when a recorded exchange is searched.
            key: Maps that JSON to the value that is compared instead.

        Raises:
            InputError: The client does not use httpx.
        """
        from refold.agents.capture.httpx_transport import recorded_client

        return recorded_client(self._calling, client, self._chance.monotonic_s, Volatile(ignore, key))

    def child(
        self, agent: str, *, version: str = "", code_version: str = "", input: Any = None,
        state: Mapping[str, Any] | None = None, seed: int | None = None, task: str = "", title: str = "",
        user: str = "", kind: str = "", entry: str = "", tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None, sample: float = 1, strays: Strays = "refuse",
    ) -> Self:  # fmt: skip
        """Begin a nested run of another agent, in this run's log. A context manager.

        The same as `log.run` in this run's code, for code without a log, with the same arguments (docs/AGENTS.md).

        Raises:
            Departure: A recording answers this run, and does not hold the nested run.
            InputError: It is called in a tool of the run.
        """
        head = head_of(
            "", agent, version=version, code_version=code_version, kind=kind, task=task, title=title, user=user,
            seed=seed, input=input, state=state, tags=tags, metadata=metadata,
        )  # fmt: skip
        return self.begin_child_run(head, RunOptions(entry, sample, strays), "")

    def decide(self, choice: T, why: str = "", options: Iterable[Any] | None = None) -> T:
        """Record a decision.

        Args:
            choice: What was chosen.
            why: The reason.
            options: The alternatives.

        Returns:
            The choice.

        Raises:
            InputError: A value cannot be recorded.
        """
        request = {"choice": choice, "why": why, "options": None if options is None else list(options)}
        self._calling.note("decide", "", request)
        return choice

    def read(self, entity: str, at: Any = None) -> ReadView:
        """Read an entity, now or at a point. The run records the read, and which state it returned.

        Args:
            entity: The entity.
            at: The point (WHEN); None is now.

        Raises:
            NotAnswerable: Nothing is known of the entity at that point.
        """
        return self._calling.read(entity, at)

    def observe(self, entity: str, patch: Mapping[str, Any], **given: Any) -> str:
        """Record an observation of an entity. Its causes are what this step read, unless `causes` is given.

        Args:
            entity: The entity.
            patch: Its fields.
            given: More arguments of Log.observe.

        Returns:
            The observation's id.
        """
        return self._calling.observe(entity, patch, given)

    def now(self) -> dt.datetime:
        """Return the time, UTC."""
        micros = self._calling.value("now", self._chance.now_micros)
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)

    def random(self) -> float:
        """Return a number in [0, 1), from the run's seed if it has one."""
        return float(self._calling.value("random", self._dice.random))

    def uuid(self) -> str:
        """Return a newly generated id."""
        return str(self._calling.value("uuid", self._chance.new_id))
