"""A real PostgreSQL for tests and benchmarks: on loopback, without fsync unless asked, as a user other than root. It is
deleted when the process that started it ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

from refold.testing.processes import HOST, ServerFailed, ServerMissing, Supervised, free_ports

_INSTALLED = "/usr/lib/postgresql"
_USER = "nobody"
_READY_S = 60.0
_ATTEMPTS = 5
_SETTINGS = {
    "shared_buffers": "64MB", "max_connections": "60",
    "listen_addresses": HOST, "log_min_messages": "fatal", "max_wal_size": "512MB",
}  # fmt: skip
_DURABLE = ({"fsync": "off", "full_page_writes": "off"}, {"fsync": "on", "full_page_writes": "on"})


@cache
def binaries() -> Path:
    """Return the folder of initdb and postgres of the newest installed version. Raises ServerMissing."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).parent
    folders = sorted(Path(_INSTALLED).glob("*/bin"), key=lambda each: int(each.parent.name), reverse=True)
    if not folders:
        raise ServerMissing("PostgreSQL's server is not installed here; on Debian: apt install postgresql")
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        raise ServerMissing(
            "PostgreSQL does not run as root, and setpriv (util-linux) is not there to run it otherwise"
        )
    return folders[0]


class Postgres:
    """A started server. `url` names its superuser `admin`, without a password, and the database `postgres`.

    Args:
        is_durable: Whether it syncs each commit, as benchmarks of durable writes need.
    """

    def __init__(self, *, is_durable: bool = False) -> None:
        (self.port,) = free_ports(1)
        self._folder = Path(tempfile.mkdtemp(prefix="refold-postgres-"))
        self._process = Supervised("PostgreSQL", self._folder / "server.log", remove=self._folder)
        self._data = self._folder / "data"
        if os.getuid() == 0:
            shutil.chown(self._folder, _USER)
        command = [*_as_user(), str(binaries() / "initdb"), "-D", str(self._data), "-U", "admin", "--auth=trust", "-N",
                   "-E", "UTF8", "--locale=C"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self._folder)
        if done.returncode:
            raise ServerFailed(f"initdb failed: {done.stderr}")
        settings = "".join(f"{name} = '{value}'\n" for name, value in {**_SETTINGS, **_DURABLE[is_durable]}.items())
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"{settings}port = {self.port}\nunix_socket_directories = '{self._folder}'\n")

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "admin") -> str:
        """Return the URL of another database, or for another user."""
        return f"postgresql://{user}@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        """Start the server; returns when it serves. After a kill its children may hold its shared memory for a
        moment.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            command = [*_as_user(), str(binaries() / "postgres"), "-D", str(self._data)]
            self._process.launch(command, folder=self._folder)
            try:
                self._process.await_ready(self._serves, _READY_S)
            except ServerFailed:
                if attempt == _ATTEMPTS:
                    raise
                continue
            return

    def kill(self) -> None:
        """Send SIGKILL. Returns when it is gone."""
        self._process.kill()

    def restart(self) -> None:
        """Send SIGKILL, and start it again."""
        self.kill()
        self.start()

    def close(self) -> None:
        self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serves(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError):
            psycopg.connect(self.url, connect_timeout=5).close()
            return True
        return False


def _as_user() -> list[str]:
    if os.getuid() != 0:
        return []
    return ["setpriv", f"--reuid={_USER}", "--regid=nogroup", "--clear-groups", "--"]


def started(*, is_durable: bool = False) -> Postgres:
    """Return a new server."""
    server = Postgres(is_durable=is_durable)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server
