"""A secret of its own in each place where a credential can be: each reaches the provider, and none reaches a disk."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec
import pytest
from websockets.sync.client import connect

from refold.agents.log import open_log
from refold_tests.command import environment, started
from refold_tests.raw_provider import Raw, raw_provider
from refold_tests.socket_provider import socket_provider

pytestmark = pytest.mark.outside

WAIT_S = 120
MARK = "harmless-words-that-are-kept"
PLACES = (
    "bearer", "x-api-key", "x-goog-api-key", "cookie", "set-cookie", "query-key", "query-token", "amz-signature",
    "amz-token", "amz-credential", "goog-signature", "header-signature", "header-credential", "basic-password",
    "body-key", "nested-text", "deep", "in-a-list", "form", "multipart", "zipped-request", "zipped-answer",
    "answer-token", "stream", "protocol", "message", "not-http", "of-the-upstream",
)  # fmt: skip
SECRETS = {place: f"planted-{number:02}-{place}-Zq7xW9kT" for number, place in enumerate(PLACES)}
NOT_ASKED = {"set-cookie", "zipped-answer", "answer-token", "stream", "not-http", "of-the-upstream", "basic-password"}
"""Places that no request has as they are: the answers, and what the proxy does not pass on."""
JSON = {"Content-Type": "application/json"}


class Planted(NamedTuple):
    """A request with secrets. back: those that its answer says back."""

    target: str
    body: bytes = b"{}"
    headers: dict[str, str] = {}  # noqa: RUF012  # never changed
    back: tuple[str, ...] = ()


def bodied(tree: Any) -> bytes:
    return json.dumps({"mark": MARK, **tree}).encode()


def requests() -> list[Planted]:
    secret = SECRETS
    query = urlencode({"key": secret["query-key"], "access_token": secret["query-token"], "mark": MARK})
    signed_url = urlencode({
        "X-Amz-Signature": secret["amz-signature"], "X-Amz-Security-Token": secret["amz-token"],
        "X-Amz-Credential": secret["amz-credential"], "X-Goog-Signature": secret["goog-signature"],
    })  # fmt: skip
    signed = (
        f"AWS4-HMAC-SHA256 Credential={secret['header-credential']}/20261126/eu-west-1/bedrock/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={secret['header-signature']}"
    )
    basic = base64.b64encode(f"ana:{secret['basic-password']}".encode()).decode()
    parts = (("api_key", secret["multipart"]), ("mark", MARK))
    form = "".join(f'--b0\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts)
    keys = {
        "api_key": secret["body-key"], "args": json.dumps({"password": secret["nested-text"]}),
        "a": [{"b": [{"clientSecret": secret["deep"]}]}], "api_keys": [secret["in-a-list"]],
    }  # fmt: skip
    headers = {
        "Authorization": f"Bearer {secret['bearer']}", "X-Api-Key": secret["x-api-key"],
        "x-goog-api-key": secret["x-goog-api-key"], "Cookie": f"session={secret['cookie']}",
    }  # fmt: skip
    return [
        Planted("/v1/chat/completions", bodied(keys), JSON | headers, ("bearer", "x-api-key", "x-goog-api-key")),
        Planted(f"/v1/x?{query}", back=("query-key", "query-token")),
        Planted(f"/bucket?{signed_url}", back=("amz-signature", "amz-token", "amz-credential", "goog-signature")),
        Planted("/model/m/invoke", headers={"Authorization": signed}, back=("header-signature", "header-credential")),
        Planted("/v1/basic", headers={"Authorization": f"Basic {basic}"}, back=("basic-password",)),
        Planted("/v1/form", f"mark={MARK}&client_secret={secret['form']}".encode(),
                {"Content-Type": "application/x-www-form-urlencoded"}),
        Planted("/v1/files", f"{form}--b0--\r\n".encode(), {"Content-Type": "multipart/form-data; boundary=b0"}),
        Planted("/v1/zipped", gzip.compress(bodied({"password": secret["zipped-request"]})),
                {**JSON, "Content-Encoding": "gzip"}),
    ]  # fmt: skip


class ProxyProcess:
    """`refold proxy` in a folder, with its output in a file there."""

    started: ClassVar[list[ProxyProcess]] = []

    def __init__(self, folder: Path, upstream: str) -> None:
        self.output = (folder / "output").open("ab")
        self.process = started(
            "proxy", "--upstream", upstream, "--listen", "127.0.0.1:0", "--spool", folder / "spool",
            env=environment(f"file:{folder / 'log'}"), stdout=subprocess.PIPE, stderr=self.output.fileno(), text=False,
        )  # fmt: skip
        self.started.append(self)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.output.write(line)
        self.url = next(word for word in line.decode().split() if word.startswith("http"))

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it. By SIGTERM, everything is stored on return."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == (0 if number == signal.SIGTERM else -number)
        self.output.write(out)
        self.output.close()


@pytest.fixture(autouse=True)
def _no_proxy_is_left() -> Iterator[None]:
    """A test that fails leaves no process."""
    yield
    while ProxyProcess.started:
        left = ProxyProcess.started.pop()
        left.process.kill()
        left.process.communicate()
        left.output.close()


def files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, with its content."""
    found = {}
    for each in folder.rglob("*"):
        try:
            found[str(each.relative_to(folder))] = each.read_bytes()
        except (IsADirectoryError, FileNotFoundError):  # the spool's files are removed when they are stored
            continue
    return found


