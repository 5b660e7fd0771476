"""Connection settings of clients: accepted names, refused names, and values that are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.avro.errors import InputError
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, Settings, is_secret, read_settings, translated
from refold.streams.registry.settings import registry_settings

SECRET = "hunter2-s3cret"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def read(file: Path, text: str, **variables: str) -> Settings:
    file.write_text(text)
    return read_settings({CONFIG_ENVIRONMENT: str(file), **variables})


def test_java_properties_file_is_parsed(tmp_path: Path) -> None:
    found = read(
        tmp_path / "client.properties",
        f"""! as kafka-acls.sh --command-config takes it
        bootstrap.servers=elsewhere:9093
        security.protocol=SASL_SSL
        sasl.mechanism=SCRAM-SHA-512
        sasl.jaas.config={SCRAM} required \\
            username="refold-worker" \\
            password="a \\" ; b = '{SECRET}";
        ssl.truststore.type=PEM
        ssl.truststore.location=/etc/kafka/ca.pem
        ssl.keystore.type=PEM
        ssl.keystore.location=/etc/kafka/client.pem
        ssl.key.password={SECRET}
        ssl.endpoint.identification.algorithm=
        """,
    )
    assert found == {
        "bootstrap.servers": "elsewhere:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "refold-worker",
        "sasl.password": f"a \" ; b = '{SECRET}",
        "ssl.ca.location": "/etc/kafka/ca.pem",
        "ssl.certificate.location": "/etc/kafka/client.pem",
        "ssl.key.location": "/etc/kafka/client.pem",
        "ssl.key.password": SECRET,
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert found.principal == "User:refold-worker"


def test_checksum_checks_that_may_abort_the_client_are_off() -> None:
    with pytest.raises(InputError, match=r"check\.crcs must not be set: at a batch with a wrong checksum"):
        translated({"check.crcs": "true"}, "here")
    assert translated({"check.crcs": "false"}, "here") == {"check.crcs": "false"}


def test_variables_override_the_file_and_those_of_kubernetes_are_ignored(tmp_path: Path) -> None:
    found = read(
        tmp_path / "kafka.conf",
        "# librdkafka's\nsasl.password=of the file\nsasl.username=u\n"
        f"ssl.ca.location=/ca\nssl.key.password={SECRET}\\\\\n",
        REFOLD_KAFKA_SASL_PASSWORD=SECRET,
        REFOLD_KAFKA_SSL_TRUSTSTORE_CERTIFICATES=PEM.replace("\n", " "),
        REFOLD_KAFKA_SASL_USERNAME="",
        REFOLD_KAFKA_SERVICE_HOST="10.0.0.1",
        REFOLD_KAFKA_PORT_9092_TCP_ADDR="10.0.0.1",
        REFOLD_KAFKA_PORT="tcp://10.0.0.1:9092",
    )
    assert found == {
        "sasl.password": SECRET,
        "sasl.username": "u",
        "ssl.ca.location": "/ca",
        "ssl.ca.pem": PEM,
        "ssl.key.password": f"{SECRET}\\\\",
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ssl.truststore.location=/x.jks", "ssl.truststore.location is of the type JKS.*ssl.ca.location=ca.pem"),
        ("ssl.truststore.type=PKCS12\nssl.truststore.location=/x", "of the type PKCS12"),
        ("ssl.keystore.type=JKS\nssl.keystore.location=/x", "ssl.keystore.location is of the type JKS.*PKCS12"),
        (f"ssl.truststore.password={SECRET}", "ssl.truststore.password is not supported.*remove it"),
        ("ssl.enabled.protocols=TLSv1.3", "ssl.enabled.protocols is not supported"),
        ("sasl.login.class=x.Y", "sasl.login.class is not supported"),
        (f"sasl.jaas.config={SCRAM} required username=u password={SECRET}", "sasl.jaas.config: give"),
        (f'sasl.jaas.config={SCRAM} required username="u" {SECRET};', "is not of the form name="),
        (f'sasl.jaas.config={SCRAM} required password="{SECRET}";', "has no username"),
        ("sasl.jaas.config=x.Krb5LoginModule required useKeyTab=true;", "Krb5LoginModule is not supported"),
        ("transactional.id=mine", "transactional.id must not be set"),
        ("group.id=mine", "group.id must not be set"),
        (f"a=b\n{SECRET}", r"client\.conf:2: not of the form key=value\Z"),
        (f"a=b\nsasl.password={SECRET}\\", r"client\.conf:2: the last line ends in a backslash"),
    ],
)
def test_unusable_setting_is_named_and_no_value_shown(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        read(tmp_path / "client.conf", line)
    assert SECRET not in str(refused.value)


def test_invalid_file(tmp_path: Path) -> None:
    file = tmp_path / "kafka.conf"
    with pytest.raises(InputError, match=r"kafka\.conf \(REFOLD_KAFKA_CONFIG\): cannot be read"):
        read_settings({CONFIG_ENVIRONMENT: str(file)})
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"cannot be read: it is no UTF-8 text"):
        read_settings({CONFIG_ENVIRONMENT: str(file)})
    assert read_settings({}) == {}


def test_setting_unknown_to_librdkafka_is_named_without_its_secret() -> None:
    for name, value in (("no.such.setting", "x"), ("security.protocol", SECRET), ("ssl.ca.location", "/no/such.pem")):
        config = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", name: value, "sasl.password": SECRET}
        with pytest.raises(InputError, match=r"refuses its settings: .*REFOLD_KAFKA_\*") as refused:
            Clients(config, "p").admin()
        assert name in str(refused.value) or value in str(refused.value)
        assert SECRET not in repr(refused.value) + repr(refused.value.__cause__)
        assert refused.value.__suppress_context__


def test_settings_are_shown_by_name_only() -> None:
    found = translated({"sasl.password": SECRET, "security.protocol": "SSL"}, "here")
    assert repr(found) == str(found) == f"{found}" == "Settings(sasl.password, security.protocol)"
    assert found.hidden(f"a {SECRET} b SSL") == "a ... b SSL"
    assert all(map(is_secret, ("ssl.key.password", "ssl.key.pem", "sasl.jaas.config", "basic.auth.user.info")))


def test_file_may_name_the_schema_registry(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        f"sasl.username=u\nschema.registry.url=https://h/x\nbasic.auth.credentials.source=USER_INFO\n"
        f"schema.registry.basic.auth.user.info=me:{SECRET}\nschema.registry.ssl.truststore.type=PEM\n"
        "schema.registry.ssl.truststore.location=/ca.pem\n"
    )
    environ = {CONFIG_ENVIRONMENT: str(file)}
    assert read_settings(environ) == {"sasl.username": "u"}
    found = registry_settings(environ)
    assert found is not None
    assert (found.urls, found.user_info, found.tls) == (
        ("https://h/x",), f"me:{SECRET}", {"ssl.ca.location": "/ca.pem"},
    )  # fmt: skip
    assert SECRET not in repr(found) + str(found)
    other = registry_settings({
        **environ, "REFOLD_SCHEMA_REGISTRY": "https://g", "REFOLD_SCHEMA_REGISTRY_USER_INFO": "a:b",
        "REFOLD_SCHEMA_REGISTRY_SSL_CA_LOCATION": "/other.pem",
    })  # fmt: skip
    assert other is not None
    assert (other.urls, other.user_info, other.tls) == (("https://g",), "a:b", {"ssl.ca.location": "/other.pem"})


@pytest.mark.parametrize("name", ["bearer.auth.token", "schema.registry.ssl.keystore.location"])
def test_setting_unsupported_by_the_registry_client_is_named(tmp_path: Path, name: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"schema.registry.url=https://h\n{name}={SECRET}\n")
    with pytest.raises(InputError, match=f"{name} is not supported") as refused:
        registry_settings({CONFIG_ENVIRONMENT: str(file)})
    assert SECRET not in str(refused.value)
