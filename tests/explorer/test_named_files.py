"""Files that arguments and the environment name: an unusable one causes an error message, never high memory use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.agents.keys.files import FileKeyRing
from refold.agents.keys.master import read_masters
from refold.avro.errors import InputError, KeyUnreadable, StorageError
from refold.avro.files import PEM_BYTES_MAX, SETTINGS_BYTES_MAX, read_bounded
from refold.sinks.otlp.sending import GrpcSender, HttpSender
from refold.sinks.otlp.settings import target_of, wire_of
from refold.sinks.otlp.sink import PositionFile
from refold.sinks.port import SinkRefused
from refold.streams.blobs.url import URL_FILE, store_of_log
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, read_settings
from refold.streams.log.kafka.url import merged, parse_url
from refold.streams.registry.settings import ENVIRONMENT as REGISTRY
from refold.streams.registry.settings import registry_settings
from refold.streams.web.client import CA_ENVIRONMENT, pages_client_of
from refold.streams.web.listening import tls_of
from refold_tests.command import refold_command

LONG = PEM_BYTES_MAX + 1
LIMIT_BYTES = 3 << 30
URL = "kafka://127.0.0.1:9/p"


def sparse(path: Path, size: int = LONG) -> str:
    """Create a sparse file of that many zero bytes, which uses no disk space."""
    with path.open("wb") as file:
        file.truncate(size)
    return str(path)


USES: dict[str, Callable[[str], object]] = {
    "kafka's settings": lambda file: read_settings({CONFIG_ENVIRONMENT: file}),
    "kafka's authority": lambda file: merged(parse_url(URL), {"ssl.ca.location": file}),
    "kafka's key": lambda file: merged(parse_url(URL), {"ssl.key.location": file}),
    "kafka's key store": lambda file: merged(parse_url(URL), {"ssl.keystore.location": file}),
    "the registry's authority": lambda file: registry_settings(
        {REGISTRY: "https://r", f"{REGISTRY}_SSL_CA_LOCATION": file}
    ),
    "the master key": lambda file: read_masters(f"file:{file}"),
    "the pages' authority": lambda file: pages_client_of({CA_ENVIRONMENT: file}).ask(
        "https://127.0.0.1:9", None, {}, 1
    ),
    "the pages' certificate": lambda file: tls_of(file, "absent"),
    "the pages' key": lambda file: tls_of("absent", file),
    "the receiver's authority": lambda file: HttpSender(
        target_of("https://127.0.0.1:9"), wire_of({"OTEL_EXPORTER_OTLP_CERTIFICATE": file})
    ),
    "the receiver's authority, gRPC": lambda file: GrpcSender(
        target_of("grpcs://127.0.0.1:9"), wire_of({"OTEL_EXPORTER_OTLP_CERTIFICATE": file})
    ),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("given", ["long", "/dev/zero"])
def test_file_that_is_too_long_is_refused_by_name(use: str, given: str, tmp_path: Path) -> None:
    file = sparse(tmp_path / "x") if given == "long" else given
    with pytest.raises(InputError, match=r"longer than [\d,]+ bytes|a device") as caught:
        USES[use](file)
    assert len(str(caught.value)) < 400


def test_files_written_by_refold_are_bounded_too(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    ring = FileKeyRing(tmp_path / "keys")
    ring.create("run/a")
    (key,) = (each for each in (tmp_path / "keys").iterdir() if each.stat().st_size)
    sparse(key, SETTINGS_BYTES_MAX + 1)
    with pytest.raises(KeyUnreadable, match="the file is damaged"):  # no more than a key is read
        FileKeyRing(tmp_path / "keys").get("run/a")
    sparse(tmp_path / URL_FILE, SETTINGS_BYTES_MAX + 1)
    with pytest.raises(StorageError, match="longer than"):
        store_of_log(tmp_path, None, make=False)
    position = PositionFile(Path(sparse(tmp_path / "position", SETTINGS_BYTES_MAX + 1)))
    with pytest.raises(SinkRefused, match="longer than"):
        position.read()
    position.close()


@pytest.mark.parametrize(
    ("words", "variable"),
    [(["state", "document/a", "--log", URL], CONFIG_ENVIRONMENT),
     (["observe", "tool_config/a", "settings=@/dev/zero"], ""),
     (["types", "--types", "/dev/zero"], ""), (["golden", "list", "/dev/zero"], "")],
)  # fmt: skip
def test_endless_device_is_refused_within_bounds(words: list[str], variable: str, tmp_path: Path) -> None:
    bounded = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))"
    more = {variable: "/dev/zero"} if variable else {}
    refused = refold_command(*words, log=f"file:{tmp_path / 'log'}", more=more, before=bounded).refused()
    assert "/dev/zero" in refused


def test_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    """A shell's <(...) is a pipe, with which secrets need not be stored in files."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = threading.Thread(target=pipe.write_text, args=("sasl.username=u\n",))
    writing.start()
    assert read_settings({CONFIG_ENVIRONMENT: str(pipe)}) == {"sasl.username": "u"}
    writing.join()


def test_file_at_its_bound_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bounded(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="longer than 4 bytes"):
        read_bounded(tmp_path / "x", 4)
