"""The language of expectations: one text, one expectation.

    exact                           the code does exactly what was recorded: the hash of the run is the same
    outcome=succeeded               how it ended: succeeded, failed, cancelled, timed_out
    tools=lookup,refund,send_mail   the tools called, in this order and no other; `...` stands for any number of others
    steps=plan,act                  the names of the steps, in order; decisions=refund,close: the choices
    search_docs<=3                  how often a tool was called; tool.NAME<=3 if the name is one of these words
    tools<=7 steps<=9               how many in all; also decisions, model_calls, reads
    state[3].ticket.status=open     the state after step 3, counted from 1; state[0]: at the start; state: the end
    output.refund=50                what the agent returned, or a part of it
    error=TimeoutError              the exception it failed with, by its name; error~lost: its message has this text

Operators: = != < <= > >= and ~ (a text has this part, a list this element, an object this key). A value that is valid
JSON is parsed, so 50 is a number and "50" a text; any other value is text. In a path, .name and [index] lead into
objects and lists, ["a name"] into names with other characters.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

import msgspec

from refold.agents.journal.record import Outcome, Plain
from refold.avro import strict_json
from refold.avro.errors import InputError
from refold.avro.strict_json import json_or_text

Operator: TypeAlias = Literal["=", "!=", "<=", ">=", "<", ">", "~"]
Subject: TypeAlias = Literal["exact", "sequence", "count", "value"]

SEQUENCES = ("tools", "steps", "decisions")
COUNTED = (*SEQUENCES, "model_calls", "reads")
VALUES = ("outcome", "output", "state", "error")
ANY = "..."
_DIGITS_MAX = 18

_EXAMPLES = (
    'such as outcome=succeeded, "tools=lookup,refund", "lookup<=3", "state[3].ticket.status=open", output.refund=50'
)
_PART = re.compile(r"""\.(?P<name>[^.\[\]"]+)|\[(?P<index>-?[0-9]{1,18})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]""")
_SPLIT = re.compile(
    r"""(?P<left>(?:"(?:[^"\\]|\\.)*"|[^"=!<>~])*)(?P<operator><=|>=|!=|==|=|<|>|~)(?P<value>.*)""", re.DOTALL
)


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """One parsed expectation.

    Attributes:
        name: What is checked: a word of the language, or a tool if `is_tool` is set.
        step: For a state, the step after which it is checked; None: the end.
        path: The keys and indexes into a value.
        value: The value to compare with; for a sequence a list of names.
    """

    text: str
    subject: Subject
    name: str = ""
    is_tool: bool = False
    step: int | None = None
    path: tuple[str | int, ...] = ()
    operator: Operator = "="
    value: Plain = None


def expectation(text: str) -> Expectation:
    """Parse an expectation.

    Raises:
        InputError: It is invalid. The message says what is wrong with it, and how to write it.
    """
    stripped = text.strip()
    if stripped == "exact":
        return Expectation(text=stripped, subject="exact")
    split = _SPLIT.fullmatch(stripped)
    if split is None:
        raise _refusal(text, f"it has no comparison (= != < <= > >= ~); {_EXAMPLES}, or exact alone")
    left, value = split["left"].strip(), split["value"].strip()
    sign: Operator = "=" if split["operator"] == "==" else split["operator"]  # type: ignore[assignment]
    if not left:
        raise _refusal(text, f"it does not name what to compare; {_EXAMPLES}")
    word = re.match(r"[a-z_]*", left)[0]  # type: ignore[index]
    if left in SEQUENCES and not _is_count(value):
        return _sequence(stripped, left, sign, value)
    if word in VALUES and (len(left) == len(word) or left[len(word)] in ".["):
        return _value_expectation(stripped, word, left[len(word) :], sign, value)
    return _count(stripped, left, sign, value)


def _sequence(text: str, name: str, sign: Operator, value: str) -> Expectation:
    if sign != "=":
        raise _refusal(text, f"{name} are compared by = with names in their order, or by any sign with a number")
    names = [each.strip() for each in value.split(",")] if value else []
    if "" in names:
        raise _refusal(text, f"a name is missing between two commas; as in {name}=a,b,c, with {ANY} for any others")
    return Expectation(text=text, subject="sequence", name=name, value=names)


def _count(text: str, left: str, sign: Operator, value: str) -> Expectation:
    is_tool = left not in COUNTED
    name = left.removeprefix("tool.")
    if sign == "~" or not _is_count(value):
        raise _refusal(
            text, f"how often {name} was called is compared with a number, as in {left}<=3; values are looked up in "
            "output, state, state[3] or error, as in state.ticket.status=open",
        )  # fmt: skip
    return Expectation(
        text=text, subject="count", name=name, is_tool=is_tool or left != name, operator=sign, value=int(value)
    )


def _value_expectation(text: str, word: str, rest: str, sign: Operator, value: str) -> Expectation:
    path = _path(text, rest)
    step = None
    if word == "state" and path and isinstance(path[0], int):
        step, path = path[0], path[1:]
        if step < 0:
            raise _refusal(text, "steps are counted from 1; state alone is the one at the end")
    given = _value(value)
    if word == "outcome":
        known = [each for each in get_args(Outcome) if each]
        if path or sign not in ("=", "!=") or given not in known:
            raise _refusal(text, f"an outcome is one of {', '.join(known)}, as in outcome=succeeded")
    if word == "error" and (path or sign not in ("=", "!=", "~")):
        raise _refusal(
            text, "as in error=TimeoutError for the exception, error~lost for its message, error=null for none"
        )
    if sign in ("<", "<=", ">", ">=") and (isinstance(given, bool) or not isinstance(given, (int, float, str))):
        raise _refusal(text, f"{sign} compares numbers, or texts")
    return Expectation(text=text, subject="value", name=word, step=step, path=path, operator=sign, value=given)


def _path(text: str, rest: str) -> tuple[str | int, ...]:
    found: list[str | int] = []
    at = 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None:
            raise _refusal(
                text,
                f'from {rest[at:]!r} on it is not a path: .name, [index] or ["a name"], as in state[3].items[0].id',
            )
        if part["name"] is not None:
            found.append(part["name"].strip())
        else:
            found.append(_part(text, part["quoted"] or part["index"]))
        at = part.end()
    return tuple(found)


def _part(text: str, written: str) -> str | int:
    try:
        found: str | int = strict_json.loads(written)
    except ValueError as error:
        raise _refusal(text, f"{written} is not a name: {error}") from None
    return found


def _value(text: str) -> Plain:
    return json_or_text(text)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _refusal(text: str, why: str) -> InputError:
    return InputError(f"the expectation {text!r} cannot be used: {why}")
