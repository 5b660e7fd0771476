"""How Faust's Kafka client connects, from the settings that confluent-kafka's clients are given.

It takes less than librdkafka: certificates and keys as PEM files, and passwords. What it cannot do is refused by name,
never left out.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import faust

from refold.avro.errors import InputError
from refold.avro.files import require_bounded
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, VARIABLES

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SEE = f"see the file that {CONFIG_ENVIRONMENT} names, and {VARIABLES}*"
_NOT_HERE = ("ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.location", "ssl.crl.location", "ssl.cipher.suites")


def credentials_of(config: Mapping[str, str]) -> faust.auth.Credentials | None:
    """TLS and passwords as Faust takes them; InputError names what it does not know."""
    protocol = config.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise InputError(
            f"security.protocol={protocol}: agents over changes connect with {', '.join(_PROTOCOLS)}; {_SEE}"
        )
    context = _context(config) if protocol.endswith("ssl") else None
    if protocol.startswith("sasl"):
        mechanism = config.get("sasl.mechanism", config.get("sasl.mechanisms", "PLAIN"))
        if mechanism not in _MECHANISMS:
            raise InputError(f"sasl.mechanism={mechanism}: agents over changes know {', '.join(_MECHANISMS)}; {_SEE}")
        return faust.SASLCredentials(username=config.get("sasl.username"), password=config.get("sasl.password"),
                                     ssl_context=context, mechanism=mechanism)  # fmt: skip
    return faust.SSLCredentials(context=context) if context is not None else None


def _context(config: Mapping[str, str]) -> ssl.SSLContext:
    for name in _NOT_HERE:
        if name in config:
            raise InputError(f"{name}: agents over changes take ssl.ca.location, ssl.certificate.location and "
                             f"ssl.key.location, PEM files; {_SEE}")  # fmt: skip
    try:
        for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
            if name in config:
                require_bounded(config[name])
        context = ssl.create_default_context(cafile=config.get("ssl.ca.location"), cadata=config.get("ssl.ca.pem"))
        if "ssl.certificate.location" in config:
            context.load_cert_chain(config["ssl.certificate.location"], config.get("ssl.key.location"),
                                    config.get("ssl.key.password"))  # fmt: skip
    except (OSError, ValueError) as error:
        raise InputError(f"the certificates that are named cannot be used: {error}; {_SEE}") from error
    if config.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if config.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
