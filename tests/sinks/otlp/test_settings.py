"""What the receiver's URL and OpenTelemetry's variables say, and what they may not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from refold.avro.errors import InputError
from refold.sinks.otlp.settings import Target, target_of, wire_of
from refold.sinks.otlp.sink import PositionFile
from refold.sinks.port import SinkBusy, SinkRefused
from refold.sinks.registry import open_sink
from refold.streams.cut import Cut

CUT = Cut(bytes(16), {0: 3, 1: 4}, 2, bytes(32))


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://collector", Target("http", "collector:4318", "/v1/traces")),
        ("https://x:1/otlp/v1/traces/", Target("https", "x:1", "/otlp/v1/traces")),
        ("grpc://127.0.0.1", Target("grpc", "127.0.0.1:4317", "")),
        ("grpcs://[::1]:5/", Target("grpcs", "[::1]:5", "")),
        ("grpc://x?position=/a/b&content=no&system=openai&rejected=skip",
         Target("grpc", "x:4317", "", "/a/b", content=False, system="openai", skips_rejected=True)),
    ],
)  # fmt: skip
def test_urls(url: str, target: Target) -> None:
    assert target_of(url) == target


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:4318", "http://HOST:4318"), ("kafka://x/y", "grpc://HOST:4317"), ("http://", "name a host"),
        ("http://u:sesame@x", "OTEL_EXPORTER_OTLP_HEADERS"), ("http://x:port", "port"), ("grpc://x/v1", "no path"),
        ("http://x?content=perhaps", "yes or no"), ("http://x?token=sesame", "unknown.*token"),
    ],
)  # fmt: skip
def test_urls_without_a_receiver(url: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        open_sink("otlp", url)
    assert "sesame" not in str(refused.value)


def test_variables_of_traces_precede_those_of_all_signals() -> None:
    wire = wire_of({
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-key=sesame%20street,b=2",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "3", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "ca.pem",
    })  # fmt: skip
    assert wire.headers == (("b", "2"), ("x-key", "sesame street"))
    assert (wire.timeout_s, wire.gzip, wire.certificate) == (3.0, True, "ca.pem")
    assert "sesame" not in repr(wire)
    assert "sesame" not in wire.hidden("no sesame street, nor sesame")


@pytest.mark.parametrize(("name", "value"), [("TIMEOUT", "soon"), ("COMPRESSION", "zip")])
def test_invalid_variables(name: str, value: str) -> None:
    with pytest.raises(InputError, match=f"OTEL_EXPORTER_OTLP_{name}"):
        wire_of({f"OTEL_EXPORTER_OTLP_{name}": value})


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_missing_certificates(scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "none.pem"))
    with pytest.raises(InputError, match="cannot be read"):
        open_sink("otlp", f"{scheme}://127.0.0.1")


def test_position_file_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "position"
    with closing(PositionFile(path)) as one:
        assert one.read() is None
        one.write(CUT)
        assert one.read() == CUT
        with closing(PositionFile(path)) as other, pytest.raises(SinkBusy, match="another process"):
            other.read()
    with closing(PositionFile(path)) as other:
        assert other.read() == CUT


@pytest.mark.parametrize("content", ["", "{", '{"format": 2, "cut": ""}', '{"format": 1, "cut": "cut:1.x"}', "[]"])
def test_file_without_a_position_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "position"
    path.write_text(content, encoding="utf-8")
    with closing(PositionFile(path)) as file, pytest.raises(SinkRefused, match="remove it"):
        file.read()


def test_unwritable_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        closing(PositionFile(tmp_path / "file" / "position")) as file,
        pytest.raises(SinkRefused, match="position=PATH"),
    ):
        file.read()
