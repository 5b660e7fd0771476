"""A golden trace: one run and what is expected of the code that is run against it, in one self-contained file.

The file is `NAME.golden.json`, JSON for version control and reviews. It holds everything that a replay needs, so no
log, broker or key is used.

    refold_golden   1, the format
    name            its name, and that of its file
    description     for readers
    entry           the agent that is run, `module:function`
    expect          what the agent must do now (golden/expect.py)
    known_bad       the error of the recorded run, if it is kept because it was wrong
    must_fail       why today's code does not meet the expectations: while this is set, meeting them is a failure
    redact          the function that removed secrets, `module:function`: it is applied to what the agent does, too
    answers         [{name, answer}]: what a tool or a model answers to a request that was not recorded
    recorded        {run, hash}: the run's id in its log, and its hash there
    run             the Recording (journal/record.py), portable and without hashes (golden/add.py)
    sha256          of all the above as JSON with sorted keys and without white space

1. Writing makes the recording portable, chains it, and signs it: `sha256`. The file is replaced as a whole.
2. Reading checks sha256 first. An edited file does not match, and is refused until the user accepts the edit: `refold
   golden sign FILE`. White space and the order of keys do not count as edits.
3. A key that the format does not know is refused: a misspelled key would otherwise be ignored.
4. The recording is chained again by today's rules, so the file's format does not depend on the format of hashes.
5. A later format reads the earlier ones: `_READERS` has one function for each, which is never removed.

The JSON is for diffs: one member a line, keys in the order of the run, no endless lines. A value that fits in a line is
on one line. A long text, or one with several lines, is written as {"$text": [its pieces]}; the pieces are joined
unchanged. An object that looks like that is written as {"$object": it}. Law: parsed(pretty(tree)) equals the tree, to
the type of each number.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from refold.agents.journal.record import (
    Attempt,
    Call,
    Failure,
    Fork,
    Plain,
    RecordedRequest,
    Recording,
    Retry,
    Step,
    child_of,
)
from refold.agents.journal.self_replay import chained, unchained
from refold.avro import strict_json
from refold.avro.canonical import json_tree
from refold.avro.errors import CorruptionError, InputError

_WIDTH = 100
_PIECE_MAX = 80
_TEXT, _OBJECT = "$text", "$object"
_MARKS = ({_TEXT}, {_OBJECT})
_PIECES = re.compile(rf".{{1,{_PIECE_MAX}}}(?:\s|$)|.{{1,{_PIECE_MAX}}}", re.DOTALL)


def pretty(tree: Plain) -> str:
    """Return the text of a JSON tree, ending with a line break. Keys are in the order of the tree."""
    return _indented(_split(tree), "", 0) + "\n"


def parsed(text: str) -> Plain:
    """Return the tree of the text.

    Raises:
        ValueError: It is not JSON, or not usable.
    """
    return _joined(strict_json.loads(text))


def compact(tree: Plain) -> str:
    """Return the canonical text of a tree: keys sorted, no white space."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _indented(tree: Plain, indent: str, width: int) -> str:
    line = json.dumps(tree, ensure_ascii=False, allow_nan=False)
    if not isinstance(tree, (dict, list)) or not tree:
        return line
    if len(line) + width < _WIDTH and f'"{_TEXT}"' not in line:
        return line
    if isinstance(tree, dict):
        if tree.keys() == {_TEXT} and isinstance(tree[_TEXT], list):  # each of its pieces on a line
            opening, closing, tree = f'{{"{_TEXT}": [', "]}", tree[_TEXT]
        else:
            opening, closing = "{", "}"
    else:
        opening, closing = "[", "]"
    inner = indent + "  "
    heads = [f"{json.dumps(key, ensure_ascii=False)}: " for key in tree] if isinstance(tree, dict) else [""] * len(tree)
    members = tree.values() if isinstance(tree, dict) else tree
    lines = [
        f"{inner}{head}{_indented(each, inner, len(inner) + len(head))}"
        for head, each in zip(heads, members, strict=True)
    ]
    return f"{opening}\n" + ",\n".join(lines) + f"\n{indent}{closing}"


def _split(tree: Plain) -> Plain:
    if isinstance(tree, str):
        return {_TEXT: _pieces(tree)} if len(tree) > _PIECE_MAX or "\n" in tree[:-1] else tree
    if isinstance(tree, dict):
        inner = {key: _split(value) for key, value in tree.items()}
        return {_OBJECT: inner} if tree.keys() in _MARKS else inner
    return [_split(each) for each in tree] if isinstance(tree, list) else tree


