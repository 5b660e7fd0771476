"""Clients and tools whose answers arrive later: generators, iterators, awaitables that no annotation announces."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog
from refold.agents.recorder.failures import Unfinished
from refold.agents.recorder.streamed_answers import stream_pieces
from refold.avro.errors import InputError

made: list[str] = []
"""The calls that were really made."""


@dataclass(frozen=True)
class Token:
    """A value that is not JSON."""

    text: str
    place: int


def tokens(text: str) -> Generator[Token, None, int]:
    """Yield one token for each word, then return how many there were."""
    made.append(text)
    for place, word in enumerate(text.split()):
        if word == "break!":
            raise ConnectionError("the line broke")
        yield Token(word, place)
    return len(text.split())


async def tokens_async(text: str) -> AsyncIterator[Token]:
    """As `tokens`, without the count."""
    for each in tokens(text):
        await asyncio.sleep(0)
        yield each


async def create(text: str) -> AsyncIterator[Token]:
    """Return a stream that must be awaited, as in the SDKs."""
    await asyncio.sleep(0)
    return tokens_async(text)


async def ask(text: str) -> list[str]:
    """Return an answer."""
    made.append(text)
    await asyncio.sleep(0)
    if "break!" in text:
        raise ConnectionError("the line broke")
    return text.split()


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function as a decorator does that hides what it wraps."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


@refold.tool(effect="read", name="rows")
def rows(text: str) -> Iterator[Token]:
    """A tool that returns row by row."""
    return iter([*tokens(text)])


def collect(source: Iterator[Any], most: int = 99) -> list[Any]:
    """Return the pieces, and the error after them."""
    found: list[Any] = []
    with closing(source):  # type: ignore[type-var]
        try:
            while len(found) < most:
                found.append(next(source))
        except StopIteration as stop:
            found.append(stop.value)
        except ConnectionError as error:
            found.append(str(error))
    return found


async def taken_async(source: AsyncIterator[Any], most: int = 99) -> list[Any]:
    """As `taken`."""
    found: list[Any] = []
    async with aclosing(source):  # type: ignore[type-var]
        try:
            while len(found) < most:
                found.append(await anext(source))
        except StopAsyncIteration:
            pass
        except ConnectionError as error:
            found.append(str(error))
    return found


async def result_of(answer: Awaitable[Any]) -> Any:
    """Return the answer, or its error."""
    try:
        return await answer
    except ConnectionError as error:
        return str(error)


WAYS: dict[str, Callable[[refold.Run, str], Awaitable[Any]]] = {}


def way(function: Callable[[refold.Run, str], Awaitable[Any]]) -> Callable[[refold.Run, str], Awaitable[Any]]:
    """Register one way to call."""
    WAYS[function.__name__] = function
    return function


@way
async def by_generator(run: refold.Run, text: str) -> Any:
    return collect(run.model(tokens, text))


@way
async def by_hidden_generator(run: refold.Run, text: str) -> Any:
    return collect(run.model(hidden(tokens), text))


@way
async def by_async_generator(run: refold.Run, text: str) -> Any:
    return await taken_async(run.model(tokens_async, text))


@way
async def by_stream_that_is_awaited(run: refold.Run, text: str) -> Any:
    return await taken_async(await run.model(create, text))


@way
async def by_hidden_stream_that_is_awaited(run: refold.Run, text: str) -> Any:
    return await taken_async(await run.model(hidden(create), text))


@way
async def by_hidden_coroutine(run: refold.Run, text: str) -> Any:
    return await result_of(run.model(hidden(ask), text))


@way
async def by_partial(run: refold.Run, text: str) -> Any:
    return await result_of(run.model(functools.partial(ask), text))


@way
async def by_task(run: refold.Run, text: str) -> Any:
    return await result_of(run.model(lambda given: asyncio.ensure_future(ask(given)), text))


@way
async def by_part_of_a_generator(run: refold.Run, text: str) -> Any:
    return collect(run.model(tokens, text), most=2)


@way
async def by_part_of_an_async_generator(run: refold.Run, text: str) -> Any:
    return await taken_async(run.model(tokens_async, text), most=2)


@way
async def by_tool(run: refold.Run, text: str) -> Any:
    return collect(rows(text)) if "break!" not in text else None


@pytest.mark.parametrize("text", ["one two three", "one break! three", ""])
@pytest.mark.parametrize("in_step", [True, False])
@pytest.mark.parametrize("name", WAYS)
def test_later_items_are_recorded_as_they_were_consumed(tmp_path: Path, name: str, in_step: bool, text: str) -> None:
    seen: list[Any] = []

    async def agent(run: refold.Run) -> Any:
        if not in_step:
            found = await WAYS[name](run, text)
        else:
            async with run.step("ask"):
                found = await WAYS[name](run, text)
                found = [found, await WAYS[name](run, text)]
        async with run.step("keep"):
            run.state["found"] = found
        seen.append(found)
        return found

    with refold.open(f"file:{tmp_path}/log") as log:
        made.clear()
        output = asyncio.run(log.run("tests", id="r1").drive_async(agent))
        made.clear()
        replayed = log.replay("r1", agent)
        assert replayed.is_same, replayed.parting
        assert asyncio.run(log.fork("r1", at=0, policy="recorded").drive_async(agent)) == output
        assert seen == [output] * 3
        assert made == []


def test_items_consumed_after_the_step_are_neither_recorded_nor_given(tmp_path: Path) -> None:
    def agent(run: refold.Run) -> Any:
        with run.step("ask"):
            words = run.model(tokens, "one two three")
            first = next(words).text
        with pytest.raises(Unfinished):
            next(words)
        return first

    with refold.open(f"file:{tmp_path}/log") as log:
        assert log.run("tests", id="r1").drive(agent) == "one"
        (call,) = log.recording("r1").steps[0].calls
        assert call.answer["end"] == "left"
        assert len(call.answer["refold.pieces"]) == 1


def test_unserializable_item_fails_the_call_and_names_its_place(tmp_path: Path) -> None:
    def agent(run: refold.Run) -> Any:
        return list(run.model(lambda: iter([1, {"handler": print}])))

    with refold.open(f"file:{tmp_path}/log") as log, pytest.raises(InputError, match="handler"):
        log.run("tests", id="r1").drive(agent)


class LeavesUnread:
    """Ways in which code neither reads a stream to its end nor closes it. `kept` keeps the stream alive."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    def calls(self, run: refold.Run) -> list[Any]:
        """Leave it outside of any step, then call something else."""
        first = self.begun(run.model(tokens, "a b c"))
        return [first, run.model(str.upper, "d")]

    def steps(self, run: refold.Run) -> list[Any]:
        """Leave it outside of any step, then begin a step."""
        first = self.begun(run.model(tokens, "a b c"))
        return [first, run.step("upper", str.upper, "d")]

    def ends(self, run: refold.Run) -> list[Any]:
        """Leave it outside of any step, then end."""
        return [self.begun(run.model(tokens, "a b c"))]

    def ends_in_a_step(self, run: refold.Run) -> list[Any]:
        """Leave it in a step, which is in a generator that nobody closes."""

        def words() -> Iterator[Token]:
            with run.step("stream"):
                yield from run.model(tokens, "a b c")

        return [self.begun(words())]

    async def ends_in_an_async_step(self, run: refold.Run) -> list[Any]:
        """As `ends_in_a_step`; the loop closes the generator at some later time."""

        async def words() -> AsyncIterator[Token]:
            async with run.step("stream"):
                async for each in run.model(tokens_async, "a b c"):
                    yield each

        async for each in words():
            return [each.text]
        return []

    def begun(self, stream: Any) -> str:
        """Return its first word."""
        self.kept.append(stream)
        return str(next(stream).text)