def sent(url: str, given: Planted) -> bytes:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
    try:
        connection.request("POST", given.target, given.body, {**JSON, **given.headers})
        return connection.getresponse().read()
    finally:
        connection.close()


def by_http(folder: Path, number: signal.Signals = signal.SIGTERM) -> bytes:
    """Send every request, end the proxy, and return what the provider received."""
    with raw_provider() as provider:
        proxy = ProxyProcess(folder, provider.url)
        answer_headers = {**JSON, "Content-Encoding": "gzip", "Set-Cookie": SECRETS["set-cookie"]}
        for given in requests():
            said = {
                "message": f"you sent {' '.join(SECRETS[each] for each in given.back)}",
                "access_token": SECRETS["answer-token"], "password": SECRETS["zipped-answer"],
            }  # fmt: skip
            answer = gzip.compress(bodied(said))
            provider.answers = [Raw([*answer_headers.items()], [answer])]
            assert sent(proxy.url, given) == answer
        pieces = ({"delta": f"{MARK} {SECRETS['bearer']}"}, {"api_key": SECRETS["stream"]})
        events = [f"data: {json.dumps(each)}\n\n".encode() for each in pieces]
        provider.answers = [Raw([("Content-Type", "text/event-stream")], events)]
        stream = Planted("/v1/stream", headers={"Authorization": f"Bearer {SECRETS['bearer']}"})
        assert sent(proxy.url, stream) == b"".join(events)
        place = urlsplit(proxy.url)
        with socket.create_connection((place.hostname or "", place.port or 0), WAIT_S) as raw:
            secret = SECRETS["not-http"]
            raw.sendall(f"GET / HTTP/9.9 {secret}\r\nAuthorization: {secret}\r\n\r\n".encode())
            assert raw.recv(1 << 16)
        proxy.end(number)
        return b"".join(
            f"{path} {json.dumps(headers)}".encode() + (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            for _, path, headers, body in provider.requests
        )  # fmt: skip


def by_websocket(folder: Path) -> bytes:
    """Send a message by a WebSocket, and return what the provider received."""
    with socket_provider() as provider:
        refused = {"type": "error", "status": 400, "mark": MARK, "error": {"message": SECRETS["protocol"]}}
        provider.answers = [[json.dumps(refused)]]
        proxy = ProxyProcess(folder, provider.url)
        headers = {"Sec-WebSocket-Protocol": f"openai-insecure-api-key.{SECRETS['protocol']}"}
        url = f"{proxy.url.replace('http', 'ws')}/v1/responses"
        with connect(url, proxy=None, additional_headers=headers) as connection:
            asking = {"type": "response.create", "input": MARK, "metadata": {"api_key": SECRETS["message"]}}
            connection.send(json.dumps(asking))
            assert SECRETS["protocol"] in str(connection.recv(WAIT_S))
        proxy.end()
        return f"{provider.heads} {provider.asked}".encode()


def holding(folder: Path) -> bytes:
    """Send every request while the log is not there, and return what the spool and the output then hold."""
    (folder / "held").mkdir()
    (folder / "held" / "log").write_text("a file where the log has to be")
    by_http(folder / "held", signal.SIGKILL)
    return b"".join(files(folder / "held").values())


def test_secret_in_every_place_reaches_the_provider_but_no_disk(tmp_path: Path) -> None:
    waiting = holding(tmp_path)
    assert waiting.count(MARK.encode()) > 12, "the exchanges wait in the spool"
    received = by_http(tmp_path) + by_websocket(tmp_path)
    proxy = ProxyProcess(tmp_path, f"http://ana:{SECRETS['of-the-upstream']}@127.0.0.1:9")
    assert b"got no response" in sent(proxy.url, Planted("/v1/gone"))
    proxy.end()
    assert {place for place, secret in SECRETS.items() if secret.encode() not in received} == NOT_ASKED
    with open_log(f"file:{tmp_path / 'log'}", read_only=True) as log:
        found = [log.recording(row.run) for row in log.runs(further=True)]
    recorded = json.dumps(msgspec.to_builtins(found)).encode()
    assert recorded.count(MARK.encode()) > 12
    assert recorded.count(b"HIDDEN") > 20
    for name, data in {**files(tmp_path), "the recordings": recorded}.items():
        assert [place for place, secret in SECRETS.items() if secret.encode() in data] == [], name
