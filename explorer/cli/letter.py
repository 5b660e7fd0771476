"""One dead letter, in JSON and on the screen."""

from __future__ import annotations

import json
from typing import Any

from refold.avro.ids import identify
from refold.avro.line import to_line
from refold.avro.registry import Registry
from refold.avro.times import millis_text
from refold.explorer.cli.screen import Screen, counted
from refold.explorer.cli.shapes import position_json
from refold.streams.deadletters import Letter

SHOWN_BYTES = 512
ROW_BYTES = 16


def letter_json(letter: Letter) -> dict[str, Any]:
    """What a list says of it."""
    verdict = letter.verdict
    return {
        "position": position_json(letter.position),
        "deadletter": position_json(letter.position._replace(offset=letter.number)),
        "appended_at": millis_text(verdict.timestamp),
        "reason": verdict.reason,
        "detail": verdict.detail,
        "remedy": letter.remedy,
        "type": letter.type_name or None,
        "entity": letter.entity or None,
        "retry_of": None if letter.retry_of is None else position_json(letter.retry_of),
    }


def whole_json(letter: Letter, registry: Registry) -> dict[str, Any]:
    """Everything: bytes in hex, and the observation in them as an exported line, where a schema decodes it."""
    verdict = letter.verdict
    return {
        **letter_json(letter),
        "key": None if verdict.key is None else verdict.key.hex(),
        "headers": [[name, value.hex() if isinstance(value, bytes) else value] for name, value in verdict.headers],
        "schema_id": letter.wire_id,
        "value": None if verdict.value is None else verdict.value.hex(),
        "observation": _line(letter, registry),
    }


def show_letter(screen: Screen, letter: Letter, registry: Registry) -> None:
    """The same for people."""
    verdict = letter.verdict
    screen.say(f"{letter.position}: {verdict.reason}", "bold")
    screen.say(f"why          {verdict.detail}")
    screen.say(f"what to do   {letter.remedy}", "yellow")
    screen.say(f"appended     {millis_text(verdict.timestamp)}")
    screen.say(f"dead letter  {letter.position._replace(offset=letter.number)} of .deadletters")
    if letter.retry_of is not None:
        screen.say(f"retry of     {letter.retry_of}")
    screen.say(f"key          {_bytes_text(verdict.key)}")
    for name, value in verdict.headers:
        screen.say(f"header       {name}: {value.hex() if isinstance(value, bytes) else _bytes_text(value)}")
    screen.say(f"schema       {_schema(letter, registry)}")
    line = _line(letter, registry)
    if line is not None:
        screen.say(f"observation  {json.dumps(line, ensure_ascii=False)}")
    value = verdict.value
    screen.say(f"value        {'none' if value is None else counted(len(value), 'byte')}")
    shown = SHOWN_BYTES if screen.is_terminal else len(value or b"")
    for start in range(0, min(len(value or b""), shown), ROW_BYTES):
        row = (value or b"")[start : start + ROW_BYTES]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        screen.say(f"  {start:08x}  {row.hex(' '):<{3 * ROW_BYTES - 1}}  {text}")
    if shown < len(value or b""):
        screen.say(f"  and {counted(len(value or b'') - shown, 'byte')} more; --json has all of them")


def _line(letter: Letter, registry: Registry) -> dict[str, Any] | None:
    version = None if letter.observation is None else registry.writer(letter.verdict.value or b"")
    if letter.observation is None or version is None:
        return None
    return to_line(letter.observation, identify(letter.observation), version.definition)


def _schema(letter: Letter, registry: Registry) -> str:
    if letter.wire_id is None:
        return "its bytes name none"
    version = registry.writer(letter.verdict.value or b"")
    if version is None:
        return f"id {letter.wire_id}, which this log does not hold"
    return f"id {letter.wire_id}, of the type {version.definition.name}"


def _bytes_text(given: bytes | str | None) -> str:
    """Bytes as the text that they are, else in hex."""
    if given is None:
        return "none"
    if isinstance(given, str):
        return given
    try:
        return given.decode()
    except UnicodeDecodeError:
        return f"0x{given.hex()}"
