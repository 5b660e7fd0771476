"""Claude Code and Codex may find their provider by settings of their own, which a variable of the process does not
change. `refold record` reads these settings, so that requests are passed on to the provider that they name, and gives
the agent switches that take precedence.

Claude Code: the key `env` of its settings files holds variables, which replace those of the process. `--settings JSON`
    takes precedence over the files.
Codex: `config.toml` may name a provider. Codex reads no variable for OpenAI's address. Which of OpenAI's services it
    uses follows from its login: an API key belongs to the API, a ChatGPT account to a service of its own. `-c
    KEY=VALUE` takes precedence over the file.

A file that cannot be read is ignored: the agent reports it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from refold.avro.files import read_bounded

CLAUDE, CODEX = "claude", "codex"
_PACKAGES = {"@anthropic-ai/claude-code": CLAUDE, "@openai/codex": CODEX, CLAUDE: CLAUDE, CODEX: CODEX}
_LAUNCHERS = frozenset({"npx", "bunx", "env", "nohup", "setsid", "timeout"})
_OF_LAUNCHER = re.compile(r"-y|--yes|\w+=.*|[\d.]+[smhd]?", re.DOTALL)
"""Arguments of a launcher that may be before the program: consent to install it, a variable, a duration."""
_CHATGPT = "https://chatgpt.com/backend-api/codex"
_CHATGPT_MODES = frozenset({"chatgpt", "chatgptauthtokens"})
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_DEFAULT_PROVIDER = "openai"


class AgentPlace(NamedTuple):
    """The position of a known agent in a command.

    Attributes:
        name: CLAUDE or CODEX.
        at: The index of its first argument.
    """

    name: str
    at: int


class ProviderSettings(NamedTuple):
    """The provider in an agent's own settings; empty if they name none.

    Attributes:
        variables: The variables that Claude Code's settings set.
        provider: The provider of Codex, if it is not OpenAI.
        upstream: The base URL of Codex's provider; "" if it is OpenAI's API, or unknown.
        has_login: Whether Codex has a login.
    """

    variables: Mapping[str, str] = MappingProxyType({})
    provider: str = ""
    upstream: str = ""
    has_login: bool = False


NO_SETTINGS = ProviderSettings()


def agent_in(command: Sequence[str]) -> AgentPlace | None:
    """Return where a command starts Claude Code or Codex, itself or by launchers such as npx; None if it does not."""
    for at, argument in enumerate(command):
        if Path(argument).name in _LAUNCHERS or (at and _OF_LAUNCHER.fullmatch(argument)):
            continue
        package = f"@{argument[1:].partition('@')[0]}" if argument.startswith("@") else argument.partition("@")[0]
        name = _PACKAGES.get(package) or _PACKAGES.get(Path(argument).name)
        return None if name is None else AgentPlace(name, at + 1)
    return None


def provider_settings(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> ProviderSettings:
    """Return the settings of the agent that a command starts.

    Args:
        command: The command.
        environment: Its environment variables.
        folder: Where it is started.
    """
    place = agent_in(command)
    if place is None:
        return NO_SETTINGS
    home = Path(environment.get("HOME") or Path.home())
    if place.name == CLAUDE:
        own = Path(environment.get("CLAUDE_CONFIG_DIR") or home / ".claude")
        found: dict[str, str] = {}
        for path in (own / "settings.json", folder / ".claude/settings.json", folder / ".claude/settings.local.json"):
            set_there = _read(path).get("env")
            if isinstance(set_there, dict):
                found |= {name: value for name, value in set_there.items() if isinstance(value, str)}
        return ProviderSettings(variables=found)
    own = Path(environment.get("CODEX_HOME") or home / ".codex")
    return _codex_settings(_read(own / "config.toml"), _read(own / "auth.json"))


def claude_switches(arguments: Sequence[str], own: ProviderSettings, variables: Mapping[str, str]) -> list[str]:
    """Return the switches for Claude Code: settings with those variables that its own settings would replace.

    Args:
        arguments: Its arguments. If they name settings, these are the user's choice, and nothing is added.
        own: Its own settings.
        variables: What the capture sets.
    """
    replaced = {name: value for name, value in variables.items() if name in own.variables}
    is_given = any(each == "--settings" or each.startswith("--settings=") for each in arguments)
    return ["--settings", json.dumps({"env": replaced})] if replaced and not is_given else []


def codex_switches(own: ProviderSettings, url: str, *, has_key: bool) -> list[str]:
    """Return the switches for Codex.

    Args:
        own: Its own settings.
        url: The proxy's base URL for it.
        has_key: Whether OPENAI_API_KEY is set.
    """
    if own.provider and not own.upstream:
        return []  # one of Codex's own that is not at a URL, such as Bedrock: it cannot be captured
    provider = own.provider or "refold"
    settings = [f'model_providers.{provider}.base_url="{url}"', f"model_providers.{provider}.supports_websockets=false"]
    if not own.provider:
        login = 'env_key="OPENAI_API_KEY"' if has_key and not own.has_login else "requires_openai_auth=true"
        # Named as OpenAI's, so that Codex uses what it uses there.
        whole = f'{{name="OpenAI",base_url="{url}",{login},wire_api="responses",supports_websockets=false}}'
        settings = [f"model_providers.{provider}={whole}", f'model_provider="{provider}"']
    return [part for each in (*settings, "features.enable_request_compression=false") for part in ("-c", each)]


def _codex_settings(config: Mapping[str, Any], login: Mapping[str, Any]) -> ProviderSettings:
    has_login = bool(login.get("tokens") or login.get("OPENAI_API_KEY"))
    provider = config.get("model_provider")
    if isinstance(provider, str) and provider != _DEFAULT_PROVIDER:
        table = config.get("model_providers")
        found = table.get(provider) if isinstance(table, dict) else None
        url = found.get("base_url") if isinstance(found, dict) and _BARE_KEY.fullmatch(provider) else None
        return ProviderSettings(provider=provider, upstream=url if isinstance(url, str) else "", has_login=has_login)
    mode = login.get("auth_mode") or ("chatgpt" if login.get("tokens") and not login.get("OPENAI_API_KEY") else "")
    url = config.get("openai_base_url")
    usual = _CHATGPT if str(mode).lower() in _CHATGPT_MODES else ""
    return ProviderSettings(upstream=url if isinstance(url, str) else usual, has_login=has_login)


def _read(path: Path) -> dict[str, Any]:
    """Return a file of settings; empty if it cannot be read."""
    try:
        text = read_bounded(path).decode()
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
