"""Find the documents in a tool's result, for formats that do not name them.

The rule: a result that is a JSON object with an id, or a list of such objects, describes one document per object.

- The id is the member `id`. Without one, it is a member `<noun>_id` (or `<noun>Id`): the one whose noun occurs in the
  tool's name, else the only one. An object with several such members, none of them named by the tool, has no identity.
- The kind is that noun. For `id`, it is the object's own `object`, `kind` or `type`, else the tool's name without a
  leading verb, without trailing words such as "details" and, in a list, without the plural s.
- The entity is document/<kind>-<id>. Every member of the object is asserted in its `fields`. A member that is null
  removes that field; an absent member asserts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from refold.agents.importers.messages import ToolCall
from refold.avro.envelope import check_entity
from refold.avro.errors import ValidationError
from refold.avro.observation import Value

WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
ID_MEMBER = re.compile(r"(?P<noun>.+)(?:_id|Id)\Z")
VERBS = frozenset(
    {"add", "book", "cancel", "create", "delete", "edit", "fetch", "find", "get", "list", "load", "lookup"}
    | {"modify", "query", "read", "remove", "search", "set", "show", "update"}
)
TRAILERS = frozenset({"by", "detail", "details", "id", "info"})


@dataclass(frozen=True, slots=True)
class Document:
    """A document in a result: `entity` is document/<kind>-<id>, `fields` its members."""

    kind: str
    entity: str
    fields: Mapping[str, Value]


def document(kind: str, identifier: Value, fields: Mapping[str, Value]) -> Document | None:
    """Return the document, or None if kind and id make no valid entity.

    Args:
        kind: The kind of document.
        identifier: Its id. Only a non-empty string or an integer is valid.
        fields: The members of the document.
    """
    if isinstance(identifier, bool) or not isinstance(identifier, (str, int)) or identifier == "":
        return None
    try:
        return Document(kind, check_entity(f"document/{kind}-{identifier}"), fields)
    except ValidationError:
        return None


def documents(call: ToolCall, result: Value) -> Iterator[Document]:
    """Yield the documents of a tool's parsed result, by the rule of this module."""
    in_list = isinstance(result, list)
    for each in result if isinstance(result, list) else [result]:
        if isinstance(each, Mapping):
            kind, key = _identity(call.tool, each, in_list)
            found = document(kind, each.get(key), each) if key else None
            if found is not None:
                yield found


def _identity(tool: str, given: Mapping[str, Value], in_list: bool) -> tuple[str, str]:
    """Return the kind and the id member of an object; the member is "" if the object has no identity."""
    words = [word.lower() for word in WORDS.split(tool) if word]
    if "id" in given:
        named = (given.get(key) for key in ("object", "kind", "type"))
        own = next((each for each in named if isinstance(each, str) and each), "")
        return own or _noun(tool, words, in_list), "id"
    nouns = {match["noun"]: key for key in given if (match := ID_MEMBER.match(key))}
    by_tool = [noun for noun in nouns if {noun.lower(), f"{noun.lower()}s"} & {*words, "_".join(words[1:])}]
    chosen = by_tool if len(by_tool) == 1 else list(nouns)
    return (chosen[0], nouns[chosen[0]]) if len(chosen) == 1 else ("", "")


def _noun(tool: str, words: list[str], in_list: bool) -> str:
    rest = words[1:] if words and words[0] in VERBS else list(words)
    while rest and rest[-1] in TRAILERS:
        rest.pop()
    if not rest:
        return tool
    if in_list and rest[-1].endswith("s") and not rest[-1].endswith("ss"):
        rest[-1] = rest[-1][:-1]
    return "_".join(rest)
