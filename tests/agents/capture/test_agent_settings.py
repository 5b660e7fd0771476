"""Claude Code and Codex find their provider by settings of their own. The programs here are stand-ins, which read their
settings, variables and switches in the order in which the real ones do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.agents.capture.agent_settings import NO_SETTINGS, ProviderSettings, agent_in, provider_settings
from refold.agents.capture.program import pointing, upstreams_of
from refold.agents.log import open_log
from refold_tests.command import COMMAND
from refold_tests.model_server import TEXT, ModelServer, model_server

pytestmark = pytest.mark.outside

PROXY = "http://127.0.0.1:5"

CODEX = """
import json, os, sys, tomllib, urllib.request
from pathlib import Path

home = Path(os.environ["CODEX_HOME"])
config = tomllib.loads((home / "config.toml").read_text()) if (home / "config.toml").exists() else {}
given = iter(sys.argv[1:])
for argument in given:
    if argument != "-c":
        break
    name, _, value = next(given).partition("=")
    *tables, name = name.split(".")
    table = config
    for each in tables:
        table = table.setdefault(each, {})
    table[name] = tomllib.loads(f"value = {value}")["value"]
assert argument == "exec", argument
own = {"openai": {"base_url": config.get("openai_base_url", "https://api.openai.com/v1"), "requires_openai_auth": True,
                  "supports_websockets": True}}
provider = {**own, **config.get("model_providers", {})}[config.get("model_provider", "openai")]
if not provider["base_url"].startswith("http://127.0.0.1:"):
    sys.exit(f"a request to {provider['base_url']}")
if provider.get("supports_websockets") or config.get("features", {}).get("enable_request_compression", True):
    sys.exit("not plain HTTP")
if provider.get("requires_openai_auth"):
    key = json.loads((home / "auth.json").read_text())["tokens"]["access_token"]
else:
    key = os.environ.get(provider["env_key"]) or sys.exit(f"Missing environment variable: {provider['env_key']}")
item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": next(given)}]}
request = urllib.request.Request(
    provider["base_url"] + "/responses", json.dumps({"model": "m", "input": [item]}).encode(),
    {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **provider.get("http_headers", {})},
)
with urllib.request.urlopen(request) as response:
    print(json.load(response)["output"][0]["content"][0]["text"])
"""

CLAUDE = """
import json, os, sys, urllib.request
from pathlib import Path
from urllib.parse import urlsplit

arguments = sys.argv[1:]
files = [Path(os.environ["CLAUDE_CONFIG_DIR"], "settings.json"), Path(".claude/settings.json")]
settings = [json.loads(each.read_text()) for each in files if each.exists()]
if "--settings" in arguments:
    at = arguments.index("--settings")
    settings.append(json.loads(arguments[at + 1]))
    del arguments[at : at + 2]
for each in settings:
    os.environ |= each.get("env", {})
base = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
is_first = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL" in os.environ or urlsplit(base).hostname == "api.anthropic.com"
if not base.startswith("http://127.0.0.1:"):
    sys.exit(f"a request to {base}")
assert arguments[0] == "-p", arguments
request = urllib.request.Request(
    base + "/v1/messages",
    json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": arguments[1]}]}).encode(),
    {"Content-Type": "application/json", "X-Api-Key": os.environ.get("ANTHROPIC_AUTH_TOKEN", "none")},
)
with urllib.request.urlopen(request) as response:
    print(json.load(response)["content"][0]["text"])
