"""Where the Schema Registry is, and as whom it is asked; secrets are kept out of every message.

REFOLD_SCHEMA_REGISTRY             https://host:port, with a path where it has one; several, separated by commas
REFOLD_SCHEMA_REGISTRY_USER_INFO   user:password, unless they are in the URL
REFOLD_SCHEMA_REGISTRY_<NAME>      SSL_CA_LOCATION, SSL_CERTIFICATE_LOCATION, SSL_KEY_LOCATION, SSL_KEY_PASSWORD

The file that REFOLD_KAFKA_CONFIG names may say the same, as Kafka's clients do: schema.registry.url,
basic.auth.user.info, schema.registry.ssl.ca.location and so on. The environment goes before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from refold.avro.errors import InputError
from refold.streams.log.kafka.settings import REGISTRY_PREFIX, Settings, registry_lines, translated

ENVIRONMENT = "REFOLD_SCHEMA_REGISTRY"
USER_INFO_ENVIRONMENT = "REFOLD_SCHEMA_REGISTRY_USER_INFO"
_URL, _USER_INFO = "url", "basic.auth.user.info"
_TLS = frozenset({"ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"})
# How the user is given: the only way there is here.
_SOURCE = {"basic.auth.credentials.source": ("USER_INFO", "URL")}


@dataclass(frozen=True)
class RegistrySettings:
    """A registry's addresses, without secrets, the user:password to send, if any, and how TLS is set up: by the names
    of confluent-kafka's registry client."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    tls: Mapping[str, str] = field(default_factory=Settings)

    def __str__(self) -> str:
        return ", ".join(self.urls)


def registry_settings(environ: Mapping[str, str]) -> RegistrySettings | None:
    """What the environment says; None where it names no registry. InputError where it cannot be used."""
    lines = _lines(environ)
    given = environ.get(ENVIRONMENT, "").strip() or lines.get(_URL, "")
    if not given:
        return None
    user_info = environ.get(USER_INFO_ENVIRONMENT) or None
    if user_info is not None and ":" not in user_info:
        raise InputError(f"{USER_INFO_ENVIRONMENT}: give user:password")
    urls = []
    for each in given.split(","):
        parts = _split(each.strip())
        urls.append(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/"))
        if "@" in parts.netloc:
            found = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
            if user_info not in (None, found):
                raise InputError(f"{ENVIRONMENT}: it and {USER_INFO_ENVIRONMENT} name several users; name one")
            user_info = found
    user_info = user_info or lines.get(_USER_INFO)
    if user_info is not None and ":" not in user_info:
        raise InputError(f"{_USER_INFO}: give user:password")
    return RegistrySettings(
        tuple(urls), user_info, Settings((name, lines[name]) for name in sorted(_TLS & lines.keys()))
    )


def _lines(environ: Mapping[str, str]) -> Settings:
    """The settings of the registry by name, from the file and from variables."""
    before = f"{ENVIRONMENT}_"
    variables = {
        name.removeprefix(before).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(before) and name != USER_INFO_ENVIRONMENT and value
    }
    found = translated({**registry_lines(environ), **variables}, f"{REGISTRY_PREFIX}*, {before}*")
    for name, ways in _SOURCE.items():
        if found.pop(name, ways[0]).upper() not in ways:
            raise InputError(f"{name}: give {ways[0]}, with {_USER_INFO}")
    unknown = sorted(found.keys() - _TLS - {_URL, _USER_INFO})
    if unknown:
        name = unknown[0] if unknown[0].startswith(("basic.", "bearer.")) else f"{REGISTRY_PREFIX}{unknown[0]}"
        raise InputError(f"{name} is not supported: give {', '.join(sorted({_URL, _USER_INFO} | _TLS))}")
    return found


def _split(url: str) -> SplitResult:
    """The parts of a URL. What cannot be taken apart is not shown, for it may hold a password."""
    problem = f"{ENVIRONMENT}: not a URL of a Schema Registry; give http:// or https://, a host, and what else it needs"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InputError(problem) from None
    if not usable or parts.query or parts.fragment:
        raise InputError(problem)
    return parts
