"""A replay restores the details of an exception without running code that the record names."""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import json
import os
import subprocess
import sys
import types
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, cast

import httpx2
import msgspec
import pydantic
import pydantic_core
import pytest
import requests
from hypothesis import example, given
from hypothesis import strategies as st

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.runner import judged_run
from refold.agents.journal import json_fidelity
from refold.agents.journal.record import Failure
from refold.agents.log import AgentLog
from refold.agents.recorder.exception_details import VALUES_MAX, ExceptionBuilder
from refold.agents.recorder.failures import RecordedFailure, failure_of, raised
from refold.agents.recorder.run import Run
from refold.agents.redaction.redactor import Redactor
from refold.avro.canonical import encode, json_tree

SECRET = "sk-9f8e7d6c5b4a39281706f5e4d3c2b1a0"


class Colour(enum.Enum):
    RED = 1


class Base(Exception):
    made: ClassVar[list[object]] = []

    def __init__(self, code: int, *, reason: str, more: Any = None) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason
        self.more = more
        self.made.append(self)


class Refused(Base):
    """One class of a hierarchy."""


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


class Unread(httpx2.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("nobody reads it")


class Formless:
    """A value that has no form."""


def through_log(error: BaseException) -> Any:
    """Return the exception as a replay gets it, after everything that a log does to it."""
    failure = failure_of(error, 5)
    held = msgspec.json.decode(msgspec.json.encode(json_fidelity.written(failure.details)))
    encode(json_tree(held, "details"))  # check that a log can hold it
    return raised(msgspec.structs.replace(failure, details=json_fidelity.read(held)))


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError


def test_attributes_are_restored_without_running_init() -> None:
    Base.made.clear()
    found = through_log(Refused(503, reason="down", more={"at": [1, 2.0, None]}))
    assert isinstance(found, Refused)
    assert (found.code, found.reason, found.more, str(found)) == (503, "down", {"at": [1, 2.0, None]}, "503: down")
    assert found.args == ("503: down",)
    assert len(Base.made) == 1


def test_fields_of_builtin_classes_and_slots_are_restored() -> None:
    missing = through_log(FileNotFoundError(2, "No such file", "x"))
    assert (missing.errno, missing.strerror, missing.filename) == (2, "No such file", "x")
    assert through_log(KeyError("a")).args == ("a",)
    assert through_log(SystemExit(3)).code == 3
    assert through_log(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")).object == b"\xff"
    assert through_log(caught(lambda: json.loads("{"))).lineno == 1
    assert through_log(Slotted(7)).code == 7
    group = through_log(ExceptionGroup("many", [ValueError("a"), Refused(1, reason="b")]))
    assert [type(each) for each in group.exceptions] == [ValueError, Refused]
    assert group.exceptions[1].code == 1


def test_exception_chains_are_restored() -> None:
    def chained() -> None:
        try:
            raise Refused(1, reason="first")
        except Refused as error:
            raise ValueError("second") from error

    def hidden() -> None:
        try:
            raise KeyError("x")
        except KeyError:
            raise LookupError("no x") from None

    found = through_log(caught(chained))
    assert (type(found.__cause__), found.__cause__.code, found.__suppress_context__) == (Refused, 1, True)
    found = through_log(caught(hidden))
    assert (found.__cause__, found.__context__.args, found.__suppress_context__) == (None, ("x",), True)


def test_cyclic_exception_chain_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert str(through_log(one).__cause__) == "other"


@pytest.mark.parametrize("is_read", [True, False])
def test_httpx_errors_have_their_response(is_read: bool) -> None:
    sent = {"authorization": f"Bearer {SECRET}", "accept": "*/*"}
    url = f"https://me:{SECRET}@x.example/a?key={SECRET}&q=1"
    asked = httpx2.Request("POST", url, headers=sent, content=b"asked")
    body: Any = {"content": b'{"error": "caf\xc3\xa9"}'} if is_read else {"stream": Unread()}
    headers = [("content-type", "application/json"), ("retry-after", "7"), ("x-a", "1"), ("x-a", "2"),
               ("set-cookie", SECRET)]  # fmt: skip
    response = httpx2.Response(429, headers=headers, request=asked, **body)
    error = caught(httpx2.Response.raise_for_status.__get__(response))
    found = through_log(error)
    assert isinstance(found, httpx2.HTTPStatusError)
    assert (found.response.status_code, found.response.headers["retry-after"]) == (429, "7")
    assert found.response.headers.get_list("x-a") == ["1", "2"]
    if is_read:
        assert (found.response.text, found.response.json()) == ('{"error": "café"}', {"error": "café"})
    else:
        with pytest.raises(httpx2.ResponseNotRead):
            found.response.text  # noqa: B018
    assert (found.request.method, found.request.headers["accept"], found.request.content) == ("POST", "*/*", b"asked")
    assert found.request.url.params["q"] == "1"
    with pytest.raises(httpx2.HTTPStatusError):
        found.response.raise_for_status()
    assert SECRET not in msgspec.json.encode(failure_of(error, 5).details).decode()


def test_requests_errors_have_their_response() -> None:
    response = requests.Response()
    response.status_code, response.reason, response.url = 404, "Not Found", "https://x.example/a"
    response._content, response._content_consumed, response.encoding = b"gone", True, "utf-8"
    response.headers.update({"Content-Type": "text/plain", "Set-Cookie": SECRET})
    response.request = requests.Request("GET", "https://x.example/a", headers={"accept": "*/*"}).prepare()
    error = caught(response.raise_for_status)
    found = through_log(error)
    assert type(found) is requests.HTTPError
    found = cast(Any, found)
    assert (found.response.status_code, found.response.text, found.response.ok) == (404, "gone", False)
    assert found.response.headers["content-type"] == "text/plain"
    assert (found.request.method, found.request.headers["Accept"]) == ("GET", "*/*")
    assert SECRET not in msgspec.json.encode(failure_of(error, 5).details).decode()


class Order(pydantic.BaseModel):
    amount: int
    name: str = pydantic.Field(min_length=3)

    @pydantic.field_validator("amount")
    @classmethod
    def _paid(cls, value: int) -> int:
        if value > 100:
            raise pydantic_core.PydanticCustomError("too_much", "more than {most}", {"most": 100})
        if value < 0:
            raise ValueError("less than nothing")
        return value


@pytest.mark.parametrize(
    "make",
    [
        lambda: Order(amount="x", name="ab"),  # type: ignore[arg-type]
        lambda: Order(amount=101, name="abc"),
        lambda: Order(amount=-1, name="abc"),
        lambda: Order.model_validate_json('{"amount": [1], "name": 7}'),
        lambda: Order.model_validate([1]),
    ],
    ids=["types", "custom", "value_error", "json", "whole"],
)
def test_pydantic_errors_are_restored(make: Callable[[], object]) -> None:
    error: Any = caught(make)
    found = through_log(error)
    assert isinstance(found, pydantic.ValidationError)
    assert str(found) == str(error)
    assert found.error_count() == error.error_count()
    assert [each["loc"] for each in found.errors()] == [each["loc"] for each in error.errors()]


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.binary(max_size=5)
    | st.decimals(allow_nan=False) | st.datetimes().map(lambda each: each.replace(fold=0)) | st.dates()
    | st.times().map(lambda each: each.replace(fold=0)) | st.timedeltas() | st.uuids() | st.just(Colour.RED)
    | st.just(Path("a/b")),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.sampled_from(["a", "refold.set", "refold.float"]) | st.integers(0, 3), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@given(VALUES)
@example({"refold.tuple": [1]})
@example({"refold.error": {}, "b": 1})
@example({"a"})
@example(frozenset({Decimal("1.50")}))
@example(uuid.UUID(int=5))
@example(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
def test_values_are_restored_or_named(value: Any) -> None:
    found = through_log(Refused(1, reason="x", more=value))
    if "more" in vars(found):
        assert (type(found.more), found.more, repr(found.more)) == (type(value), value, repr(value))
    else:
        assert "more" in found.__notes__[0]


@pytest.mark.parametrize("value", [Formless(), 2**64, float("nan"), "\ud800", "x" * 300_000, [1] * VALUES_MAX,
                                   [Formless()]],
                         ids=["object", "integer", "nan", "surrogate", "long", "many", "inner"])  # fmt: skip
def test_unserializable_values_are_left_out_and_named(value: Any) -> None:
    found = through_log(Refused(1, reason="x", more=value))
    assert (type(found), found.code, hasattr(found, "more")) == (Refused, 1, False)
    assert "not recorded of it: more" in found.__notes__[0]


@dataclass
class Reply:
    status: int
    tags: tuple[str, ...] = ()
    at: dt.datetime | None = None


class Problem(pydantic.BaseModel):
    code: int
    replies: list[Reply] = []


def test_objects_built_from_their_fields_are_restored() -> None:
    reply = Reply(429, ("a",), dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    for value in (reply, Problem(code=5, replies=[reply]), {"all": [reply, reply]}, (reply,)):
        found = through_log(Refused(1, reason="x", more=value))
        assert (type(found.more), found.more) == (type(value), value)
    for unkept in (Reply(1, tags=(Formless(),)), Reply("x" * 300_000)):  # type: ignore[arg-type]
        assert "not recorded of it: more" in through_log(Refused(1, reason="x", more=unkept)).__notes__[0]


def test_deep_values_are_left_out() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    assert not hasattr(through_log(Refused(1, reason="x", more=deep)), "more")


def test_stand_in_has_the_attributes_and_says_that_it_is_one() -> None:
    kind = type("Gone", (Exception,), {"__module__": "no.such.module"})
    error = kind("text")
    error.code = 7
    error.__cause__ = ValueError("why")
    found = through_log(error)
    assert isinstance(found, RecordedFailure)
    assert (found.code, str(found), type(found).__module__) == (7, "text", "no.such.module")  # type: ignore[attr-defined]
    assert "stands in for no.such.module.Gone: its class is not imported" in found.__notes__[0]
    assert through_log(found).code == 7


# What the record names does not run any code


class Trap(Exception):
    sprung: ClassVar[list[str]] = []

    def __new__(cls, *args: Any) -> Trap:
        cls.sprung.append("new")
        return super().__new__(cls, *args)

    def __init__(self, *args: Any) -> None:
        self.sprung.append("init")

    def __setattr__(self, name: str, value: object) -> None:
        self.sprung.append("setattr")

    def __setstate__(self, state: object) -> None:
        self.sprung.append("setstate")

    def __init_subclass__(cls) -> None:
        cls.sprung.append("subclass")

    @property
    def guarded(self) -> int:
        return 1

    @guarded.setter
    def guarded(self, value: object) -> None:
        self.sprung.append("property")


class Dropped(Exception):
    def __del__(self) -> None:
        Trap.sprung.append("del")


NAME = f"{__name__}."


@pytest.mark.parametrize("name", ["Trap", "Dropped"])
@pytest.mark.parametrize("message", ["x", "other"])
def test_only_str_of_a_class_is_called(name: str, message: str) -> None:
    Trap.sprung.clear()
    details = {"args": ["x"], "fields": {"guarded": 5, "__class__": "y", "own": 2}, "suppress": True}
    error = raised(Failure(exception=NAME + name, message=message, details=details))
    assert vars(error)["own"] == 2
    del error
    assert Trap.sprung == []


@pytest.fixture
def lazy() -> Iterator[list[str]]:
    """A module that loads an attribute on first use, and one that loads itself."""
    asked: list[str] = []
    module = types.ModuleType("lazily_loaded")
    module.__getattr__ = asked.append  # type: ignore[method-assign]

    class Itself(types.ModuleType):
        def __getattribute__(self, name: str) -> object:
            asked.append(name)
            return super().__getattribute__(name)

    sys.modules["lazily_loaded"], sys.modules["lazily_itself"] = module, Itself("lazily_itself")
    yield asked
    del sys.modules["lazily_loaded"], sys.modules["lazily_itself"]


def test_no_module_is_imported_because_a_record_names_it(lazy: list[str]) -> None:
    before = set(sys.modules)
    for name in ("lazily_loaded.Error", "lazily_itself.Error", "antigravity.Error", "this.Error"):
        found = raised(Failure(exception=name, message="x", details={"fields": {"more": {"refold.enum": [name, "A"]}}}))
        assert isinstance(found, RecordedFailure)
    assert lazy == []
    assert set(sys.modules) == before


def test_only_exceptions_and_enumerations_are_constructed() -> None:
    assert isinstance(raised(Failure(exception="subprocess.Popen", message="x")), RecordedFailure)
    made = ExceptionBuilder(lambda name, message, details: ValueError(message))
    for name in ("subprocess.Popen", f"{NAME}Held", "os.environ"):
        with contextlib.suppress(Exception):
            pytest.fail(f"made {made.value({'refold.enum': [name, 'x']})}")


FORMS: Any = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.sampled_from(["builtins.ValueError", f"{NAME}Refused"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "args", "fields", "cause", "context", "suppress", "left", "title", "lines", "exception", "message", "a",
        *(f"refold.{kind}" for kind in ("tuple", "set", "dict", "bytes", "enum", "error", "decimal", "timedelta", "?",
                                        "value", "httpx2.Response", "httpx2.Request", "requests.Response")),
    ]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(FORMS, st.sampled_from(["builtins.ValueError", f"{NAME}Refused", "httpx2.HTTPStatusError",
                               "pydantic_core._pydantic_core.ValidationError", "builtins.ExceptionGroup"]))  # fmt: skip
def test_malformed_details_give_an_exception_with_the_text(details: Any, name: str) -> None:
    found = raised(Failure(exception=name, message="the text", details=details))
    assert str(found) == "the text"


# In runs


@refold.tool(effect="read", name="ask")
def ask(order: str) -> Any:
    response = httpx2.Response(
        429, headers={"retry-after": "7"}, text="slow down", request=httpx2.Request("GET", "http://x")
    )
    response.raise_for_status()


def patient(run: Run) -> Any:
    try:
        ask("o-7")
    except httpx2.HTTPStatusError as error:
        run.state["waited"] = error.response.headers["retry-after"]
        return [error.response.status_code, error.response.text]


def test_agent_that_inspects_an_error_replays(log: AgentLog) -> None:
    run = log.run("a")
    assert run.drive(patient) == [429, "slow down"]
    replayed = log.replay(run.id, patient)
    assert replayed.is_same
    assert replayed.now.output == [429, "slow down"]
    golden = golden_of_run(log.recording(run.id), lambda entity, answer: {}, name="patient", entry="x:patient")
    assert judged_run(golden, patient, "patient", Path()).passed


def failing(run: Run) -> None:
    with run.step("first"):
        run.state["n"] = 1
    with run.step("second"):
        raise Refused(5, reason="own", more=(1, b"\xff"))


def test_failed_step_and_run_raise_the_same_exception_again(log: AgentLog) -> None:
    run = log.run("a")
    with pytest.raises(Refused):
        run.drive(failing)
    assert log.replay(run.id, failing).is_same


def test_details_are_redacted(tmp_path: Path) -> None:
    @refold.tool(effect="read", name="leak")
    def leak() -> None:
        raise Refused(401, reason=f"key {SECRET}", more={"api_key": "hunter2", "body": SECRET.encode(), "at": 5})

    def agent(run: Run) -> Any:
        try:
            leak()
        except Refused as error:
            return [error.code, error.more["at"]]

    with refold.open(f"file:{tmp_path / 'log'}") as log:
        run = log.run("a", redact=Redactor())
        run.drive(agent)
        kept = str(msgspec.to_builtins(log.recording(run.id)))
        assert SECRET not in kept
        assert "hunter2" not in kept
        replayed = log.replay(run.id, agent)
        assert (replayed.is_same, replayed.now.output) == (True, [401, 5])


PROGRAM = """\
import sys
import refold

class Refused(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code

@refold.tool(effect="read")
def look():
    raise Refused(5)

def agent(run):
    try:
        look()
    except Refused as error:
        run.state["code"] = error.code
    with run.step("fails"):
        raise Refused(7)

if __name__ == "__main__":
    with refold.open("file:log") as log:
        run = log.run("a", entry="agent.py:agent")
        try:
            run.drive(agent)
        except Refused:
            print(run.id)
"""


def test_class_of_main_is_found_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    given: Any = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True, "timeout": 60}
    run = subprocess.run([sys.executable, "agent.py"], check=True, **given).stdout.strip()
    command = [sys.executable, "-m", "refold.explorer.cli.main", "--log", "file:log", "run", "replay", run]
    replayed = subprocess.run(command, check=False, **given)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