print("tool search", "on" if is_first or os.environ.get("ENABLE_TOOL_SEARCH") == "true" else "off")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def env(tmp_path: Path, server: ModelServer) -> dict[str, str]:
    """The environment of an agent that has settings of its own, in folders of the test."""
    server.reset()
    for name, code in (("codex", CODEX), ("claude", CLAUDE)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!{sys.executable} -P\n{code}")
        program.chmod(0o755)
    named = ("OPENAI", "ANTHROPIC", "CLAUDE", "_CLAUDE", "ENABLE_TOOL_SEARCH", "HTTP", "http", "ALL_", "all_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(named)}
    return inherited | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "REFOLD_LOG": f"file:{tmp_path / 'log'}",
        "CODEX_HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path),
    }  # fmt: skip


def recorded(env: dict[str, str], folder: Path, *command: str) -> tuple[str, Any]:
    """Run a command by `refold record`. Returns its output, and what the run says of the capture."""
    done = subprocess.run(
        [*COMMAND, "record", "--", *command], env=env, cwd=folder, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 exchange in 1 run" in done.stderr
    with open_log(env["REFOLD_LOG"], read_only=True) as log:
        (row,) = log.runs()
        return done.stdout, log.recording(row.run).metadata["capture"]


def test_codex_with_a_login_is_captured_at_the_provider_of_its_settings(
    env: dict[str, str], tmp_path: Path, server: ModelServer
) -> None:
    """A key in the environment is another account than the login: it is not used."""
    (tmp_path / "config.toml").write_text(f'openai_base_url = "{server.url}/v1"\n')
    login = {"auth_mode": "chatgpt", "tokens": {"access_token": "of-the-login"}}
    (tmp_path / "auth.json").write_text(json.dumps(login))
    printed, capture = recorded({**env, "OPENAI_API_KEY": "another"}, tmp_path, "timeout", "60s", "codex", "exec", "hi")
    assert printed == f"{TEXT}\n"
    ((path, headers, _),) = server.requests
    assert (path, headers["Authorization"]) == ("/v1/responses", "Bearer of-the-login")
    assert capture["upstreams"]["codex"] == f"{server.url}/v1"
    assert 'model_provider="refold"' in capture["switches"]
    assert "of-the-login" not in json.dumps(capture)
    with open_log(env["REFOLD_LOG"], read_only=True) as log:
        (row,) = log.runs()
    (tmp_path / "auth.json").unlink()  # a recording needs no login
    played = subprocess.run(
        [*COMMAND, "play", row.run, "--", "codex", "exec", "hi"], env=env, cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert (played.returncode, played.stdout) == (0, f"{TEXT}\n"), played.stderr
    assert len(server.requests) == 1


def test_claude_code_is_captured_at_the_provider_of_its_settings(
    env: dict[str, str], tmp_path: Path, server: ModelServer
) -> None:
    """The variables in its settings replace those of the process, and a project's replace the user's."""
    (tmp_path / "settings.json").write_text('{"env": {"ANTHROPIC_BASE_URL": "http://no-such-host.invalid"}}')
    (tmp_path / ".claude").mkdir()
    own = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_AUTH_TOKEN": "of-the-gateway"}
    (tmp_path / ".claude/settings.json").write_text(json.dumps({"env": own}))
    printed, capture = recorded(env, tmp_path, "claude", "-p", "hi")
    assert printed == f"{TEXT}\ntool search off\n", "the provider is not Anthropic"
    ((path, headers, _),) = server.requests
    assert (path, headers["X-Api-Key"]) == ("/v1/messages", "of-the-gateway")
    assert capture["upstreams"]["anthropic"] == server.url
    assert capture["switches"][0] == "--settings"
    assert json.loads(capture["switches"][1])["env"].keys() == {"ANTHROPIC_BASE_URL"}


@pytest.mark.parametrize(
    ("command", "at"),
    [
        (["codex", "exec", "hi"], 1),
        (["/usr/local/bin/claude", "-p", "hi"], 1),
        (["npx", "-y", "@openai/codex@0.162.1", "exec"], 3),
        (["npx", "@anthropic-ai/claude-code", "-p"], 2),
        (["env", "A=b c", "timeout", "1.5h", "claude"], 5),
        (["npx", "-p", "@openai/codex", "codex"], None),
        (["python", "codex"], None),
        (["npx"], None),
        (["claudette"], None),
    ],
    ids=["codex", "claude", "npx with a version", "npx", "two launchers", "another option",
         "an argument", "only a launcher", "another program"],
)  # fmt: skip
def test_agent_is_found_in_a_command(command: Sequence[str], at: int | None) -> None:
    found = agent_in(command)
    assert (found and found.at) == at


LOGIN = {"tokens": {"access_token": "t"}, "OPENAI_API_KEY": None}
OWN = 'model_provider = "own"\n[model_providers.own]\nbase_url = "http://own:1/v1"\nenv_key = "OWN"\n'


@pytest.mark.parametrize(
    ("config", "login", "upstream", "parts", "absent"),
    [
        ("", None, "https://api.openai.com/v1", ['env_key="OPENAI_API_KEY"', 'name="OpenAI"'], "requires_openai_auth"),
        ("", LOGIN, "https://chatgpt.com/backend-api/codex", ["requires_openai_auth=true"], "env_key"),
        ("", {**LOGIN, "OPENAI_API_KEY": "k"}, "https://api.openai.com/v1", ["requires_openai_auth=true"], "env_key"),
        (OWN, LOGIN, "http://own:1/v1", [f'model_providers.own.base_url="{PROXY}/codex"'], "model_provider="),
        ('model_provider = "amazon-bedrock"', None, "https://api.openai.com/v1", [], "base_url"),
        ("no TOML", None, "https://api.openai.com/v1", ['env_key="OPENAI_API_KEY"'], "requires_openai_auth"),
    ],
    ids=["a key", "a ChatGPT account", "a login by key", "a provider of its own", "no URL", "damaged settings"],
)  # fmt: skip
def test_switches_follow_the_settings_of_codex(
    tmp_path: Path, config: str, login: Any, upstream: str, parts: list[str], absent: str
) -> None:
    (tmp_path / "config.toml").write_text(config)
    if login is not None:
        (tmp_path / "auth.json").write_text(json.dumps(login))
    given = {"OPENAI_API_KEY": "k", "CODEX_HOME": str(tmp_path)}
    own = provider_settings(["codex"], given, tmp_path)
    upstreams = upstreams_of(given, None, own)
    assert upstreams["codex"] == upstream
    assert upstreams_of(given, "http://one:2", own)["codex"] == "http://one:2/v1", "what is given takes precedence"
    pointed = pointing(["codex", "exec", "go"], PROXY, upstreams, given, own)
    assert pointed.arguments == ["codex", *pointed.switches, "exec", "go"]
    said = " ".join(pointed.switches)
    assert all(part in said for part in parts), said
    assert absent not in said
    assert not parts or "supports_websockets=false" in said
    assert not parts or "features.enable_request_compression=false" in pointed.switches


def test_switches_of_claude_code() -> None:
    own = ProviderSettings(variables={"ANTHROPIC_BASE_URL": "http://own:1", "AWS_BEARER_TOKEN_BEDROCK": "k"})
    upstreams = upstreams_of({}, None, own)
    assert upstreams["anthropic"] == "http://own:1"
    pointed = pointing(["claude", "-p", "hi"], PROXY, upstreams, {}, own)
    assert pointed.arguments == ["claude", *pointed.switches, "-p", "hi"]
    assert json.loads(pointed.switches[1]) == {"env": {"ANTHROPIC_BASE_URL": f"{PROXY}/anthropic"}}
    assert pointed.variables["ANTHROPIC_BEDROCK_BASE_URL"] == f"{PROXY}/bedrock"
    for given in (["--settings", "mine.json"], ["--settings=mine.json"]):
        assert pointing(["claude", *given], PROXY, upstreams, {}, own).switches == [], "the user's choice"
    assert pointing(["claude"], PROXY, upstreams_of({}, None), {}).switches == []


@pytest.mark.parametrize("program", ["claude", "python"])
def test_claude_code_keeps_its_features_at_its_own_provider(program: str) -> None:
    """An SDK or a script may start it, so the variables are set for every program."""
    first = pointing([program], PROXY, upstreams_of({}, None, NO_SETTINGS), {"ENABLE_TOOL_SEARCH": "auto"})
    assert first.variables["_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"] == "1"
    assert "ENABLE_TOOL_SEARCH" not in first.variables, "it was set before"
    other = pointing([program], PROXY, upstreams_of({}, "http://one:2"), {})
    assert not {"ENABLE_TOOL_SEARCH", "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"} & other.variables.keys()
