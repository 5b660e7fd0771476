"""Where a PostgreSQL sink writes: a URL as libpq takes it, and refold's own options in its query.

    postgresql://USER@HOST:PORT/DATABASE?schema=refold&history=yes

What the URL leaves out libpq takes from PGHOST, PGUSER, PGPASSWORD and its other variables, ~/.pgpass, and a service
file. A password in the URL is handed to libpq and shown nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from refold.avro.errors import InputError
from refold.sinks.postgres.columns import NAME_BYTES_MAX

SCHEMES = ("postgresql", "postgres")
SCHEMA = "refold"
HELP = "give postgresql://USER@HOST:PORT/DATABASE, with ?schema=NAME where refold is not to be its name"
_SWITCH = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """conninfo: for libpq, with its password; never shown. secrets: what no message may hold."""

    conninfo: str = field(repr=False)
    schema: str
    history: bool
    place: str
    secrets: tuple[str, ...] = field(repr=False)

    def clean(self, text: str) -> str:
        """A message without secrets, on one line."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())


def parse_address(url: str, environment_password: str = "") -> PostgresAddress:
    """The address behind a URL; InputError, which never shows the URL, where it is none."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise InputError(f"this is not a URL of a PostgreSQL database: {HELP}")
    if rest.partition("?")[0].count("@") > 1 or "#" in url:
        raise InputError("the URL has an @ or # that is not meant as one: write it as %40 or %23 in user and password")
    try:
        parts = urlsplit(url)
        host, port, password = parts.hostname or "", parts.port, unquote(parts.password or "")
    except ValueError:
        raise InputError(f"host and port of the URL cannot be separated: {HELP}") from None
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema, history = given.pop("schema", SCHEMA), given.pop("history", "yes")
    if not schema or len(schema.encode()) > NAME_BYTES_MAX or not schema.isprintable() or schema.startswith("pg_"):
        raise InputError(f"schema={schema!r:.80}: the name of a schema of its own, at most {NAME_BYTES_MAX} bytes")
    if history not in _SWITCH:
        raise InputError(f"history={history!r:.20}: give yes or no")
    secrets = {password, unquote(given.get("password", "")), given.get("sslpassword", ""), environment_password}
    named = "" if port is None else f":{port}"
    place = f"{host}{named}{parts.path}" if host or parts.path.strip("/") else "the database of PGHOST and PGDATABASE"
    given.setdefault("application_name", "refold sink")
    given.setdefault("connect_timeout", "10")
    conninfo = f"postgresql://{rest.partition('?')[0]}?{urlencode(given, quote_via=quote)}"
    # As they may come back in messages: as given, and as written in the URL.
    shown = {each for each in secrets if each} | {quote(each, safe="") for each in secrets if each}
    return PostgresAddress(
        conninfo, schema, _SWITCH[history], f"PostgreSQL at {place}, schema {schema}",
        tuple(sorted(shown, key=len, reverse=True)),
    )  # fmt: skip
