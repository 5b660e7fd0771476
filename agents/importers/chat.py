"""Import conversations of chat models: one conversation per line, or all of them in one JSON document.

A line, or an item of the document's array, is one of
- a list of messages;
- an object with `messages`, or ShareGPT's `conversations`. Its `model` and `agent` are used as such. `created`,
  `created_at` or `timestamp` (also inside `metadata`) is the start time. `system` precedes the first message;
- an object with `request` and `response`, as APIs use them: OpenAI's chat completions and responses, or Anthropic's
  messages. Either may be wrapped in `body`, as in OpenAI's batches.

All other members, `id` among them, are stored in the run's `metadata`. messages.py parses the messages; OpenAI's and
Anthropic's styles may be mixed. Documents follow the general rule (see documents.py), because the format does not
say which tools exist, nor whether they write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from refold.agents.importers.file import ImportFile
from refold.agents.importers.json_lines import Line
from refold.agents.importers.messages import (
    MESSAGE_KEYS,
    TIME_KEYS,
    Message,
    is_message,
    parse_messages,
    renamed,
    text_at,
)
from refold.agents.importers.model import NO_TIME_START, Conversation, Importer
from refold.agents.importers.responses_items import messages_of_items
from refold.agents.importers.times import own_time
from refold.avro.errors import InputError
from refold.avro.observation import Value

FORMAT = "chat"
DEFAULT_START = NO_TIME_START
LISTS = ("messages", "conversations", "conversation")
IDS = ("id", "conversation_id", "session_id")
ASKED = frozenset({"messages", "input", "system", "instructions"})
OBJECT_KEYS = frozenset({"messages", "agent", "model", "created", "request", "response", "system"})


def conversations(file: ImportFile) -> Iterator[Conversation]:
    """Yield each conversation of a file.

    Args:
        file: The file, read as a stream of lines, or as one JSON document.

    Returns:
        The conversations in the order of the file.

    Raises:
        InputError: A conversation has another shape. The message names file and line; the conversations before it
            have already been yielded.
    """
    for line in file.values():
        value = line.value
        if isinstance(value, list) and value and _is_conversation(value[0], file.keys):
            for number, each in enumerate(value, start=1):
                yield conversation_of(Line(f"{line.place}: item {number}", each), file)
        else:
            yield conversation_of(line, file)


def conversation_of(line: Line, file: ImportFile) -> Conversation:
    """Return the conversation in one value.

    Args:
        line: The value and its place in the file.
        file: The file that the value comes from; it assigns the run id.

    Raises:
        InputError: The value has another shape.
    """
    if not isinstance(line.value, Mapping):
        messages = parse_messages(line.value, line.place, file.keys)
        return Conversation(
            run=file.run_of(line.value), messages=messages, agent=FORMAT, imported_from=FORMAT, place=line.place,
            input=_first_question(messages),
        )  # fmt: skip
    keys = {key: theirs for key, theirs in file.keys.items() if key in OBJECT_KEYS}
    given: Any = renamed(line.value, keys, line.place)
    identity = _identity(given, line.value)
    if "request" in given and "response" in given:
        messages, given = _exchange(given, line.place, file)
        used: set[str] = set()
    else:
        messages, used = _listed_messages(given, line.place, file)
    named = {key: text_at(given, key) for key in ("agent", "model") if text_at(given, key)}
    return Conversation(
        run=file.run_of(identity),
        messages=messages,
        agent=named.get("agent", FORMAT),
        imported_from=FORMAT,
        place=line.place,
        start=_start(given),
        model=named.get("model", ""),
        input=_first_question(messages),
        metadata={key: value for key, value in given.items() if key not in used and (key not in named)},
    )


def _identity(given: Mapping[str, Value], line: Value) -> Value:
    """Return the value that the run id is computed from.

    It is the messages, together with the conversation's own id if there is one. It is the whole line if the line lists
    no messages.
    """
    listed = next((given[key] for key in LISTS if key in given), None)
    own = {key: given[key] for key in IDS if isinstance(given.get(key), (str, int))}
    if listed is None:
        return line
    return {**own, "messages": listed} if own else listed


def _is_conversation(item: Value, keys: Mapping[str, str]) -> bool:
    """Return whether an item of a list is a conversation, as opposed to a message."""
    if not isinstance(item, Mapping):
        return isinstance(item, list)
    listed = any(keys.get(key, key) in item for key in LISTS)
    return listed or (keys.get("request", "request") in item and keys.get("response", "response") in item)


def recognised(value: Value) -> str:
    """Describe a value if it is a conversation; return an empty string if it is not."""
    if isinstance(value, list) and value:
        inner = value[0]
        if is_message(inner):
            return _named_list(inner)
        found = recognised(inner) if isinstance(inner, Mapping) or (isinstance(inner, list) and inner) else ""
        return f"an array of conversations, each {found}" if found else ""
    if not isinstance(value, Mapping):
        return ""
    if "traj" in value or "trajectory" in value or "resourceSpans" in value:
        return ""
    for key in LISTS:
        listed = value.get(key)
        if isinstance(listed, list) and listed and is_message(listed[0]):
            return f"an object with {key}, {_named_list(listed[0])}"
    request, response = _body(value.get("request")), _body(value.get("response"))
    if isinstance(request, Mapping) and isinstance(response, Mapping) and {"messages", "input"} & request.keys():
        return "an object with a request to a model and its response"
    return ""


def _named_list(message: Any) -> str:
    return "a list of messages with role and content" if "role" in message else "a list of messages with from and value"


def _listed_messages(given: Mapping[str, Value], place: str, file: ImportFile) -> tuple[tuple[Message, ...], set[str]]:
    """Return the messages of an object that lists them, and the names of the members that hold them."""
    key = next((key for key in LISTS if key in given), None)
    if key is None:
        raise InputError(
            f"{place}: the object has no member messages: is it another format? If the key is another, add --map "
            "messages=KEY"
        )
    messages = parse_messages(given[key], place, file.keys)
    system = given.get("system")
    if isinstance(system, str) or (isinstance(system, list) and system):
        return (*parse_messages([{"role": "system", "content": system}], place), *messages), {key, "system"}
    return messages, {key}


def _exchange(
    given: Mapping[str, Value], place: str, file: ImportFile
) -> tuple[tuple[Message, ...], Mapping[str, Value]]:
    """Return the messages of a request and of its response, and all their other members."""
    request, response = _body(given["request"]), _body(given["response"])
    if not isinstance(request, Mapping) or not isinstance(response, Mapping):
        raise InputError(f"{place}: request and response are not both objects")
    asked = request.get("messages", request.get("input"))
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    before: list[Value] = []
    before += [{"role": "system", "content": request[key]} for key in ("system", "instructions") if request.get(key)]
    if "messages" in request:
        messages = [*parse_messages([*before, *(asked if isinstance(asked, list) else [asked])], place, file.keys)]
    elif isinstance(asked, list):
        messages = [*(parse_messages(before, place) if before else ()), *messages_of_items(asked, place)]
    else:
        raise InputError(f"{place}: the request has neither messages nor input")
    messages += _response_messages(response, place)
    choices = response.get("choices")
    used = {"content", "output", "choices"} if not isinstance(choices, list) or len(choices) == 1 else {"output"}
    rest: dict[str, Value] = {
        "request": {key: value for key, value in request.items() if key not in ASKED},
        "response": {key: value for key, value in response.items() if key not in used},
        "model": request.get("model") or response.get("model"),
    }
    return tuple(messages), {**given, **rest}


def _response_messages(response: Mapping[str, Value], place: str) -> list[Message]:
    """Return the messages of a model's response, by its API. A response that is an error has no messages."""
    choices, output = response.get("choices"), response.get("output")
    at = next((response[key] for key in ("created", "created_at") if response.get(key) is not None), None)
    time: dict[str, Value] = {} if at is None else {"created": at}
    if isinstance(choices, list) and choices:
        first = choices[0]
        message = first.get("message") if isinstance(first, Mapping) else None
        if not isinstance(message, Mapping):
            raise InputError(f"{place}: the first choice of the response has no message")
        around: dict[str, Any] = {key: value for key, value in first.items() if key != "message"}
        return [*parse_messages([{**around, "role": "assistant", **message, **time}], f"{place}: response")]
    if isinstance(output, list):
        return messages_of_items(output, f"{place}: response")
    if isinstance(response.get("content"), (list, str)):
        said: dict[str, Value] = {"role": "assistant", "content": response["content"], **time}
        return [*parse_messages([said], f"{place}: response")]
    return []


def _body(given: Value) -> Value:
    """Return a request or response without the `body` that may wrap it."""
    inner = given.get("body") if isinstance(given, Mapping) else None
    return inner if isinstance(inner, Mapping) else given


def _first_question(messages: tuple[Message, ...]) -> str | None:
    return next((message.text for message in messages if message.role == "user"), None)


def _start(given: Mapping[str, Value]) -> int | None:
    inner = given.get("metadata")
    for place in (given, inner if isinstance(inner, Mapping) else {}):
        for key in TIME_KEYS:
            time = own_time(place.get(key))
            if time is not None:
                return time
    return None


IMPORTER = Importer(
    name=FORMAT,
    summary="conversations of chat models: OpenAI, Anthropic, ShareGPT, request/response pairs",
    recognise=recognised,
    read=conversations,
    keys=OBJECT_KEYS | MESSAGE_KEYS,
)
