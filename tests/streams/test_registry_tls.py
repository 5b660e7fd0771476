"""A Schema Registry with TLS and a password: configured by variables, and by the Kafka clients' file."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from refold.avro.errors import InputError, RegistryUnavailable
from refold.streams.registry.ids import SchemaIds
from refold.streams.registry.settings import RegistrySettings, registry_settings
from refold.testing.kafka.settings import Certificates, certificates
from refold.testing.processes import ServerMissing
from refold_tests.absent import without
from refold_tests.http_server import running

USER = "me:s3cret-of-the-registry"


class _Guarded(BaseHTTPRequestHandler):
    """Returns its level only to clients with the password."""

    def do_GET(self) -> None:
        is_let_in = self.headers["Authorization"] == f"Basic {base64.b64encode(USER.encode()).decode()}"
        said = {"compatibilityLevel": "NONE"} if is_let_in else {"error_code": 40101, "message": "no"}
        self.send_response(200 if is_let_in else 401)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    try:
        return certificates(tmp_path_factory.mktemp("certificates"))
    except ServerMissing as error:
        without(str(error))


@contextmanager
def registry(made: Certificates, *, asks_for_certificate: bool = False) -> Iterator[str]:
    """The URL of a running registry."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    if asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(made.authority)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Guarded)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with running(server):
        yield f"https://127.0.0.1:{server.server_port}"


def level(settings: RegistrySettings | None) -> str:
    assert settings is not None
    with SchemaIds(settings, retries=0) as asked:
        return asked.level()


def test_ca_and_password_by_variables(made: Certificates) -> None:
    with registry(made) as url:
        environ = {"REFOLD_SCHEMA_REGISTRY": url, "REFOLD_SCHEMA_REGISTRY_USER_INFO": USER}
        trusted = {**environ, "REFOLD_SCHEMA_REGISTRY_SSL_CA_LOCATION": str(made.authority)}
        assert level(registry_settings(trusted)) == "NONE"
        with pytest.raises(RegistryUnavailable, match="certificate") as refused:
            level(registry_settings(environ))
        with pytest.raises(RegistryUnavailable, match="does not let this user in") as unknown:
            level(registry_settings({**trusted, "REFOLD_SCHEMA_REGISTRY_USER_INFO": f"{USER}x"}))
        assert USER.partition(":")[2] not in f"{refused.value}{unknown.value}"


def test_client_certificate_by_the_file(made: Certificates, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    environ = {"REFOLD_KAFKA_CONFIG": str(file)}
    with registry(made, asks_for_certificate=True) as url:
        lines = f"""schema.registry.url={url}
            basic.auth.credentials.source=USER_INFO
            basic.auth.user.info={USER}
            schema.registry.ssl.truststore.type=PEM
            schema.registry.ssl.truststore.location={made.authority}
            """
        file.write_text(lines)
        with pytest.raises(RegistryUnavailable):
            level(registry_settings(environ))
        file.write_text(
            f"{lines}\nschema.registry.ssl.keystore.type=PEM\nschema.registry.ssl.keystore.location={made.server}\n"
        )
        assert level(registry_settings(environ)) == "NONE"
        file.write_text(f"{lines}\nschema.registry.ssl.certificate.location={tmp_path / 'none.pem'}\n")
        with pytest.raises(InputError, match="client refuses its settings"):
            level(registry_settings(environ))
