"""The public interface for writing an importer: a format of recorded conversations for `refold import --format NAME`.

from refold.importer import Conversation, Importer, ImportFile, parse_messages

def read(file: ImportFile):
    for line in file.lines():
        yield Conversation(
            run=file.run_of(line.value), place=line.place, agent="desk", imported_from="desk",
            messages=parse_messages(line.value["dialog"], line.place),
        )

DESK = Importer(
    name="desk", summary="dialogs of the desk", read=read,
    recognise=lambda value: "an object with dialog" if isinstance(value, dict) and "dialog" in value else "",
)

A package names it in an entry point of the group `refold.importers`; without one it is --format MODULE:DESK.
`refold.testing.importers` checks the rules for importers in your tests.
"""

from __future__ import annotations

from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.documents import Document
from refold.agents.importers.file import Budget, ImportFile
from refold.agents.importers.json_lines import FileLimits, Line
from refold.agents.importers.messages import Message, ToolCall, parse_messages, record
from refold.agents.importers.model import Conversation, Importer, Judgement
from refold.agents.importers.registry import importer_of, names
from refold.agents.importers.times import own_time

__all__ = [
    "Budget",
    "Conversation",
    "Document",
    "FileLimits",
    "ImportFile",
    "Importer",
    "Judgement",
    "Line",
    "Message",
    "ToolCall",
    "import_conversation",
    "importer_of",
    "names",
    "own_time",
    "parse_messages",
    "record",
]
