"""Values that JSON does not have, wherever a run has values: they are restored as they were."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import importlib.util
import json
import math
import signal
import subprocess
import sys
import types
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from importlib.abc import Loader
from importlib.util import LazyLoader
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import golden_of, text_of
from refold.agents.golden.runner import judged_run
from refold.agents.journal import json_fidelity
from refold.agents.journal.class_names import class_name, loaded_class
from refold.agents.journal.objects import StandIn, bare, dumped, loaded
from refold.agents.log import AgentLog
from refold.agents.recorder.plain import decoded, kept
from refold.agents.redaction.redactor import Redactor
from refold.agents.replay.run import stepped
from refold.avro.canonical import encode, json_tree
from refold.avro.errors import InputError
from refold_tests.child import Child
from refold_tests.command import refold_command
from refold_tests.recordable_values import (
    CALLED,
    CODE,
    EVERY,
    KINDS,
    Colour,
    Item,
    Order,
    Pair,
    agent,
    begun,
    everything,
    made_of,
    parts,
    require_same,
)
from refold_tests.tree import ROOT

kinds = pytest.mark.parametrize("kind", KINDS)


def run_id(kind: str) -> str:
    return f"values-{list(KINDS).index(kind)}"


@pytest.fixture(scope="module")
def recorded(log: AgentLog) -> AgentLog:
    """Return the log, with a run of each kind."""
    for kind in KINDS:
        output = begun(log, kind, run_id(kind)).drive(partial(agent, kind=kind))
        require_same(output["value"], KINDS[kind], "output")
    return log


@kinds
def test_replay_restores_values(recorded: AgentLog, kind: str) -> None:
    CALLED.clear()
    found = recorded.replay(run_id(kind), partial(agent, kind=kind))
    assert found.now.failure is None
    assert found.is_same
    assert CALLED == []
    require_same(loaded(recorded.recording(run_id(kind)).output)["value"], KINDS[kind], "output")


@kinds
def test_fork_restores_and_replaces_values(recorded: AgentLog, kind: str) -> None:
    made = KINDS[kind]
    for at in (0, 2, 4):
        child = recorded.fork(run_id(kind), at=at, policy="recorded", state={"begun": made()}, allow=())
        output = child.drive(partial(agent, kind=kind))
        require_same(output["value"], made, "output")

    def changed(run: refold.Run) -> Any:
        require_same(run.input, lambda: (made(), 1), "input of the fork")
        require_same(run.state["begun"], lambda: {2: made()}, "state of the fork")
        with run.step("asks"):
            require_same(run.model(other), lambda: [made()], "answer of the fork")

    def other() -> Any:
        raise AssertionError

    child = recorded.fork(
        run_id(kind),
        at=0,
        input=(made(), 1),
        state={"begun": {2: made()}},
        results={f"1/{other.__qualname__}": [made()]},
    )
    child.drive(changed)
    assert recorded.recording(child.id).outcome == "succeeded"


@kinds
def test_golden_trace_restores_values(recorded: AgentLog, kind: str) -> None:
    golden = golden_of_run(recorded.recording(run_id(kind)), recorded._fields, entry="keeper:agent")
    again = golden_of(text_of(golden), "x")
    CALLED.clear()
    verdict = judged_run(again, partial(agent, kind=kind), "keeper:agent", ROOT)
    assert verdict.passed, str(verdict)
    assert CALLED == []
    require_same(verdict.did.output["value"], KINDS[kind], "output")
    require_same(verdict.did.state["kept"][0], KINDS[kind], "state")


@pytest.mark.faults
def test_killed_run_resumes_with_its_values(tmp_path: Path, child: Callable[..., Child]) -> None:
    killed = child(CODE, f"file:{tmp_path}/log")
    assert killed.process.wait() == -signal.SIGKILL
    CALLED.clear()
    with refold.open(f"file:{tmp_path}/log") as log:
        output = log.run("keeper", resume="killed").drive(partial(agent, kind=EVERY))
        require_same(output["value"], made_of(EVERY), "output")
        assert CALLED == []  # everything was done before
        assert log.recording("killed").outcome == "succeeded"
        assert log.replay("killed", partial(agent, kind=EVERY)).is_same


def test_confined_replay_and_fork_restore_values(log: AgentLog) -> None:
    entry = "refold_tests.recordable_values:everything"
    begun(log, EVERY, "confined").drive(everything)
    found = log.replay("confined", entry, confined=True)
    assert found.now.failure is None
    assert found.is_same
    log.fork_confined("confined", entry, at=2, id="confined-fork")
    child = log.recording("confined-fork")
    assert (child.outcome, child.output) == ("succeeded", log.recording("confined").output)


def test_redacted_value_is_restored_as_its_text(log: AgentLog) -> None:
    def paying(run: refold.Run) -> None:
        with run.step("pays"):
            run.state["paid"] = Item("to ann@example.com", Decimal(4_111_111_111_111_111), (Path("a/ann@example.com"),))

    log.run("shop", id="redacted", redact=Redactor()).drive(paying)
    state = loaded(next(each.after for each in stepped(log.recording("redacted"))))["paid"]
    assert (type(state), type(state.price), type(state.more[0])) == (Item, str, type(Path()))
    assert "4111" not in state.price
    assert "ann@" not in f"{state.name} {state.more}"
    assert log.replay("redacted", paying, redact=Redactor()).is_same


@kinds
def test_failed_step_restores_values(log: AgentLog, kind: str) -> None:
    def fail(run: refold.Run) -> None:
        run.state["a"] = None
        raise ZeroDivisionError

    with log.run("keeper", state={"a": KINDS[kind]()}) as run:
        with pytest.raises(ZeroDivisionError):
            run.step("fails", fail, run)
        require_same(run.state["a"], KINDS[kind], "state")


def test_values_are_displayed_without_type_marks(tmp_path: Path) -> None:
    run = "shown"
    url = f"file:{tmp_path}/log"
    with refold.open(url) as log:
        begun(log, "nested dataclass", run).drive(partial(agent, kind="nested dataclass"))
    shown = 'output    {"value": [{"colour": "RED", "count": 3, "items": [{"more": null'
    for command in (["run", "show", run], ["run", "steps", run, "--step", "2"], ["state", f"run/{run}"]):
        done = refold_command(*command, log=url)
        assert done.status == 0, done.err
        assert '"refold.' not in done.out, command
    assert shown in refold_command("run", "show", run, log=url).out
    tree = refold_command("run", "show", run, "--json", log=url).json
    require_same(loaded(tree["output"])["value"], KINDS["nested dataclass"], "output")


# What cannot be recorded


class Engine:
    """An object that is not defined by its fields."""


@dataclasses.dataclass
class Plan:
    steps: list[Any]
    handler: Any = None


def place(what: str) -> Any:
    """Return an object of a class that is defined inside of a function."""

    @dataclasses.dataclass
    class Local:
        what: str

    return Local(what)


@dataclasses.dataclass
class Loose:
    a: int

    @functools.cached_property
    def double(self) -> int:
        return 2 * self.a


def loose() -> Any:
    found: Any = Loose(1)
    found.b = 2
    return found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"plan": [0, 1, 2, Plan([], print)]}, "state['plan'][3].handler: a function cannot be recorded; use its name"),
        ({"plan": Plan([{"x": (1, lambda: 1)}])}, "state['plan'].steps[0]['x'][1]: a function"),
        ({"a": {1: Engine()}}, "state['a'][1]: an Engine cannot be recorded; use its parts"),
        ({"a": Engine}, "state['a']: the class Engine cannot be recorded"),
        ({"a": OrderedDict(b=1)}, "state['a']: an OrderedDict cannot be recorded: it would be restored as a dict"),
        ({"a": (n for n in (1, 2))}, "state['a']: a generator cannot be recorded: it can be read only once"),
        ({"a": [math.nan]}, "state['a'][0]: nan is not a JSON number"),
        ({"a": (2**64,)}, "state['a'][0]: an integer of more than 64 bits"),
        ({"a": Plan(["\ud800"])}, "state['a'].steps[0]: a text with a lone surrogate"),
        ({"a": {("b", Engine()): 1}}, "state['a'] (a key)[1]: an Engine"),
        ({"a": place("x")}, "state['a']: a place.<locals>.Local cannot be recorded: its class is not found"),
        ({"a": loose()}, "state['a']: a Loose with b, which is not one of its fields: such an object cannot be"),
        ({"a": ValueError("x")}, "state['a']: a ValueError cannot be recorded; use its text"),
        ({"a": dt.datetime(2026, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {"utcoffset": lambda *_: dt.timedelta(0)})())},
         "state['a']: a datetime whose tzinfo is a Zone"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_unserializable_value_is_named_with_its_path(log: AgentLog, value: Any, said: str) -> None:
    with pytest.raises(InputError) as refused, log.run("keeper", id=f"refused-{abs(hash(said))}") as run:  # noqa: SIM117
        with run.step("keeps"):
            run.state.update(value)
    assert said in str(refused.value)
    for place in ("input", "state"):
        with pytest.raises(InputError, match=r"cannot be recorded|not a JSON number"):
            log.run("keeper", **{place: value})


def test_value_set_by_a_property_is_not_a_field(log: AgentLog) -> None:
    value = Loose(1)
    assert value.double == 2
    assert decoded(kept(value, "it")) == {"a": 1, "refold.class": f"{__name__}:Loose"}


# Classes


class Loading(Loader):
    """Notes when a module is loaded."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def exec_module(self, module: types.ModuleType) -> None:
        self.asked.append(module.__name__)


