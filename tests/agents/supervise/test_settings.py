"""refold.toml: what it declares, and the errors that name the key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from refold.agents.policy.rules import RunBudget
from refold.agents.supervise.containment import bubblewrap
from refold.agents.supervise.launch import launch_of
from refold.agents.supervise.settings import AgentLimits, AgentSettings, chosen, load_agents, parse_agents
from refold.avro.errors import InputError


def test_agent_with_every_key(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "policy.toml").write_text('name = "p"\n')
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "refold.toml").write_text("""
[agents.desk]
command = ["python", "desk.py"]
mode = "sdk"
restart = "on-failure"
backoff_s = 0.5
backoff_max_s = 30
retries = 3
reset_s = 120
stop_s = 5
resume = true
work = "work"
policy = "policy.toml"
isolation = "none"
output_mb = 1
golden = "golden"

[agents.desk.env]
KEY = "file:key"
REGION = "env:SOME_REGION"
MODE = "text:live"

[agents.desk.limits]
memory_mb = 512

[agents.desk.budget]
tokens = 1000

[agents.desk.heal]
attempts = 3

[agents.crawler]
command = ["./crawl.sh"]
mode = "capture"
upstream = "http://127.0.0.1:11434"
""")
    found = load_agents(tmp_path / "refold.toml")
    assert list(found) == ["desk", "crawler"]
    desk = found["desk"]
    assert (desk.name, desk.retries, desk.limits) == ("desk", 3, AgentLimits(memory_mb=512))
    assert desk.budget == RunBudget(tokens=1000)
    assert (desk.work, desk.policy) == (str(tmp_path / "work"), str(tmp_path / "policy.toml"))
    assert desk.environment({"SOME_REGION": "eu"}) == {"KEY": "secret", "REGION": "eu", "MODE": "live"}
    assert found["crawler"].work == str(tmp_path)
    assert list(chosen(found, ("crawler",), "f")) == ["crawler"]
    assert list(chosen(found, (), "f")) == ["desk", "crawler"]
    with pytest.raises(InputError, match="there is no agent x; it declares desk, crawler"):
        chosen(found, ("x",), "f")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it declares no agent"),
        ("[agents", "is no TOML"),
        ("x = 1\n[agents.a]\ncommand=['x']", "x: there is no such key"),
        ("[agents]\na = 1", r"agents\.a: write a table"),
        ("[agents.a]", r"agents\.a: object missing required field `command`"),
        ("[agents.a]\ncommand = 'x'", r"agents\.a\.command: expected `array`"),
        ("[agents.a]\ncommand = []", r"agents\.a\.command: write the program"),
        ("[agents.a]\ncommand = ['x', 1]", r"agents\.a\.command\[1\]: expected `str`"),
        ("[agents.a]\ncommand = ['x']\ncomand = 1", r"agents\.a: object contains unknown field `comand`"),
        ("[agents.a]\ncommand = ['x']\nmode = 'x'", r"agents\.a\.mode: invalid enum value 'x'"),
        ("[agents.a]\ncommand = ['x']\nrestart = 'no'", r"agents\.a\.restart: invalid enum value"),
        ("[agents.a]\ncommand = ['x']\nisolation = 'vm'", r"agents\.a\.isolation: invalid enum value"),
        ("[agents.a]\ncommand = ['x']\nbackoff_s = -1", r"agents\.a\.backoff_s: -1 is not a number of seconds"),
        ("[agents.a]\ncommand = ['x']\nbackoff_s = 100", r"agents\.a\.backoff_s: it is above backoff_max_s"),
        ("[agents.a]\ncommand = ['x']\nstop_s = nan", r"agents\.a\.stop_s: nan is not"),
        ("[agents.a]\ncommand = ['x']\nretries = -1", r"agents\.a\.retries: "),
        ("[agents.a]\ncommand = ['x']\nwork = 'none'", r"agents\.a\.work: .*none is no folder"),
        (f"[agents.a]\ncommand = ['x']\nwork = '{'x' * 9000}'", r"agents\.a\.work: .* is no folder"),
        (f"[agents.a]\ncommand = ['x']\nretries = {'9' * 5000}", "is no TOML: Exceeds the limit"),
        (
            "[agents.a]\ncommand = ['x']\nisolation = 'bubblewrap'\nhide = ['~nobody-of-this-name/x']",
            r"agents\.a\.hide: the home folder",
        ),
        ("[agents.a]\ncommand = ['x']\npolicy = 'none'", r"agents\.a\.policy: the policy .* cannot be read"),
        ("[agents.a]\ncommand = ['x']\nupstream = 'http://x'", r"agents\.a\.upstream: only an agent with mode"),
        ("[agents.a]\ncommand = ['x']\nhide = ['/root']", r"agents\.a\.hide: only isolation"),
        (
            "[agents.a]\ncommand = ['x']\nmode = 'capture'\nheal = {attempts = 3}",
            r"agents\.a\.heal: only an agent with mode",
        ),
        ("[agents.a]\ncommand = ['x']\nname = 'b'", r"agents\.a\.name: the name is that of the table"),
        ("[agents.a]\ncommand = ['x']\n[agents.a.budgets]\ntokens = 1", r"agents\.a\.budgets: write the table"),
        ("[agents.a]\ncommand = ['x']\n[agents.a.budget]\ntoken = 1", r"agents\.a\.budget: object contains unknown"),
        ("[agents.a]\ncommand = ['x']\n[agents.a.budget]\ncost_usd = nan", r"agents\.a\.budget\.cost_usd is nan"),
        (
            "[agents.a]\ncommand = ['x']\n[agents.a.limits]\nfiles = 0",
            r"agents\.a\.limits\.files: a whole number from 1",
        ),
        ("[agents.a]\ncommand = ['x']\n[agents.a.limits]\ndisk = 1", r"agents\.a\.limits: object contains unknown"),
        ("[agents.a]\ncommand = ['x']\n[agents.a.env]\nKEY = 'sk-1'", r'agents\.a\.env\.KEY: write a reference: "env:'),
        ("[agents.a]\ncommand = ['x']\n[agents.a.env]\n'A B' = 'text:1'", r"agents\.a\.env\.A B: it is no name"),
        ("[agents.a]\ncommand = ['x']\n[agents.a.env]\nREFOLD_LOG = 'text:1'", r"agents\.a\.env\.REFOLD_LOG: it is no"),
        ("[agents.'../x']\ncommand = ['x']", r"agents\.\.\./x: a name has letters"),
    ],
)
def test_error_names_its_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^refold.toml: {said}"):
        parse_agents(text, tmp_path)


def test_error_about_a_key_contains_no_secret(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        parse_agents("[agents.a]\ncommand = ['x']\n[agents.a.env]\nKEY = 'sk-secret'", tmp_path)
    assert "sk-secret" not in str(refused.value)


def test_dangling_reference(tmp_path: Path) -> None:
    agent = AgentSettings(command=("x",), name="a", env={"KEY": "env:NOT_SET"})
    with pytest.raises(InputError, match=r"agents\.a\.env\.KEY: NOT_SET is not set"):
        agent.environment({})
    agent = AgentSettings(command=("x",), name="a", env={"KEY": f"file:{tmp_path / 'none'}"})
    with pytest.raises(InputError, match=r"agents\.a\.env\.KEY: .*none cannot be read"):
        agent.environment({})


def test_backoff_doubles_up_to_its_bound() -> None:
    agent = AgentSettings(command=("x",), backoff_s=1, backoff_max_s=5)
    assert [agent.backoff_after(each) for each in (1, 2, 3, 4, 5_000)] == [1, 2, 4, 5, 5]


def test_agent_gets_system_refold_and_its_own_variables() -> None:
    agent = AgentSettings(
        command=("x", "y"),
        name="a",
        env={"KEY": "env:THEIR_KEY"},
        policy="/p.toml",
        budget=RunBudget(tool_calls=2),
    )
    around = {"PATH": "/bin", "THEIR_KEY": "k", "OTHER_KEY": "o", "REFOLD_TYPES": "t"}
    launch = launch_of(agent, "file:/l", around, ["refold", "record"], Path("/s/a"))
    assert launch.command == ["x", "y"]
    assert launch.environment == {
        "PATH": "/bin", "KEY": "k", "REFOLD_TYPES": "t", "REFOLD_LOG": "file:/l", "REFOLD_GUARD": "/p.toml",
        "PYTHONUNBUFFERED": "1", "REFOLD_BUDGET": '{"tool_calls":2}',
    }  # fmt: skip


def test_captured_agent_runs_under_the_recorder_with_its_limits() -> None:
    agent = AgentSettings(
        command=("x", "y"),
        name="a",
        mode="capture",
        upstream="http://u",
        policy="/p.toml",
        budget=RunBudget(tokens=9, cost_usd=1.5),
        limits=AgentLimits(memory_mb=2, files=9),
    )
    launch = launch_of(agent, "file:/l", {}, ["refold", "record"], Path("/s/a"))
    recorder, _, program = " ".join(launch.command).partition(" -- ")
    options = "--upstream http://u --policy /p.toml --budget=tokens=9 --budget=cost_usd=1.5"
    assert recorder == f"refold record --log file:/l --agent a {options}"
    assert program.endswith("prlimit --as=2097152 --nofile=9 -- x y")
    assert launch.contained == {"isolation": "none", "limits": {"memory_mb": 2, "files": 9}}


def test_captured_agent_does_not_start_without_what_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "brotli", None)
    for agent in (AgentSettings(command=("x",), mode="capture"), AgentSettings(command=("x",), upstream="http://u")):
        with pytest.raises(InputError, match=r'^brotli is not installed.*: pip install "refold\[capture\]"$'):
            launch_of(agent, "file:/l", {}, ["refold", "record"], Path("/s/a"))
    launch_of(AgentSettings(command=("x",)), "file:/l", {}, ["refold", "record"], Path("/s/a"))


@pytest.mark.parametrize("place", ["/tmp", "/secret"])
def test_contained_agent_does_not_start_by_a_python_that_it_cannot_see(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.setattr(sys, "executable", f"{place}/venv/bin/python")
    with pytest.raises(InputError, match=f"cannot see {place}, and so not {place}/venv/bin/python, by which"):
        bubblewrap(str(tmp_path), ["/secret"])


@pytest.mark.parametrize(
    ("url", "keys", "said"),
    [
        ("kafka://b:9/p", {}, "records itself on Kafka needs the network of its brokers"),
        ("file:/l", {"REFOLD_KEYS": "file:/k"}, "needs REFOLD_KEYS, the keys of every run"),
    ],
)
def test_contained_agent_that_records_itself_gets_neither_brokers_nor_keys(
    tmp_path: Path, url: str, keys: dict[str, str], said: str
) -> None:
    agent = AgentSettings(command=("x",), name="a", isolation="bubblewrap", work=str(tmp_path))
    with pytest.raises(InputError, match=f'{said}; use mode = "capture"'):
        launch_of(agent, url, keys, ["refold", "record"], tmp_path / "a")
