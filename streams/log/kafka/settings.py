"""How Kafka clients connect: settings with Kafka's own names, whose values are never shown.

1. The file that REFOLD_KAFKA_CONFIG names: `name=value` lines, with the names of librdkafka or Java's
   client.properties.
2. REFOLD_KAFKA_<NAME> overrides it; NAME is a librdkafka or Java name with _ for each dot: REFOLD_KAFKA_SASL_PASSWORD.
3. Settings given in Python override both. Only the log's URL names the brokers.

Java names are translated if librdkafka has the same setting (_JAVA). A setting that would change refold's promises, or
that these clients do not support, is an error that names the setting. Names that begin with `schema.registry.` belong
to the Schema Registry (streams/registry/settings.py). Messages name settings, never values: any value may be a
password.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Mapping

from refold.avro.errors import InputError
from refold.avro.files import read_bounded, require_bounded

CONFIG_ENVIRONMENT = "REFOLD_KAFKA_CONFIG"
VARIABLES = "REFOLD_KAFKA_"
REGISTRY_PREFIX = "schema.registry."
_REGISTRY = (REGISTRY_PREFIX, "basic.auth.", "bearer.auth.")
# Variables that Kubernetes sets in every container if a Service is called refold-kafka.
_KUBERNETES = re.compile(r"(SERVICE_(HOST|PORT)|PORT)(_|\Z)")

# refold's promises depend on these: setting them could lose or repeat records, or move a group.
_OWN = frozenset({
    "acks", "request.required.acks", "enable.idempotence", "transactional.id", "transaction.timeout.ms", "group.id",
    "group.instance.id", "group.protocol", "isolation.level", "enable.auto.commit", "auto.commit.enable",
    "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof", "partitioner",
    "partition.assignment.strategy", "allow.auto.create.topics", "client.id", "retries", "message.send.max.retries",
    "max.in.flight", "max.in.flight.requests.per.connection",
})  # fmt: skip
_CHECKSUMS = "check.crcs"
_PEM, _PKCS12 = "PEM", "PKCS12"
# Java's name, and librdkafka's name for the same setting. Store types and JAAS are translated separately.
_JAVA = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.mechanisms": "sasl.mechanism",
}
_PEMS = frozenset({"ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"})
_FILES = frozenset(f"ssl.{name}.location" for name in ("ca", "certificate", "key", "keystore", "crl"))
"""Settings that name files which the clients read themselves."""
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_JAVA_ONLY = {
    "ssl.truststore.password": "a truststore in PEM has none; remove it",
    "ssl.protocol": "OpenSSL chooses the newest both sides know; remove it",
    "ssl.enabled.protocols": "OpenSSL chooses the newest both sides know; remove it",
    "ssl.provider": "it names a Java class; remove it",
    "ssl.keymanager.algorithm": "it is Java's; remove it",
    "ssl.trustmanager.algorithm": "it is Java's; remove it",
    "ssl.secure.random.implementation": "it is Java's; remove it",
    "ssl.engine.factory.class": "it names a Java class; remove it",
    "sasl.client.callback.handler.class": "it names a Java class; give librdkafka's sasl.oauthbearer.* instead",
    "sasl.login.callback.handler.class": "it names a Java class; give librdkafka's sasl.oauthbearer.* instead",
    "sasl.login.class": "it names a Java class; remove it",
    "key.serializer": "records are refold's own; remove it",
    "value.serializer": "records are refold's own; remove it",
    "key.deserializer": "records are refold's own; remove it",
    "value.deserializer": "records are refold's own; remove it",
}
_LOGIN = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*\Z", re.DOTALL)
_OPTION = re.compile(r"""\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")
_SECRET = re.compile(r"password|secret|jaas|user\.info|token|\.pem\Z|keystore\.key\Z|oauthbearer\.config|passphrase")
_SECRET_LENGTH_MIN = 4


class Settings(dict[str, str]):
    """Settings by name. `str` and `repr` show the names only."""

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(self))})"

    __str__ = __repr__

    @property
    def principal(self) -> str:
        """The clients' principal as access lists name it; User:NAME if the settings have no user name."""
        return f"User:{self.get('sasl.username') or 'NAME'}"

    def hidden(self, text: str) -> str:
        """Return a text, such as a client's message, with these settings' secret values replaced by "..."."""
        for name, value in self.items():
            if is_secret(name) and len(value) >= _SECRET_LENGTH_MIN:
                text = text.replace(value, "...")
        return text


def is_secret(name: str) -> bool:
    """Return whether a setting's value must not be shown."""
    return _SECRET.search(name) is not None


def read_settings(environ: Mapping[str, str], path: str | os.PathLike[str] | None = None) -> Settings:
    """Read the clients' settings from a file and from the environment.

    Args:
        environ: the environment variables.
        path: the file, instead of the one that REFOLD_KAFKA_CONFIG names.

    Raises:
        InputError: names the setting that cannot be read or used, and its source.
    """
    return Settings((name, value) for name, value in _all(environ, path).items() if not name.startswith(_REGISTRY))


def registry_lines(environ: Mapping[str, str]) -> Settings:
    """Return the Schema Registry's settings in file and environment, with names that lack `schema.registry.`"""
    return Settings(
        (name.removeprefix(REGISTRY_PREFIX), value)
        for name, value in _all(environ, None).items()
        if name.startswith(_REGISTRY)
    )


