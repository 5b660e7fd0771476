"""`python -m refold.testing.kafka`, `make kafka`: a Kafka in the foreground, to try refold on."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from refold.avro.errors import RefoldError
from refold.testing.kafka.cluster import Kafka, start_kafka
from refold.testing.kafka.jars import KAFKA_VERSION
from refold.testing.kafka.settings import ADMIN

_LOOK_S = 0.5
_UNUSABLE, _BROKER_ENDED = 2, 1


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--nodes", type=click.Choice(["1", "3"]), default="1", show_default=True, help="How many brokers.")
@click.option("--secure", is_flag=True, help="TLS, passwords (SCRAM-SHA-512) and access lists that deny by default.")
@click.option("--port", default=9092, show_default=True, help="The first port; 0 takes free ones.")
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="A folder to keep; without it nothing is kept."
)
def main(nodes: str, secure: bool, port: int, data: Path | None) -> None:
    """Run Apache Kafka on this machine, until Ctrl-C.

    It needs Java 17 or newer. The first time, Maven downloads Kafka from Maven Central into ~/.cache/refold. It listens
    on 127.0.0.1 only. When it is ready it prints its address, and a log URL for refold.
    \b
    make kafka                                    one broker on port 9092; its data is deleted at the end
    make kafka ARGS="--data .kafka"               keeps its data; start it again with the same arguments
    make kafka ARGS="--nodes 3 --port 19092"      three brokers: 19092 to 19094, their controllers after them
    make kafka ARGS="--secure"                    prints where the password and the certificate are

    Exit status: 0 ended by Ctrl-C or SIGTERM, 1 a broker ended by itself, 2 it could not be started.
    """
    with _ending():
        try:
            print("Starting Kafka; the first time it is fetched...", file=sys.stderr)
            kafka = start_kafka(int(nodes), secure=secure, port=port or None, data=data)
        except RefoldError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(_UNUSABLE)
        with kafka:
            print(_announcement(kafka, secure), flush=True)
            while all(map(kafka.is_running, kafka.nodes)):
                time.sleep(_LOOK_S)
            ended = [node for node in kafka.nodes if not kafka.is_running(node)]
            print("\n".join(kafka.tail(node) for node in ended), file=sys.stderr)
            print(f"error: node {', '.join(map(str, ended))} ended by itself", file=sys.stderr)
            sys.exit(_BROKER_ENDED)


@contextmanager
def _ending() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the block normally: everything is closed, and the exit status is 0."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print("Kafka ended.", file=sys.stderr)


def _announcement(kafka: Kafka, secure: bool) -> str:
    url = f"kafka://{kafka.bootstrap}/agents"
    kept = "kept" if kafka.is_kept else "removed at the end"
    lines = [
        f"Kafka {KAFKA_VERSION} serves, data in {kafka.folder} ({kept}).",
        f"  bootstrap   {kafka.bootstrap}",
        f"  log         {url}",
    ]
    if secure:
        config = kafka.folder / "client.conf"
        config.touch(mode=0o600)
        settings = kafka.client_config().items()
        config.write_text("".join(f"{name}={value}\n" for name, value in settings), encoding="utf-8")
        lines.append(f"  settings    {config} (user {ADMIN}, who may do everything)")
        lines.append(f"In another terminal: export REFOLD_LOG={url} REFOLD_KAFKA_CONFIG={config}")
    else:
        lines.append(f"In another terminal: export REFOLD_LOG={url}")
    return "\n".join([*lines, "Ctrl-C ends it."])


if __name__ == "__main__":
    main()
