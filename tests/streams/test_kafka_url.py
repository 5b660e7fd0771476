"""kafka: URLs, and the file of settings that goes with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.avro.errors import InputError
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT
from refold.streams.log.kafka.url import BLOBS_ENVIRONMENT, Address, merged, parse_url


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_ENVIRONMENT, raising=False)
    monkeypatch.delenv(BLOBS_ENVIRONMENT, raising=False)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("kafka://127.0.0.1:9092/agents", Address("127.0.0.1:9092", "agents")),
        ("kafka://a.example,b:19092/team.agents-1_x", Address("a.example:9092,b:19092", "team.agents-1_x")),
        ("kafka://[::1]:9092/a?partitions=16", Address("[::1]:9092", "a", 16)),
        ("kafka://a/b?blobs=file:///x%20y&partitions=1", Address("a:9092", "b", 1, "file:///x%20y")),
    ],
)
def test_url_names_brokers_and_a_log(url: str, address: Address) -> None:
    assert parse_url(url) == address
    assert parse_url(address.url) == address._replace(partitions=None)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka:", "names no broker"),
        ("kafka:agents", "names no broker"),
        ("kafka:///agents", "names no broker"),
        ("kafka://a:9092", "names no log on that broker"),
        ("kafka://a:9092/", "names no log on that broker"),
        ("kafka://a:9092/a/b", "cannot be a prefix of topics"),
        ("kafka://a:9092/..", "cannot be a prefix of topics"),
        ("kafka://a:9092/ä", "cannot be a prefix of topics"),
        (f"kafka://a:9092/{'x' * 201}", "at most 200"),
        ("kafka://a:0/b", "'a:0' is not a broker"),
        ("kafka://a:70000/b", "'a:70000' is not a broker"),
        ("kafka://a,,b/c", "'' is not a broker"),
        ("kafka://user:secret@a:9092/b", "takes no user or password"),
        ("kafka://a/b?partitions=3", "power of two"),
        ("kafka://a/b?partitions=x", "give a whole number"),
        ("kafka://a/b?acks=1", "unknown option 'acks'"),
        ("kafka://a/b?blobs=s3:x", "file:///PATH"),
        ("kafka://a/b?blobs=file:x", "file:///PATH"),
    ],
)
def test_invalid_url_is_refused_with_the_right_form(url: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


def test_content_store_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BLOBS_ENVIRONMENT, "file:///contents")
    assert parse_url("kafka://a/b").blobs == "file:///contents"
    assert parse_url("kafka://a/b?blobs=file:///x").blobs == "file:///x"
    assert parse_url("kafka://a/b?blobs=").blobs is None


def test_settings_come_from_a_file_the_caller_and_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kafka.conf"
    file.write_text("# TLS\nsecurity.protocol = SASL_SSL\n\nsasl.password=a=b #c\nbootstrap.servers=elsewhere:1\n")
    monkeypatch.setenv(CONFIG_ENVIRONMENT, str(file))
    found = merged(parse_url("kafka://a:1/b"), {"sasl.username": "me", "security.protocol": "SASL_PLAINTEXT"})
    assert found == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.password": "a=b #c",
        "sasl.username": "me",
        "bootstrap.servers": "a:1",
    }
