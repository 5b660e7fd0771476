"""Import tau-bench trajectories, one per line: {task_id, reward, info, traj, trial}.

Documents: get_user_details describes document/user-<user_id>. A result with a reservation_id, from any tool, describes
document/reservation-<id>. Each flight that a search finds is document/flight-<number>-<date>; the date is the flight's
own, else the date that was searched for. Other results follow the general rule (see documents.py).

tau-bench resets its world for each run, but all runs of a file share these entities. So an entity's history shows what
each run was told, not the course of one world.

Tools that get, find, list, search, calculate or think only read; all others write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from refold.agents.importers.documents import Document, document, documents
from refold.agents.importers.file import ImportFile
from refold.agents.importers.json_lines import Line
from refold.agents.importers.messages import ToolCall, parse_messages
from refold.agents.importers.model import Conversation, Effect, Importer, Judgement
from refold.avro.errors import InputError
from refold.avro.observation import Value

FORMAT = "tau-bench"
DEFAULT_START = 1_715_803_200_000_000  # 2024-05-15T20:00:00Z: the agent's policy says that it is now 15:00 EST
PASSING = 1 - 1e-6  # as tau-bench itself counts successes
READERS = ("calculate", "find_", "get_", "list_", "search_", "think")


def conversations(file: ImportFile) -> Iterator[Conversation]:
    """Yield each line's conversation.

    Raises:
        InputError: A line has another shape. The message names file and line; the conversations before it have already
            been yielded.
    """
    for line in file.lines():
        yield conversation_of(line, file)


def conversation_of(line: Line, file: ImportFile) -> Conversation:
    """Return the conversation in one line.

    Args:
        line: The trajectory and its place in the file.
        file: The file, which assigns the run id.

    Raises:
        InputError: The value has another shape.
    """
    given, place = line.value, line.place
    if not isinstance(given, Mapping) or not {"task_id", "reward", "traj"} <= given.keys():
        raise InputError(f"{place}: a tau-bench line is an object with task_id, reward and traj")
    reward, trial, info = given["reward"], given.get("trial"), given.get("info")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        raise InputError(f"{place}: reward is not a number")
    if trial is not None and (isinstance(trial, bool) or not isinstance(trial, int)):
        raise InputError(f"{place}: trial is not a whole number")
    if isinstance(given["task_id"], bool) or not isinstance(given["task_id"], (int, str)):
        raise InputError(f"{place}: task_id is neither a number nor a text")
    info = info if isinstance(info, Mapping) else {}
    found = info.get("task")
    task: Mapping[str, Value] = found if isinstance(found, Mapping) else {}
    fields: dict[str, Value] = {
        "name": "reward",
        "evaluator": FORMAT,
        "dataset": FORMAT,
        "case": str(given["task_id"]),
        "expected": task.get("actions"),
        "details": {key: value for key, value in info.items() if key != "task"} | _select_keys(task, "outputs"),
        "trial": trial,
    }
    return Conversation(
        run=file.run_of(given["traj"]),
        messages=parse_messages(given["traj"], place),
        agent=FORMAT,
        imported_from=FORMAT,
        place=place,
        default_start=DEFAULT_START,
        input=_select_keys(task, "instruction", "user_id") or None,
        metadata={key: value for key, value in given.items() if key not in ("reward", "info", "traj")},
        judgement=Judgement(
            score=float(reward),
            passed=reward >= PASSING,
            fields={key: value for key, value in fields.items() if value is not None},
            of_replies=bool(task.get("outputs")),
        ),
        effect_of=effect_of,
        documents_of=documents_of,
    )


def recognised(value: Value) -> str:
    """Describe a value if it is a trajectory; return an empty string if it is not."""
    is_one = isinstance(value, Mapping) and {"task_id", "reward", "traj"} <= value.keys()
    return "an object with task_id, reward and traj" if is_one else ""


def effect_of(tool: str) -> Effect:
    """Return whether a tool reads or writes, by its name."""
    return "read" if tool.startswith(READERS) else "write"


def documents_of(call: ToolCall, result: Value) -> Iterator[Document]:
    """Yield the documents that a result describes, by the rules of this module."""
    inputs = call.inputs if isinstance(call.inputs, Mapping) else {}
    if call.tool.startswith("search_"):
        yield from _flights(result, inputs.get("date"))
    elif isinstance(result, Mapping) and call.tool == "get_user_details":
        yield from _single_document("user", inputs.get("user_id"), result)
    elif isinstance(result, Mapping) and "reservation_id" in result:
        yield from _single_document("reservation", result["reservation_id"], result)
    else:
        yield from documents(call, result)


def _flights(result: Value, searched: Value) -> Iterator[Document]:
    """Yield the flights of a search: a direct search returns flights, one with a stop returns lists of flights."""
    for each in result if isinstance(result, list) else ():
        if isinstance(each, list):
            yield from _flights(each, searched)
        elif isinstance(each, Mapping):
            number, date = each.get("flight_number"), each.get("date", searched)
            if isinstance(number, str) and isinstance(date, str):
                yield from _single_document("flight", f"{number}-{date}", each)


def _single_document(kind: str, identifier: Value, fields: Mapping[str, Value]) -> Iterator[Document]:
    found = document(kind, identifier, fields)
    if found is not None:
        yield found


def _select_keys(given: Mapping[str, Value], *keys: str) -> dict[str, Value]:
    return {key: given[key] for key in keys if key in given}


IMPORTER = Importer(
    name=FORMAT, summary="recorded tau-bench runs, with the reward of each", recognise=recognised, read=conversations
)
