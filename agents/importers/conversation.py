"""Import a recorded conversation as observations: the mapping that all importers share.

    run/<run>                how it began and how it ended
    agent_session/<run>      each message, of any role, is one observation that appends to `messages`
    step/<run>#<n>           one for each assistant message, n from 1; pending until its calls are answered
    action/<run>#<n>.<k>     one for each tool call, k from 1: first the call, then the verbatim result
    document/<kind>-<id>     what a tool result says about an object
    evaluation/<run>         the score, if the source has one

Links: run `in` session, step `of` run, action `of` step, evaluation `of` run, and action `read`, `wrote` or
`returned` document. Causes lead back: from a document to its action's result, from there to the message that
carried it and to the call, from the call to its step, from the step to its message and the messages before
that.

Nothing is lost. A result that answers no call (see below) is stored in the session's messages and errors, and creates
no action. A call without a result ends as `unknown`, and its step stays pending.

A conversation that a call of another conversation started is that one's child: its run is linked `of` the run of the
parent, and `of` the step of that call if the call is known.

Everything here is a function of the conversation. So importing it again, wholly or in part, gives the same ids: seq
counts the observations from 0, and each observation has the time of its message. A message without a time gets a
synthetic time by its position in the order, and the run records this in `synthetic_time`. A synthetic time is never
stored in a field: started_at, ended_at and the like exist only if the source has them, so a run without any time has
none of them. Clocks may disagree: an end is never observed before its begin.

Which tool result answers which call:

Providers repeat call ids within one conversation, results come in any order, and older formats have no ids. So a
result answers an open call of the newest step that has a matching one: the call with the same id if the result has an
id, else the call with the same tool name, else the first open call. Each call is answered once. A result that matches
no open call is an orphan.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from refold.agents.importers.json_lines import parse_json
from refold.agents.importers.messages import Message, ToolCall
from refold.agents.importers.model import Conversation, Judgement, Observe
from refold.agents.importers.times import message_times
from refold.agents.importers.turn_keys import TranscriptTurns, actions_of, keys_of
from refold.avro.errors import InputError
from refold.avro.observation import Kind, Link, Source, Value

Place: TypeAlias = tuple[int, int]
"""A call: the number of its step among the assistant messages, and its position in the step, both from 1."""


def answers(messages: Sequence[Message]) -> dict[int, Place]:
    """Match each tool result to the call that it answers.

    Args:
        messages: All messages of a conversation, in order.

    Returns:
        The answered call by the result's index in `messages`; orphans are not in it.
    """
    steps: list[dict[int, ToolCall]] = []
    found: dict[int, Place] = {}
    for index, message in enumerate(messages):
        if message.role == "assistant":
            steps.append(dict(enumerate(message.calls, start=1)))
        elif message.is_result:
            place = _open_call(steps, message)
            if place is not None:
                found[index] = place
                del steps[place[0] - 1][place[1]]
    return found


def _open_call(steps: Sequence[dict[int, ToolCall]], result: Message) -> Place | None:
    for number in range(len(steps), 0, -1):
        fitting = [place for place, call in steps[number - 1].items() if _fits(call, result)]
        if fitting:
            named = [place for place in fitting if steps[number - 1][place].tool == result.name]
            return number, (named or fitting)[0]
    return None


def _fits(call: ToolCall, result: Message) -> bool:
    if result.tool_call_id:
        return call.call_id == result.tool_call_id
    return not result.name or call.tool == result.name


Patch: TypeAlias = dict[str, object]
RELATIONS = {"read": "read", "write": "wrote", None: "returned"}
LABEL_CHARACTERS_MAX = 200
FAILED = "Error"


class Imported(NamedTuple):
    """The result of an import: the number of conversations, and how many of them have no time at all."""

    conversations: int
    without_time: int


def import_conversation(
    conversation: Conversation, observe: Observe, done: Callable[[TranscriptTurns], None] = lambda turns: None
) -> Imported:
    """Observe one conversation, message by message, and then the conversations that its calls started.

    Args:
        conversation: From an importer's `read`.
        observe: A log's `observe`, which records each observation.
        done: Called with the turns of each conversation that is an agent's own transcript, a parent's first.

    Returns:
        The number of conversations, and how many of them have no time at all.

    Raises:
        InputError: A value cannot be observed.
    """
    count, without_time = 0, 0
    # Each parent with its remaining children, which are read one at a time.
    waiting: list[tuple[_Import | None, Iterator[tuple[str, Conversation]]]] = [(None, iter([("", conversation)]))]
    while waiting:
        parent, children = waiting[-1]
        child = next(children, None)
        if child is None:
            waiting.pop()
            continue
        call_id, given = child
        importing = _Import(given, observe)
        importing.all()
        caller = "" if parent is None else importing.started_by(parent, call_id)
        if given.grows:
            done(TranscriptTurns(given.run, keys_of(given.messages), caller, actions_of(given.run, given.messages)))
        count, without_time = count + 1, without_time + (not importing.is_timed)
        waiting.append((importing, iter(given.children)))
    return Imported(count, without_time)


@dataclass(slots=True)
class _Step:
    """An unfinished step.

    Attributes:
        at: The time of its newest event, in microseconds since 1970.
        is_timed: Whether the source has a time for it.
        observation: The observation that created the step.
        asked, results: The observations of its calls and of their results, by the call's position.
        outputs: The results as text, by the call's position.
        failure: The newest failed call.
    """

    number: int
    id: str
    at: int
    is_timed: bool
    observation: str
    calls: Sequence[ToolCall]
    asked: dict[int, str] = field(default_factory=dict)
    results: dict[int, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    failure: Patch = field(default_factory=dict)


class _Import:
    """Imports one conversation into a log."""

    def __init__(self, conversation: Conversation, observe: Observe) -> None:
        self._given = conversation
        self._observe = observe
        own = [message.at for message in conversation.messages]
        self._times = message_times(own, conversation.start, conversation.default_start)
        self._own = own
        self._end_at = max(self._times)
        self._synthetic = None in own
        self.is_timed = conversation.start is not None or any(each is not None for each in own)
        self._answers = answers(conversation.messages)
        self._total = sum(message.role == "assistant" for message in conversation.messages)
        self._run, self._session = f"run/{conversation.run}", f"agent_session/{conversation.run}"
        self._agent = label(conversation.agent)
        self._seq = 0
        self._steps: list[_Step] = []
        self._replies: list[str] = []
        self._unread: list[str] = []  # messages since the last reply; the next reply answers them
        self._writes: list[tuple[str, ToolCall]] = []  # successful writes, each with the observation of its result

    def all(self) -> None:
        """Observe the whole conversation, in order."""
        begun = self._begin()
        for index, message in enumerate(self._given.messages):
            if message.role == "assistant":
                self._reply(index, message)
            elif index in self._answers:
                self._result(index, message)
            elif message.is_result:
                self._orphan(index, message)
            else:
                self._unread.append(self._message(index, message, self._replies[-1:]))
        last = self._unread[-1:] or self._replies[-1:]
        self._leave_open()
        self._end(last or [begun])
        if self._given.parent:
            self._tie(self._run, "of", f"run/{self._given.parent}", self._times[0], begun)
        if self._given.judgement is not None:
            self._judge(self._given.judgement, last)

    def started_by(self, parent: _Import, call_id: str) -> str:
        """Link the run to the step of the call that started it. Return the call's action; "" if it is not known."""
        for step in parent._steps if call_id else ():
            for k, call in enumerate(step.calls, start=1):
                if call.call_id == call_id:
                    self._tie(self._run, "of", f"step/{step.id}", self._times[0], step.asked[k])
                    return f"action/{step.id}.{k}"
        return ""

    def _time_fields(self, index: int, **fields: object) -> Patch:
        """Return the given fields if the message has a time of its own, else no fields."""
        return {} if self._own[index] is None else dict(fields)

    def _say(self, entity: str, patch: Patch, at: int, causes: Iterable[str], step: str = "", tool: str = "") -> str:
        return self._put(entity, patch, at, causes, step, tool, None)

    def _tie(self, entity: str, relation: str, target: str, at: int, cause: str, step: str = "") -> None:
        self._put(entity, None, at, [cause], step, "", Link(relation, target))

    def _put(self, entity: str, patch: Patch | None, at: int, causes: Iterable[str], step: str, tool: str,
             link: Link | None) -> str:  # fmt: skip
        source = Source(self._agent, self._given.run, step, label(tool), self._seq)
        self._seq += 1
        kind: Kind = "assert" if link is None else "link"
        return self._observe(entity, patch, source=source, observed_at=at, causes=tuple(causes), link=link, kind=kind)

    def _begin(self) -> str:
        given, at = self._given, self._times[0]
        patch: Patch = {"agent": given.agent, "session": given.run, "status": "running"}
        patch |= {"imported_from": given.imported_from, "synthetic_time": self._synthetic}
        patch |= _present(model=given.model or None, metadata=given.metadata or None, input=given.input)
        patch |= _present(agent_version=given.version or None, title=given.title or None)
        begin: Patch = {"started_at": at} if self.is_timed else {}
        begun = self._say(self._run, patch | begin, at, [])
        session: Patch = {"agent": given.agent, "status": "active", "runs": [given.run]} | begin
        self._say(self._session, session, at, [begun])
        self._tie(self._run, "in", self._session, at, begun)
        return begun

    def _message(
        self, index: int, message: Message, causes: Iterable[str], more: Patch | None = None, step: str = ""
    ) -> str:
        at = self._times[index]
        patch: Patch = {"messages": [message.element(index)], "message_count": 1}
        patch |= self._time_fields(index, last_active_at=at)
        tool = message.name if message.is_result else ""
        return self._say(self._session, patch | (more or {}), at, causes, step, tool)

    def _reply(self, index: int, message: Message) -> None:
        at, number = self._times[index], len(self._steps) + 1
        answered = self._replies[-1:] + self._unread
        said = self._message(index, message, answered, {"position": number}, str(number))
        self._replies.append(said)
        self._unread.clear()
        step_id = f"{self._given.run}#{number}"
        calls = [
            {"position": k, "action": f"{step_id}.{k}", "tool": call.tool}
            | _present(inputs=call.inputs, call_id=call.call_id or None)
            for k, call in enumerate(message.calls, start=1)
        ]
        patch: Patch = {"run": self._given.run, "session": self._given.run, "agent": self._given.agent}
        patch |= {"position": number, "message_index": index} | self._time_fields(index, started_at=at)
        patch |= {} if self._given.grows else {"position_total": self._total}
        patch |= _present(message=message.text, rationale=message.rationale or None, calls=calls or None)
        if calls:
            tools = ", ".join(call.tool for call in message.calls)
            patch |= {"status": "pending", "decision": f"call {tools}"}
        else:
            patch |= {"status": "committed", "decision": "reply", "outcome": "succeeded"}
            patch |= self._time_fields(index, ended_at=at)
        observation = self._say(f"step/{step_id}", patch, at, [said], str(number))
        step = _Step(number, step_id, at, self._own[index] is not None, observation, message.calls)
        self._steps.append(step)
        self._tie(f"step/{step_id}", "of", self._run, at, observation, str(number))
        for k, call in enumerate(message.calls, start=1):
            self._call(step, k, call, at)

    def _call(self, step: _Step, k: int, call: ToolCall, at: int) -> None:
        entity, number = f"action/{step.id}.{k}", str(step.number)
        effect = self._given.effect_of(call.tool)
        patch: Patch = {"tool": call.tool, "agent": self._given.agent, "run": self._given.run}
        patch |= {"step": step.id, "position": k, "status": "pending"}
        patch |= {"started_at": at} if step.is_timed else {}
        patch |= _present(call_id=call.call_id or None, inputs=call.inputs, effect=effect)
        step.asked[k] = self._say(entity, patch, at, [step.observation], number, call.tool)
        self._tie(entity, "of", f"step/{step.id}", at, step.asked[k], number)

    def _result(self, index: int, message: Message) -> None:
        number, k = self._answers[index]
        step = self._steps[number - 1]
        step.at = at = max(step.at, self._times[index])
        call, entity, output = step.calls[k - 1], f"action/{step.id}.{k}", message.result
        observation = self._message(index, message, [step.asked[k]], step=str(number))
        self._unread.append(observation)
        failed = message.failed
        if failed is None:
            failed = output is not None and output.startswith(FAILED)
        patch: Patch = {"status": "failed" if failed else "succeeded"} | self._time_fields(index, ended_at=at)
        content: Value = None
        if output is not None:
            media_type, content = _content(output)
            patch |= {"output": output, "output_type": media_type, "output_bytes": len(output.encode())}
            step.outputs[str(k)] = output
        if failed:
            patch["error"] = self._time_fields(index, at=at) | _present(message=output)
            step.failure = self._time_fields(index, at=at) | {"step": step.id, "tool": call.tool}
            step.failure |= _present(input=call.inputs, output=output)
        step.results[k] = self._say(entity, patch, at, [observation, step.asked[k]], str(number), call.tool)
        effect = self._given.effect_of(call.tool)
        if effect == "write" and not failed:
            self._writes.append((step.results[k], call))
        self._documents(step, k, content, at, RELATIONS[effect])
        if len(step.results) == len(step.calls):
            done: Patch = {"status": "committed", "outcome": "failed" if step.failure else "succeeded"}
            self._close(step, done | self._time_fields(index, ended_at=at), at)

    def _documents(self, step: _Step, k: int, content: Value, at: int, relation: str) -> None:
        call, number = step.calls[k - 1], str(step.number)
        tied: set[str] = set()
        for document in self._given.documents_of(call, content):
            patch: Patch = {"kind": document.kind, "fields": document.fields}
            self._say(document.entity, patch, at, [step.results[k]], number, call.tool)
            if document.entity not in tied:
                tied.add(document.entity)
                self._tie(f"action/{step.id}.{k}", relation, document.entity, at, step.results[k], number)

    def _close(self, step: _Step, patch: Patch, at: int) -> None:
        patch |= _present(tool_outputs=step.outputs or None, failure=step.failure or None)
        self._say(f"step/{step.id}", patch, at, step.results.values() or [step.observation], str(step.number))

    def _orphan(self, index: int, message: Message) -> None:
        named = message.tool_call_id or message.name or "without id or name"
        error = self._time_fields(index, at=self._times[index]) | {
            "message": f"tool result that answers no open call: {named}"
        }
        self._unread.append(self._message(index, message, self._replies[-1:], {"errors": [error]}))

    def _leave_open(self) -> None:
        """End the calls that have no result: they were sent, and their outcome is unknown."""
        at = self._end_at
        for step in self._steps:
            lost = [k for k in step.asked if k not in step.results]
            for k in lost:
                entity, tool = f"action/{step.id}.{k}", step.calls[k - 1].tool
                self._say(entity, {"status": "unknown"}, at, [step.asked[k]], str(step.number), tool)
            if lost:
                self._close(step, {"outcome": "unknown"}, at)

    def _end(self, last: Sequence[str]) -> None:
        at, judgement = self._end_at, self._given.judgement
        outcome = "unknown" if judgement is None else "succeeded" if judgement.passed else "failed"
        replies = [message.text for message in self._given.messages if message.role == "assistant"]
        reply = next((each for each in reversed(replies) if each), None)
        output = reply if self._given.output is None else self._given.output
        end: Patch = {"ended_at": at} if self.is_timed else {}
        patch: Patch = {"status": "ended", "outcome": self._given.outcome or outcome} | end | _present(output=output)
        patch |= {"step_count": self._total, "position": self._total} | dict(self._given.usage)
        ended = self._say(self._run, patch, at, last)
        self._say(self._session, {"status": "completed"} | end, at, [ended])

    def _judge(self, judgement: Judgement, last: Sequence[str]) -> None:
        """Observe the evaluation.

        Its causes are what was judged: the results of successful writes, the last message, and the replies if they
        were judged too.
        """
        at, entity = self._end_at, f"evaluation/{self._given.run}"
        writes = [{"name": call.tool, "kwargs": call.inputs} for _, call in self._writes]
        patch: Patch = {"subject": self._run, "run": self._given.run, "output": writes}
        patch |= {"evaluated_at": at} if self.is_timed else {}
        patch |= {"score": judgement.score, "passed": judgement.passed} | dict(judgement.fields)
        causes = [*(observation for observation, _ in self._writes), *last]
        judged = self._say(entity, patch, at, causes + (self._replies if judgement.of_replies else []))
        self._tie(entity, "of", self._run, at, judged)


def _present(**fields: object) -> Patch:
    """Return the fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _content(output: str) -> tuple[str, Value]:
    try:
        return "application/json", parse_json(output, "result")
    except InputError:
        return "text/plain", None


@lru_cache(maxsize=1024)  # a conversation has the same few names in all its observations
def label(text: str) -> str:
    """Shorten a text and replace its control characters, so that a source can carry it.

    Args:
        text: An agent's or a tool's name, as a recording has it.
    """
    short = text[:LABEL_CHARACTERS_MAX]
    return "".join("?" if unicodedata.category(each) == "Cc" else each for each in short)
