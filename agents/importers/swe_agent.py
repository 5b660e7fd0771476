"""Import SWE-agent trajectories: one JSON document per file (.traj), or one per line.

The messages are those of `history`. The agent's actions are in `trajectory`, one step for each reply that is not a
demonstration. A reply's `action` is its call, of the tool that its first word names. The step's `observation` is the
verbatim result, even if the message that carries it to the model adds other text. Since SWE-agent 1.0 a reply may have
`tool_calls`; then these are the calls. If no message carries the last observation, it becomes a message of its own. If
the numbers of replies and steps differ, or there is no history, only the steps are read.

A step's `state`, `execution_time` and `extra_info` are stored with its result. What the model was shown at each step
(`query`, before 1.1 `messages`) repeats the history and is not stored. A trajectory has no times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from refold.agents.importers.file import ImportFile
from refold.agents.importers.json_lines import Line
from refold.agents.importers.messages import Message, ToolCall, parse_messages
from refold.agents.importers.model import Conversation, Importer
from refold.avro.errors import InputError
from refold.avro.observation import Value

FORMAT = "swe-agent"
SHOWN = frozenset({"query", "messages", "action", "observation", "response", "thought"})
USAGE = {"tokens_sent": "input_tokens", "tokens_received": "output_tokens"}


def conversations(file: ImportFile) -> Iterator[Conversation]:
    """Yield each trajectory of a file.

    Raises:
        InputError: A trajectory has another shape; the message names file and line.
    """
    for line in file.values():
        yield conversation_of(line, file)


def conversation_of(line: Line, file: ImportFile) -> Conversation:
    """Return the conversation in one trajectory.

    Args:
        line: The trajectory and its place in the file.
        file: The file, which assigns the run id.

    Raises:
        InputError: The value has another shape.
    """
    given, place = line.value, line.place
    if not isinstance(given, Mapping) or not isinstance(given.get("trajectory"), list):
        raise InputError(f"{place}: a SWE-agent trajectory is an object with trajectory and history")
    trajectory, history = given["trajectory"], given.get("history")
    steps = _steps(trajectory if isinstance(trajectory, list) else [], place)
    messages = _messages(history if isinstance(history, list) else [], steps, f"{place}: history")
    if not messages:
        raise InputError(f"{place}: the trajectory has neither history nor steps")
    info = given.get("info")
    info = info if isinstance(info, Mapping) else {}
    version = info.get("swe_agent_version")
    questions = [
        each for each in messages if each.role == "user" and not each.extra.get("is_demo") and not each.is_result
    ]
    return Conversation(
        run=file.run_of(given),
        messages=messages,
        agent=FORMAT,
        imported_from=FORMAT,
        place=place,
        version=version if isinstance(version, str) else "",
        input=questions[0].text if questions else None,
        output=info.get("submission"),
        metadata={key: value for key, value in given.items() if key not in ("trajectory", "history")},
        usage=_usage(info.get("model_stats")),
    )


def recognised(value: Value) -> str:
    """Describe a value if it is a trajectory; return an empty string if it is not."""
    if not isinstance(value, Mapping):
        return ""
    steps, history = value.get("trajectory"), value.get("history")
    is_one = isinstance(steps, list) and all(isinstance(each, Mapping) and "action" in each for each in steps[:1])
    return "an object with trajectory and history" if is_one and (isinstance(history, list) or steps) else ""


def _steps(given: list[Any], place: str) -> list[Mapping[str, Any]]:
    for number, each in enumerate(given, start=1):
        if not isinstance(each, Mapping):
            raise InputError(f"{place}: step {number} of the trajectory is not an object")
    return given


def _messages(history: list[Any], steps: list[Mapping[str, Any]], place: str) -> list[Message]:
    replies = [each for each in history if _is_reply(each)]
    if len(replies) != len(steps):
        if steps:
            opening = [each for each in history[: _first_reply(history)] if isinstance(each, Mapping)]
            messages = [*parse_messages(opening, place)] if opening else []
            for step in steps:
                messages += [_reply(_response_message(step), step), _result(None, step)]
            return messages
        return [*parse_messages(history, place)] if history else []
    messages, number, waiting = [], 0, False
    for index, each in enumerate(history):
        parsed = [*parse_messages([_plain(each)], f"{place} {index}")]
        if _is_reply(each):
            messages += [_result(None, steps[number - 1])] if waiting else []
            messages += [_reply(parsed[0], steps[number]), *parsed[1:]]
            number, waiting = number + 1, True
        elif waiting:
            messages += [_result(parsed[0], steps[number - 1]), *parsed[1:]]
            waiting = False
        else:
            messages += parsed
    return [*messages, _result(None, steps[-1])] if waiting else messages


def _is_reply(given: Any) -> bool:
    return isinstance(given, Mapping) and given.get("role") == "assistant" and not given.get("is_demo")


def _first_reply(history: list[Any]) -> int:
    return next((index for index, each in enumerate(history) if _is_reply(each)), len(history))


def _plain(given: Any) -> Any:
    """Return a message whose result names its call by `tool_call_id`, as other formats do."""
    ids = given.get("tool_call_ids") if isinstance(given, Mapping) else None
    if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], str) and given.get("role") != "assistant":
        return {**given, "tool_call_id": ids[0]}
    return given


def _response_message(step: Mapping[str, Any]) -> Message:
    text = step.get("response") or step.get("thought")
    return Message(role="assistant", content=text if isinstance(text, str) else None)


def _reply(message: Message, step: Mapping[str, Any]) -> Message:
    """Return a reply whose call is the step's action, unless it has calls of its own."""
    thought, action = step.get("thought"), step.get("action")
    calls = message.calls
    if not calls and isinstance(action, str) and action.strip():
        calls = (ToolCall(action.split(maxsplit=1)[0], {"action": action}),)
    return replace(message, calls=calls, rationale=message.rationale or (thought if isinstance(thought, str) else ""))


def _result(message: Message | None, step: Mapping[str, Any]) -> Message:
    """Return the result of a step's action, in the message that carries it if there is one."""
    observed = step.get("observation")
    observed = observed if isinstance(observed, str) else ""
    message = message or Message(role="tool", content=observed)
    more = {key: value for key, value in step.items() if key not in SHOWN and value not in (None, {}, [])}
    return replace(message, result=observed, extra={**message.extra, "step": more} if more else message.extra)


def _usage(stats: Value) -> dict[str, Value]:
    """Return the token counts of the run, if the trajectory has them."""
    found: dict[str, Value] = {}
    for theirs, ours in USAGE.items():
        count = stats.get(theirs) if isinstance(stats, Mapping) else None
        if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 2**53:
            found[ours] = count
    return found


IMPORTER = Importer(name=FORMAT, summary="SWE-agent trajectories (.traj)", recognise=recognised, read=conversations)