def test_data_loads_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    spec = importlib.util.spec_from_loader("lazy_two", LazyLoader(Loading(asked)))
    assert spec is not None
    monkeypatch.setitem(sys.modules, "lazy_two", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(sys.modules["lazy_two"])  # type: ignore[union-attr]
    module = types.ModuleType("lazy_one")
    module.__getattr__ = asked.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_one", module)
    monkeypatch.setattr(importlib, "import_module", asked.append)
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    for name in (
        "antigravity:fly",
        "lazy_one:Thing",
        "lazy_two:Thing",
        "os:system",
        "subprocess:Popen",
        "builtins:eval",
        "",
        ":",
        "a:b:c",
    ):
        found = loaded({"refold.class": name, "args": "x"})
        assert isinstance(found, StandIn)
        assert found.args == "x"
        assert dumped(found, "it") == {"refold.class": name, "args": "x"}
    assert asked == []
    assert "antigravity" not in sys.modules


def test_changed_class_is_restored_as_a_stand_in_that_says_so() -> None:
    tree = {"refold.class": f"{Item.__module__}:Item", "name": "tea", "colour": {"refold.tuple": [1]}}
    found = loaded(tree)
    assert isinstance(found, StandIn)
    assert (found.name, found.colour) == ("tea", (1,))
    assert repr(found) == f"<stand-in for {Item.__module__}:Item(name='tea', colour=(1,))>"
    assert dumped(found, "it") == tree
    assert found == loaded(tree)
    assert len({found, loaded(tree)}) == 1
    with pytest.raises(AttributeError, match="is not loaded here, or has changed"):
        _ = found.price
    gone = loaded({"refold.class": f"{Item.__module__}:Colour", "refold.member": "GREEN"})
    assert gone.name == "GREEN"


def test_object_is_created_without_its_constructor() -> None:
    found = loaded(dumped(Order((), Colour.RED), "it"))
    assert found == Order((), Colour.RED)
    tree = dumped(Counted(1), "it")
    Counted.made = 0
    assert loaded(tree) == Counted(1)
    assert Counted.made == 1  # only the object that it was compared with


@dataclasses.dataclass
class Counted:
    a: int
    made = 0

    def __post_init__(self) -> None:
        type(self).made += 1


def test_class_of_a_script_has_one_name_however_it_is_loaded(tmp_path: Path) -> None:
    """Recorded by `python desk.py`, it is replayed by `refold run replay --agent desk.py:agent` with the same hash."""
    (tmp_path / "desk.py").write_text(
        "import dataclasses, refold\n"
        "@dataclasses.dataclass\n"
        "class Order:\n"
        "    id: int\n"
        "def agent(run):\n"
        "    with run.step('a'):\n"
        "        run.state['order'] = Order(run.input.id)\n"
        "    assert type(run.state['order']) is Order\n"
        "    return run.state['order']\n"
        "if __name__ == '__main__':\n"
        "    with refold.open('file:log') as log:\n"
        "        log.run('desk', id='r-1', input=Order(7)).drive(agent)\n"
    )
    subprocess.run([sys.executable, "desk.py"], cwd=tmp_path, check=True)
    for named in ("desk.py:agent", "desk:agent"):
        done = refold_command("run", "replay", "r-1", "--agent", named, "--json", log="file:log", folder=tmp_path)
        assert done.status == 0, (done.out, done.err)
    shown = refold_command("run", "show", "r-1", "--json", log="file:log", folder=tmp_path).json
    assert shown["output"] == {"id": 7, "refold.class": "desk:Order"}


def test_class_names_resolve_to_their_classes() -> None:
    assert class_name(Item) == f"{Item.__module__}:Item"
    assert loaded_class(f"{Item.__module__}:Item") is Item
    assert class_name(type(place("x"))) == ""


# Laws

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu"]).map(zoneinfo.ZoneInfo)
keys = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts | st.binary(max_size=4)
    | st.decimals(allow_nan=False, allow_infinity=False) | st.dates() | st.sampled_from(Colour)
)  # fmt: skip
leaves = (
    keys | st.floats(allow_nan=False, allow_infinity=False) | st.datetimes(timezones=st.none() | zones) | st.times()
    | st.timedeltas() | st.uuids() | st.builds(Path, st.sampled_from(["a", "/b/c", ""]))
    | st.binary(max_size=4).map(bytearray)
)  # fmt: skip
names = texts | st.sampled_from(
    ["refold.tuple", "refold.class", "refold.plain", "refold.float", "refold.object", "refold.keys", "refold.answer"]
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(names, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3) | st.sets(keys, max_size=4) | st.frozensets(keys, max_size=4)
        | st.builds(Item, texts, st.just(Decimal(1)), inner) | st.builds(Pair, inner, inner)
    )  # fmt: skip


values = st.recursive(leaves, nested, max_leaves=8)


@given(values)
def test_value_is_restored_from_the_record(value: Any) -> None:
    try:
        data = kept(value, "it")
    except InputError as error:
        assert "levels" in str(error)  # noqa: PT017  # it may be nested too deep, and is nothing else
        return
    tree = decoded(data)
    again = loaded(json_fidelity.read(json.loads(json.dumps(json_tree(json_fidelity.written(tree), "it")))))
    assert parts(again) == parts(value)
    assert decoded(kept(again, "it")) == tree
    encode(json_tree(json_fidelity.written(tree), "it"))
    json.dumps(bare(tree))


@given(
    st.recursive(st.none() | st.integers() | texts, lambda t: st.lists(t) | st.dictionaries(names, t), max_leaves=12)
)
def test_any_tree_can_be_loaded_and_displayed(tree: Any) -> None:
    """It may be any tree, because a redactor may have changed it."""
    loaded(tree)
    bare(tree)