def _pieces(text: str) -> list[str]:
    """Return the lines of a text; long lines are split into pieces that end between words."""
    return [piece for line in text.splitlines(keepends=True) for piece in _PIECES.findall(line)]


def _joined(tree: Plain) -> Plain:
    if isinstance(tree, dict):
        if tree.keys() == {_TEXT} and isinstance(tree[_TEXT], list):
            if not all(isinstance(piece, str) for piece in tree[_TEXT]):
                raise ValueError(f"a {_TEXT} is a list of texts")
            return "".join(tree[_TEXT])
        if tree.keys() == {_OBJECT} and isinstance(tree[_OBJECT], dict):
            return {key: _joined(value) for key, value in tree[_OBJECT].items()}
        return {key: _joined(value) for key, value in tree.items()}
    return [_joined(each) for each in tree] if isinstance(tree, list) else tree


FORMAT = 1
SUFFIX = ".golden.json"
BYTES_MAX = 64 << 20
_LEVELS_OF_FORM = 20
"""The greatest depth of a file's own structure. Each value in it may be as deep as any other JSON value."""
_MARK, _SIGNATURE = "refold_golden", "sha256"
_ADD = "write one with: refold golden add RUN --out"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class DefaultAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of a tool or a model of that name to any request that was not recorded."""

    name: str
    answer: Plain


class Origin(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The run in its log: its id, and its hash there."""

    run: str = ""
    hash: str = ""


def is_exact(expect: Iterable[str]) -> bool:
    """Return whether expectations are that the code does exactly what was recorded."""
    return any(each.strip() == "exact" for each in expect)


