"""Run a program so that its model calls use a proxy: its environment, its switches, its signals, its exit status.

1. The variables that tell SDKs and agents where their provider is are set to the proxy (VARIABLES). If one of them was
   set before, its value is the upstream.
2. The environment's proxies are not used for loopback (NO_PROXY).
3. AWS_ENDPOINT_URL_BEDROCK_RUNTIME is set only if AWS_BEARER_TOKEN_BEDROCK is: else clients sign the name of the host
   that they contact, and Amazon refuses a signature for the proxy.
4. Claude Code turns two features off if its provider is not Anthropic's own host; they are turned on if the upstream is
   that host, for any program, because SDKs and scripts start Claude Code too. A command that starts Claude Code or
   Codex gets the switches that take precedence over the agent's own settings (agent_settings.py).
5. REFOLD_PROXY is set, so that runs of the program's own code are linked to what is captured of it (step_header.py).
6. SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the program. So is SIGINT, unless it is from a
   terminal, which sends it to the program itself.
7. Its exit status is returned; if a signal ended it, the signal as a negative number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import NamedTuple
from urllib.parse import urlsplit

from refold.agents.capture.agent_settings import (
    CLAUDE,
    CODEX,
    NO_SETTINGS,
    ProviderSettings,
    agent_in,
    claude_switches,
    codex_switches,
)
from refold.agents.capture.step_header import PROXY_ENVIRONMENT
from refold.avro.errors import InputError
from refold.streams.runtime import LOOK_S

OPENAI, ANTHROPIC, GEMINI, OLLAMA, BEDROCK = "openai", "anthropic", "gemini", "ollama", "bedrock"
PROVIDERS = (OPENAI, ANTHROPIC, GEMINI, OLLAMA, BEDROCK, CODEX)
_HOSTS = {
    OPENAI: "https://api.openai.com", ANTHROPIC: "https://api.anthropic.com",
    GEMINI: "https://generativelanguage.googleapis.com", OLLAMA: "http://127.0.0.1:11434",
    BEDROCK: "https://bedrock-runtime.{region}.amazonaws.com",
}  # fmt: skip
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION = "us-east-1"
_OLLAMA_PORT = 11434
BEARER = "AWS_BEARER_TOKEN_BEDROCK"
_VERSION = "/v1"


class Variable(NamedTuple):
    """A variable by which a program finds its provider.

    Attributes:
        has_version: Whether it holds the URL with its /v1.
    """

    name: str
    provider: str
    has_version: bool


VARIABLES = (
    Variable("OPENAI_BASE_URL", OPENAI, True),  # OpenAI's SDKs, and software built on them
    Variable("OPENAI_API_BASE", OPENAI, True),  # LlamaIndex, LangChain, LiteLLM
    Variable("OPENAI_HOST", OPENAI, False),  # goose
    Variable("ANTHROPIC_BASE_URL", ANTHROPIC, False),  # Anthropic's SDKs, Claude Code
    Variable("ANTHROPIC_API_BASE", ANTHROPIC, False),  # LiteLLM
    Variable("ANTHROPIC_HOST", ANTHROPIC, False),  # goose
    Variable("GOOGLE_GEMINI_BASE_URL", GEMINI, False),  # Google's SDKs, Gemini CLI
    Variable("OLLAMA_HOST", OLLAMA, False),  # Ollama's SDKs and its command
    Variable("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", BEDROCK, False),  # Amazon's SDKs
    Variable("ANTHROPIC_BEDROCK_BASE_URL", BEDROCK, False),  # Anthropic's SDKs, Claude Code
)
_OF_CLAUDE = {"ENABLE_TOOL_SEARCH": "true", "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1"}
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class ProgramSettings(NamedTuple):
    """How a program is pointed at a proxy.

    Attributes:
        variables: The environment variables to set.
        arguments: The whole command.
        switches: The switches among the arguments that were inserted.
    """

    variables: dict[str, str]
    arguments: list[str]
    switches: list[str]


def upstreams_of(
    environment: Mapping[str, str], upstream: str | None, own: ProviderSettings = NO_SETTINGS
) -> dict[str, str]:
    """Return the upstream of each provider, without its /v1: the given one, that of the environment, or the
    provider's. That of Codex is a base URL.

    Args:
        environment: The environment variables.
        upstream: The given upstream, if any.
        own: The program's own settings.
    """
    environment = {**environment, **own.variables}
    region = next((environment[name] for name in _REGIONS if environment.get(name)), _REGION)
    found = {}
    for provider, host in _HOSTS.items():
        named = (environment.get(each.name) for each in VARIABLES if each.provider == provider)
        url = upstream or next((each for each in named if each), host.format(region=region))
        url = _ollama_url(url) if provider == OLLAMA else url
        found[provider] = url.rstrip("/").removesuffix(_VERSION)
    is_own = own.upstream and not upstream
    return {**found, CODEX: own.upstream.rstrip("/") if is_own else f"{found[OPENAI]}{_VERSION}"}


def _ollama_url(host: str) -> str:
    """Return OLLAMA_HOST as a URL. It may be only a host or a port, or an address to listen on."""
    if "://" in host:
        return host
    address, slash, path = host.partition("/")
    name, _, port = address.rpartition(":") if address.rpartition(":")[2].isdigit() else (address, "", _OLLAMA_PORT)
    name = "127.0.0.1" if name in ("", "0.0.0.0") else name
    return f"http://{name}:{port}{slash}{path}"


def pointing(
    command: Sequence[str], proxy: str, upstreams: Mapping[str, str], environment: Mapping[str, str],
    own: ProviderSettings = NO_SETTINGS,
) -> ProgramSettings:  # fmt: skip
    """Return the variables and the switches for a command.

    Args:
        command: The command.
        proxy: The proxy's URL.
        upstreams: The upstream of each provider.
        environment: The environment variables.
        own: The program's own settings.
    """
    known = {**environment, **own.variables}
    variables = {
        each.name: f"{proxy}/{each.provider}{_VERSION if each.has_version else ''}" for each in VARIABLES
        if each.provider != BEDROCK or known.get(BEARER)
    }  # fmt: skip
    variables[PROXY_ENVIRONMENT] = proxy
    for name in ("NO_PROXY", "no_proxy"):
        if any(known.get(each) for each in _OUTER_PROXIES):
            variables[name] = ",".join(filter(None, (known.get(name), "127.0.0.1,localhost")))
    if urlsplit(upstreams[ANTHROPIC]).hostname == urlsplit(_HOSTS[ANTHROPIC]).hostname:
        variables |= {name: value for name, value in _OF_CLAUDE.items() if name not in known}
    agent = agent_in(command)
    if agent is None:
        return ProgramSettings(variables, list(command), [])
    if agent.name == CLAUDE:
        switches = claude_switches(command[agent.at :], own, variables)
    else:
        switches = codex_switches(own, f"{proxy}/{CODEX}", has_key=bool(known.get("OPENAI_API_KEY")))
    return ProgramSettings(variables, [*command[: agent.at], *switches, *command[agent.at :]], switches)


_OUTER_PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


Passing = Callable[[subprocess.Popen[bytes]], Callable[[], None]]
"""Begins to pass on the input and output of a program with pipes. Returns a function that waits for the end of that."""


def run_program(arguments: Sequence[str], environment: Mapping[str, str], passing: Passing | None = None) -> int:
    """Run a program to its end.

    Args:
        arguments: The command.
        environment: Its environment variables.
        passing: Serves its standard input and output, which are then pipes. None: they are this process's own.

    Returns:
        Its exit status, or minus the signal that ended it.

    Raises:
        InputError: It cannot be started.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if not started:
            early.append(number)
        elif number != signal.SIGINT or not _is_of_terminal():
            started[0].send_signal(number)

    before = {each: signal.signal(each, pass_on) for each in (*_PASSED_ON, signal.SIGINT)}
    try:
        try:
            pipe = None if passing is None else subprocess.PIPE
            started.append(subprocess.Popen(list(arguments), env=dict(environment), stdin=pipe, stdout=pipe, bufsize=0))
        except OSError as error:
            raise InputError(f"{arguments[0]}: {error.strerror or error}") from None
        for number in early:
            started[0].send_signal(number)
        if passing is not None:
            passing(started[0])()
        while True:
            # Not without a timeout, so that signals are handled; see streams/runtime.py, wait_for.
            with suppress(subprocess.TimeoutExpired):
                return started[0].wait(LOOK_S)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _is_of_terminal() -> bool:
    """Return whether a terminal sends Ctrl-C both to this process and to the program."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
