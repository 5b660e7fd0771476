"""Where traces are sent to and how: the URL of `--to`, and the variables that OpenTelemetry names for its exporters.

    http://HOST:4318   https://   OTLP over HTTP; /v1/traces where the URL has no path
    grpc://HOST:4317   grpcs://   OTLP over gRPC

Its query has what is refold's own: position=PATH, content=no, system=NAME, rejected=skip. Everything else is set by
OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT (seconds, as the Python SDK takes it), _COMPRESSION, _CERTIFICATE, _CLIENT_KEY and
_CLIENT_CERTIFICATE, or the same with _TRACES_, which come first. Headers hold secrets: no message shows their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from refold.avro.errors import InputError

PORTS = {"http": 4318, "https": 4318, "grpc": 4317, "grpcs": 4317}
TIMEOUT_S = 10.0
PATH = "/v1/traces"
HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Target:
    """One receiver.

    Attributes:
        url: The URL, without a query.
        host: The host and the port, HOST:PORT.
        position: The file where the position is kept; "" for the default.
        content: Whether what may hold anybody's words is sent.
        skips_rejected: Whether the sink continues past what the receiver rejects.
    """

    scheme: str
    host: str
    path: str
    position: str = ""
    content: bool = True
    system: str = ""
    skips_rejected: bool = False

    @property
    def url(self) -> str:
        """What messages call it."""
        return f"{self.scheme}://{self.host}{self.path}"

    @property
    def is_grpc(self) -> bool:
        """Whether it speaks gRPC."""
        return self.scheme.startswith("grpc")

    @property
    def is_secure(self) -> bool:
        """Whether it speaks TLS."""
        return self.scheme.endswith("s")


@dataclass(frozen=True, slots=True)
class Wire:
    """How to speak to a receiver. Files are paths, "" for none."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float = TIMEOUT_S
    gzip: bool = False
    certificate: str = ""
    client_key: str = ""
    client_certificate: str = ""

    def hidden(self, text: str) -> str:
        """A text of the receiver's without what only the headers may say."""
        for _, value in self.headers:
            for part in {value, *value.split()}:
                if len(part) > 3:
                    text = text.replace(part, HIDDEN)
        return text


def target_of(url: str) -> Target:
    """Parse a receiver's URL.

    Raises:
        InputError: The URL is invalid. The message shows no password.
    """
    parts = urlsplit(url)
    if parts.scheme not in PORTS:
        raise InputError(
            f"a receiver is http://HOST:4318 or grpc://HOST:4317 (https, grpcs), not {parts.scheme or url}"
        )
    if parts.username is not None or parts.password is not None:
        raise InputError("a receiver's URL holds no password: give it in OTEL_EXPORTER_OTLP_HEADERS, such as "
                         "'authorization=Bearer%20...'")  # fmt: skip
    try:
        host, port = parts.hostname, parts.port or PORTS[parts.scheme]
    except ValueError as error:
        raise InputError(f"{parts.netloc}: {error}") from None
    if not host:
        raise InputError(f"{parts.scheme}://: name a host, such as {parts.scheme}://127.0.0.1:{PORTS[parts.scheme]}")
    path = parts.path.rstrip("/")
    if path and parts.scheme.startswith("grpc"):
        raise InputError(f"{path}: a gRPC receiver has no path; give {parts.scheme}://{host}:{port}")
    shown = f"[{host}]" if ":" in host else host
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    target = Target(
        parts.scheme, f"{shown}:{port}", "" if parts.scheme.startswith("grpc") else path or PATH,
        position=given.pop("position", ""), content=_choice(given, "content", "yes", "no"),
        system=given.pop("system", ""), skips_rejected=not _choice(given, "rejected", "refuse", "skip"),
    )  # fmt: skip
    if given:
        raise InputError(f"unknown in the receiver's URL: {', '.join(sorted(given))}; there are position=PATH, "
                         "content=no, system=NAME, rejected=skip")  # fmt: skip
    return target


def wire_of(environment: Mapping[str, str]) -> Wire:
    """Read OpenTelemetry's environment variables.

    Raises:
        InputError: A value is invalid. The message names the variable and not its value.
    """
    from opentelemetry.util.re import parse_env_headers

    def given(name: str) -> tuple[str, str]:
        for variable in (f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
            if environment.get(variable, "").strip():
                return variable, environment[variable].strip()
        return f"OTEL_EXPORTER_OTLP_{name}", ""

    variable, text = given("TIMEOUT")
    try:
        timeout_s = float(text or TIMEOUT_S)
    except ValueError:
        raise InputError(f"{variable}: give seconds, such as 10") from None
    variable, compression = given("COMPRESSION")
    if compression not in ("", "none", "gzip"):
        raise InputError(f"{variable}: give gzip or none")
    _, headers = given("HEADERS")
    return Wire(
        headers=tuple(sorted(parse_env_headers(headers, liberal=True).items())), timeout_s=timeout_s,
        gzip=compression == "gzip", certificate=given("CERTIFICATE")[1], client_key=given("CLIENT_KEY")[1],
        client_certificate=given("CLIENT_CERTIFICATE")[1],
    )  # fmt: skip


def _choice(given: dict[str, str], name: str, usual: str, other: str) -> bool:
    value = given.pop(name, usual)
    if value not in (usual, other):
        raise InputError(f"{name}={value}: give {usual} or {other}")
    return value == usual