@pytest.mark.parametrize("name", ["calls", "steps", "ends", "ends_in_a_step", "ends_in_an_async_step"])
def test_partly_read_stream_is_recorded_as_far_as_it_was_read(log: AgentLog, name: str) -> None:
    for _ in range(3):
        run, agent = log.run("a"), getattr(LeavesUnread(), name)
        asyncio.run(run.drive_async(agent))
        recording = log.recording(run.id)
        assert list(broken(recording)) == []
        (stream, *others) = [call for step in recording.steps for call in step.calls]
        assert (recording.outcome, [step.outcome for step in recording.steps]) == (
            "succeeded", ["succeeded"] * len(recording.steps),
        )  # fmt: skip
        assert (stream_pieces(stream.answer)[0]["text"], stream.answer["end"]) == ("a", "left")
        assert [call.answer for call in others] == (["D"] if name == "calls" else [])
        begun = len(made)
        assert log.replay(run.id, agent).is_same
        assert len(made) == begun


def test_stream_cannot_be_read_after_another_call(log: AgentLog) -> None:
    with log.run("a") as run:
        stream = run.model(tokens, "a b c")
        assert next(stream).text == "a"
        assert run.model(str.upper, "d") == "D"
        with pytest.raises(Unfinished, match="ended before its calls"):
            next(stream)
    assert [len(step.calls) for step in log.recording(run.id).steps] == [1, 1]


@pytest.mark.parametrize("of", ["generator", "awaited"])
def test_timeout_around_a_stream_recurs_in_a_replay(log: AgentLog, of: str) -> None:
    async def endless() -> AsyncIterator[str]:
        yield "a"
        await asyncio.Event().wait()

    async def endless_later() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        return endless()

    async def agent(run: refold.Run) -> list[str]:
        got: list[str] = []
        async with run.step("ask"):
            try:
                async with asyncio.timeout(None) as patience:
                    stream = run.model(endless) if of == "generator" else await run.model(endless_later)
                    async for each in stream:
                        got.append(each)
                        patience.reschedule(asyncio.get_running_loop().time())
            except TimeoutError:
                got.append("late")
        return got

    run = log.run("a")
    assert asyncio.run(run.drive_async(agent)) == ["a", "late"]
    replayed = log.replay(run.id, agent)
    assert replayed.is_same
    assert replayed.now.output == ["a", "late"]
