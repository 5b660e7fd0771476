"""What a run's code requests, in addition to steps: models, decisions, reads, observations, clock and randomness.

Each request is a call of the run: recorder/calls.py makes it, or answers it from the recording.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, overload

from refold.agents.journal.volatile import Volatile
from refold.agents.recorder.call_target import CallTarget
from refold.agents.recorder.children import RunOptions
from refold.agents.recorder.context import Strays
from refold.agents.recorder.run_backend import Nondeterminism, ReadView
from refold.agents.recorder.run_head import head_of

P = ParamSpec("P")
T = TypeVar("T")
Key = Callable[[Any], Any]


class Asks(CallTarget):
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
        """Call a model's client, sync or async, with these arguments. returns: the type of the answer, if it is not
        JSON.

        ignore: parts of the request that do not count when a recorded call is searched. key: the value to search by
        instead. Both as for a tool.
        """
        return self._calling.model(client, args, kwargs, returns, Volatile(ignore, key))

    def client(self, client: T, *, ignore: Iterable[str] = (), key: Key | None = None) -> T:
        """Return an SDK's client, sync or async, whose HTTP exchanges belong to this run:
        `run.client(openai.OpenAI())`.

        The SDK is used unchanged, also for streams, raw responses and its own retries. In a replay its objects are made
        from the recorded bytes.

        Args:
            client: The SDK's client, or one of httpx.
            ignore: Paths in the JSON of requests that do not count when a recorded exchange is searched.
            key: Maps that JSON to the value by which an exchange is searched instead.

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
        return self.begin_within(head, RunOptions(entry, sample, strays), "")

    def decide(self, choice: T, why: str = "", options: Iterable[Any] | None = None) -> T:
        """Record a decision, its reason and its alternatives. Returns the choice."""
        asked = {"choice": choice, "why": why, "options": None if options is None else list(options)}
        self._calling.note("decide", "", asked)
        return choice

    def read(self, entity: str, at: Any = None) -> ReadView:
        """Read an entity, now or at a WHEN; that it was read, and which state of it, is recorded."""
        return self._calling.read(entity, at)

    def observe(self, entity: str, patch: Mapping[str, Any], **given: Any) -> str:
        """Record an observation of an entity, caused by what this step read. Further keywords as Log.observe."""
        return self._calling.observe(entity, patch, given)

    def now(self) -> dt.datetime:
        """The time, UTC."""
        micros = self._calling.value("now", self._chance.now_micros)
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)

    def random(self) -> float:
        """A number in [0, 1), from the run's seed if it has one."""
        return float(self._calling.value("random", self._dice.random))

    def uuid(self) -> str:
        """A fresh id."""
        return str(self._calling.value("uuid", self._chance.new_id))