class Golden(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One golden trace. The module describes the other attributes.

    Attributes:
        run: The run, chained.
    """

    name: str
    description: str = ""
    entry: str = ""
    expect: tuple[str, ...] = ("exact",)
    known_bad: str = ""
    must_fail: str = ""
    redact: str = ""
    answers: tuple[DefaultAnswer, ...] = ()
    recorded: Origin = Origin()
    run: Recording

    @property
    def is_exact(self) -> bool:
        """Whether the code must do exactly what was recorded."""
        return is_exact(self.expect)

    def __repr__(self) -> str:
        return f"<golden trace {self.name}: {'; '.join(self.expect)}>"


def text_of(golden: Golden) -> str:
    """Return the file's text, signed."""
    document = _document(golden)
    return pretty({**document, _SIGNATURE: _signature(document)})


def golden_of(text: str, place: str) -> Golden:
    """Return the content of a file's text.

    Args:
        text: The text.
        place: The file's name, for errors.

    Raises:
        InputError: It is not a golden trace.
        CorruptionError: It was edited and not signed again.
    """
    document = _parse_document(text, place)
    signature = document.pop(_SIGNATURE, None)
    if signature != _signature(document):
        raise CorruptionError(
            f"{place}: its content does not match its signature: it was edited, or merged badly. If the edit is "
            f"intended, sign it: refold golden sign {place}"
        )
    return _read(document, place)


def signed(text: str, place: str) -> str:
    """Return the text with its content signed, whatever was signed before."""
    document = _parse_document(text, place)
    document.pop(_SIGNATURE, None)
    return text_of(_read(document, place))


def write(golden: Golden, folder: Path) -> Path:
    """Write the file into a folder, which is created if it is missing.

    Returns:
        Its path.

    Raises:
        InputError: The trace's name cannot be a file's name.
    """
    if not _NAME.fullmatch(golden.name):
        raise InputError(
            f"a golden trace's name is letters, digits, '.', '_' and '-', up to 100; given {golden.name!r}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{golden.name}{SUFFIX}"
    replace(path, text_of(golden))
    return path


def replace(path: Path, text: str) -> None:
    """Replace the file's content by this text: as a whole, or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path) -> Golden:
    """Read the golden trace in a file.

    Raises:
        InputError: It cannot be read, or is not a golden trace.
        CorruptionError: It was edited and not signed again.
    """
    return golden_of(text_in(path), str(path))


def found(place: Path) -> list[Path]:
    """Return the files of golden traces in a folder and below it, by name, without hidden ones; or the given file.

    Raises:
        InputError: There is none.
    """
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise InputError(f"{place}: no such folder or file; {_ADD} {place}")
    files = sorted(
        each
        for each in place.rglob(f"*{SUFFIX}")
        if each.is_file() and not any(part.startswith(".") for part in each.relative_to(place).parts)
    )
    if not files:
        raise InputError(f"{place}: it holds no golden trace (*{SUFFIX}); {_ADD} {place}")
    return files


def text_in(path: Path) -> str:
    """Return a file's text.

    Raises:
        InputError: It cannot be read, is too long, or is not text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise InputError(f"{path}: not a golden trace: it is longer than {BYTES_MAX:,} bytes")
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a golden trace: it is not UTF-8 text ({error})") from None


def _parse_document(text: str, place: str) -> dict[str, Plain]:
    try:
        document = parsed(text)
        json_tree(document, "", -_LEVELS_OF_FORM)
    except ValueError as error:
        raise InputError(f"{place}: not a golden trace: it is not usable JSON ({error})") from None
    if not isinstance(document, dict) or _MARK not in document:
        raise InputError(f"{place}: not a golden trace: it has no {_MARK!r}; `refold golden add` writes them")
    return document


def _read(document: dict[str, Plain], place: str) -> Golden:
    mark = document[_MARK]
    reader = _READERS.get(mark) if type(mark) is int else None
    if reader is None:
        raise InputError(
            f"{place}: its format {mark!r:.80} is not one that this release reads (the newest is {FORMAT}): "
            "install the release that wrote it, or a later one"
        )
    return reader(document, place)


def _read_1(document: dict[str, Plain], place: str) -> Golden:
    try:
        golden = msgspec.convert({key: value for key, value in document.items() if key != _MARK}, Golden)
    except msgspec.ValidationError as error:
        raise InputError(f"{place}: {error}; see `agents/golden/file.py` for what a golden trace holds") from None
    unknown = _unknown(document["run"], _tree(unchained(golden.run)), "run")
    if unknown:
        raise InputError(f"{place}: {unknown} is not a part of a recorded run; remove it, or correct its spelling")
    wrong = _misshapen(golden.run)
    if wrong:
        raise InputError(f"{place}: {wrong}")
    try:
        return msgspec.structs.replace(golden, run=chained(golden.run))
    except ValueError as error:
        raise InputError(f"{place}: the recorded run cannot be replayed: {error}") from None


def _misshapen(run: Recording) -> str:
    """Describe what is wrong with the form of the recording, "" if nothing: trees whose form depends on a kind."""
    for child in run.children.values():
        wrong = _misshapen(child)
        if wrong:
            return wrong
    for step in run.steps:
        for attempt in step.attempts:
            for number, call in enumerate(attempt.calls, 1):
                place = f"run.steps: step {step.number}: call {number}: a call of kind {call.asked.kind}"
                if call.asked.kind == "decide" and not (
                    isinstance(call.asked.request, dict) and "choice" in call.asked.request
                ):
                    return f"{place} has a request with a choice"
                if call.asked.kind == "run" and child_of(call) not in run.children:
                    return f"{place} has an answer with the id of a run that is among the children"
    for fork in run.parted:
        if isinstance(fork.patch, dict) and not isinstance(fork.patch.get("state", []), list):
            return "run.patch: its state is a list of edits"
    return ""


_READERS = {1: _read_1}
_DEFAULTED = frozenset(
    name
    for each in (Recording, Fork, Step, Attempt, Call, RecordedRequest, Failure, Retry)
    for name in each.__struct_fields__
)


def _unknown(given: Plain, known: Plain, path: str) -> str:
    """Return the path of a given key that is not stored; "" if there is none. Defaults may be left out of either."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            if key in known:
                inner = _unknown(value, known[key], f"{path}.{key}")
                if inner:
                    return inner
            elif key not in _DEFAULTED:
                return f"{path}.{key}"
    elif isinstance(given, list) and isinstance(known, list):
        for index, (left, right) in enumerate(zip(given, known, strict=False)):
            inner = _unknown(left, right, f"{path}[{index}]")
            if inner:
                return inner
    return ""


def _document(golden: Golden) -> dict[str, Plain]:
    """Return the file's content in order. Defaults are left out, except those that readers look for."""
    tree = _tree(msgspec.structs.replace(golden, run=unchained(golden.run)))
    tree["expect"] = list(golden.expect)
    return {_MARK: FORMAT, **{name: tree[name] for name in Golden.__struct_fields__ if name in tree}}


def _tree(part: msgspec.Struct) -> Plain:
    """Return the tree in JSON's own types, because msgspec leaves tuples unchanged."""
    return json.loads(json.dumps(msgspec.to_builtins(part), allow_nan=False))


def _signature(document: dict[str, Plain]) -> str:
    return hashlib.sha256(compact(document).encode()).hexdigest()
