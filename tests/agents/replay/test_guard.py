"""Under guard nothing reaches the network, in any way; outside of it everything does."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from refold.agents.replay.guard import NetworkGuard
from refold.agents.replay.watch import NetworkDenied, outside

HERE = "test_guard.py:"


@pytest.fixture
def port() -> Iterator[int]:
    """Yield the port of a loopback server that answers each connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1)
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(10)


def by_urllib(port: int) -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).close()


def by_http_client(port: int) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/")


def by_socket(port: int) -> None:
    with socket.socket() as connection:
        connection.connect(("127.0.0.1", port))


def by_connect_ex(port: int) -> None:
    with socket.socket() as connection:
        connection.connect_ex(("127.0.0.1", port))


def by_datagram(port: int) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as connection:
        connection.sendto(b"x", ("127.0.0.1", port))


def by_unix_socket(port: int) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"/tmp/refold-nobody-{port}")


def by_name(port: int) -> None:
    socket.getaddrinfo("localhost", port)


def by_old_name(port: int) -> None:
    socket.gethostbyname("localhost")


def by_asyncio(port: int) -> None:
    async def connect() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()

    asyncio.run(connect())


def by_asyncio_name(port: int) -> None:
    async def look_up() -> None:
        await asyncio.get_running_loop().getaddrinfo("localhost", port)

    asyncio.run(look_up())


def by_thread(port: int) -> None:
    raised: list[BaseException] = []

    def connect() -> None:
        try:
            by_socket(port)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def by_new_pool(port: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(by_socket, port).result()


def by_process(port: int) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def by_shell(port: int) -> None:
    os.system("true")


WAYS: list[Callable[[int], None]] = [
    by_urllib, by_http_client, by_socket, by_connect_ex, by_datagram, by_name, by_old_name, by_asyncio,
    by_asyncio_name, by_thread, by_new_pool, by_process, by_shell,
]  # fmt: skip


@pytest.mark.parametrize("way", [*WAYS, by_unix_socket])
def test_every_network_call_is_denied_and_its_place_named(way: Callable[[int], None], port: int) -> None:
    told: list[NetworkDenied] = []
    with NetworkGuard(told.append) as guard, pytest.raises(NetworkDenied) as raised:
        way(port)
    assert HERE in raised.value.source_line
    assert "run.model" in str(raised.value)
    assert guard.denied in told


@pytest.mark.parametrize("way", WAYS)
def test_network_is_open_before_after_and_outside_the_guard(way: Callable[[int], None], port: int) -> None:
    way(port)
    with NetworkGuard(), outside():
        way(port)
    way(port)


def test_existing_connection_sends_nothing(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for send in ("send", "sendall"):
            with NetworkGuard(), pytest.raises(NetworkDenied, match="open before"):
                getattr(connection, send)(b"x")
        with connection.makefile("wb", buffering=0) as file, NetworkGuard(), pytest.raises(NetworkDenied):
            file.write(b"x")
        connection.sendall(b"x")
        assert connection.recv(4) == b"HTTP"


def test_existing_thread_pool_is_guarded_for_work_submitted_inside(port: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(by_socket, port).result()
        with NetworkGuard(), pytest.raises(NetworkDenied) as raised:
            pool.submit(by_socket, port).result()
        assert HERE in raised.value.source_line
        pool.submit(by_socket, port).result()


def test_other_threads_are_unaffected(port: int) -> None:
    begin, done = threading.Event(), threading.Event()

    def beside() -> None:
        begin.wait()
        by_urllib(port)
        by_thread(port)
        done.set()

    thread = threading.Thread(target=beside)
    thread.start()
    with NetworkGuard() as guard:
        begin.set()
        thread.join()
    assert done.is_set()
    assert guard.denied is None


def test_concurrent_task_is_unaffected(port: int) -> None:
    async def guarded(inside: asyncio.Event, leave: asyncio.Event) -> None:
        with NetworkGuard():
            inside.set()
            await leave.wait()
            with pytest.raises(NetworkDenied):
                await asyncio.open_connection("127.0.0.1", port)

    async def both() -> None:
        inside, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(guarded(inside, leave))
        await inside.wait()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
        leave.set()
        await task

    asyncio.run(both())


def test_event_loop_and_socketpair_work_under_the_guard() -> None:
    async def wait() -> int:
        return await asyncio.to_thread(lambda: 7)

    with NetworkGuard() as guard:
        assert asyncio.run(wait()) == 7
        left, right = socket.socketpair()
        with left, right:
            left.sendall(b"x")
            assert right.recv(1) == b"x"
    assert guard.denied is None


def test_first_denial_is_kept_even_if_the_code_catches_it(port: int) -> None:
    with NetworkGuard() as guard:
        for way in (by_socket, by_name):
            with contextlib.suppress(NetworkDenied):
                way(port)
    assert guard.denied is not None
    assert guard.denied.what == f"connect to 127.0.0.1:{port}"


def test_nested_guard_leaves_the_outer_one_active(port: int) -> None:
    with NetworkGuard() as outer:
        with NetworkGuard():
            pass
        with pytest.raises(NetworkDenied):
            by_socket(port)
    assert outer.denied is not None
    by_socket(port)


def test_platform_is_known_in_a_process_that_never_queried_it() -> None:
    """Python starts a process to find the platform, once; OpenAI's SDK queries it in its first request."""
    code = (
        "import platform\nfrom refold.agents.replay.guard import NetworkGuard\n"
        "with NetworkGuard() as guard:\n    print(platform.platform())\nassert guard.denied is None, guard.denied\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