def translated(given: Mapping[str, str], where: str) -> Settings:
    """Translate settings to librdkafka's names.

    Args:
        given: settings by librdkafka or Java name.
        where: their source, for error messages.

    Raises:
        InputError: a setting must not be set, or is not supported.
    """
    found = Settings(given)
    for name in sorted(found):
        if name in _OWN:
            raise InputError(f"{where}: {name} must not be set: refold sets it, and its promises depend on it")
        if name == _CHECKSUMS and found[name].lower() != "false":
            raise InputError(
                f"{where}: {name} must not be set: at a batch with a wrong checksum, librdkafka may end the "
                "process (docs/decisions/056-checksums-of-batches.md); `refold verify` checks the batches"
            )
        if name in _JAVA_ONLY:
            raise InputError(f"{where}: {name} is not supported: {_JAVA_ONLY[name]}")
    _take_truststore(found, where)
    _take_keystore(found, where)
    if "sasl.jaas.config" in found:
        _take_jaas(found, where)
    # In Java, an empty value means "do not verify the host name".
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    for java, name in _JAVA.items():
        if java in found:
            value = found.pop(java)
            found.setdefault(name, value)
    for name in _PEMS & found.keys():
        found[name] = _in_lines(found[name])
    for name in _FILES & found.keys():
        try:
            require_bounded(found[name])
        except (OSError, ValueError) as error:
            raise InputError(f"{where}: {name}={found[name]}: {getattr(error, 'strerror', error)}") from None
    return found


def _all(environ: Mapping[str, str], path: str | os.PathLike[str] | None) -> Settings:
    named = os.fspath(path) if path else environ.get(CONFIG_ENVIRONMENT, "")
    found = translated(dict(_lines(named)), f"{named} ({CONFIG_ENVIRONMENT})") if named else Settings()
    variables = {
        name.removeprefix(VARIABLES).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(VARIABLES)
        and name != CONFIG_ENVIRONMENT
        and value
        and not _KUBERNETES.match(name.removeprefix(VARIABLES))
    }
    return Settings({**found, **translated(variables, f"{VARIABLES}*")})


def _lines(named: str) -> Iterator[tuple[str, str]]:
    try:
        lines = read_bounded(named).decode().splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputError(f"{named} ({CONFIG_ENVIRONMENT}): cannot be read: {reason}") from None
    waiting, begun = "", 0
    for number, line in enumerate(lines, 1):
        text = waiting + line.strip()
        begun, waiting = (begun if waiting else number), ""
        if not text or text[0] in "#!":
            continue
        # As in Java's files: one backslash at the end of a line continues it on the next line.
        if text.endswith("\\") and not text.endswith("\\\\"):
            waiting = text[:-1]
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # The message does not include the line: it may be part of a password.
            raise InputError(f"{named}:{begun}: not of the form key=value")
        yield name.strip(), value.strip()
    if waiting:
        raise InputError(f"{named}:{begun}: the last line ends in a backslash, and no line follows")


def _in_lines(pem: str) -> str:
    """Convert PEM on one line, as in a properties file, to the lines that OpenSSL reads."""
    if "\n" in pem:
        return pem

    def block(found: re.Match[str]) -> str:
        content = "\n".join(textwrap.wrap(re.sub(r"\s", "", found[2]), 64))
        return f"-----BEGIN {found[1]}-----\n{content}\n-----END {found[1]}-----\n"

    return "".join(block(each) for each in _BLOCK.finditer(pem.replace("\\n", " "))) or pem


def _take_truststore(found: Settings, where: str) -> None:
    kind = found.pop("ssl.truststore.type", "JKS").upper()
    place = found.pop("ssl.truststore.location", None)
    if place is None:
        return
    if kind != _PEM:
        raise InputError(
            f"{where}: ssl.truststore.location is of the type {kind}, which librdkafka does not read; write it as PEM "
            "(keytool -exportcert -rfc -keystore FILE -alias NAME -file ca.pem) and give ssl.ca.location=ca.pem"
        )
    found.setdefault("ssl.ca.location", place)


def _take_keystore(found: Settings, where: str) -> None:
    kind = found.pop("ssl.keystore.type", _PKCS12).upper()
    if kind == _PEM:
        place = found.pop("ssl.keystore.location", None)
        if place is not None:
            found.setdefault("ssl.certificate.location", place)
            found.setdefault("ssl.key.location", place)
    elif kind != _PKCS12:
        raise InputError(
            f"{where}: ssl.keystore.location is of the type {kind}, which librdkafka does not read; write it as PKCS12 "
            "(keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12)"
        )


def _take_jaas(found: Settings, where: str) -> None:
    problem = f"{where}: sasl.jaas.config:"
    login = _LOGIN.match(found.pop("sasl.jaas.config"))
    if login is None:
        raise InputError(f'{problem} give ...LoginModule required username="..." password="...";')
    module, text = login[1].rpartition(".")[2], login[2]
    if module not in ("PlainLoginModule", "ScramLoginModule"):
        raise InputError(
            f"{problem} {module} is not supported; give librdkafka's own settings instead: sasl.mechanism, and "
            "sasl.oauthbearer.* or sasl.kerberos.*"
        )
    options: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        option = _OPTION.match(text, at)
        if option is None:
            raise InputError(f'{problem} an option is not of the form name="value"')
        value = next(each for each in option.groups()[1:] if each is not None)
        options[option[1]] = re.sub(r"\\(.)", r"\1", value)
        at = option.end()
    if not {"username", "password"} <= options.keys():
        raise InputError(f"{problem} it has no username and password")
    found.setdefault("sasl.username", options["username"])
    found.setdefault("sasl.password", options["password"])
