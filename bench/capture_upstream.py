"""A model provider for the benchmark: a minimal server that answers with a stream, at once or paced.

python capture_upstream.py prints its URL. POST /paced/... sends an event every PACE_S, each with its time of sending in
nanoseconds; every other POST sends EVENTS events at once.
"""

from __future__ import annotations

import asyncio
import time

EVENTS = 8
PACED_EVENTS = 20
PACE_S = 0.01
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def piece(data: bytes) -> bytes:
    """Return a chunk of HTTP/1.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            names = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
            length = next((int(value) for name, value in names.items() if name.lower() == b"content-length"), None)
            if length is None:
                while await reader.readuntil(b"\r\n") != b"0\r\n":
                    await reader.readuntil(b"\r\n")
                await reader.readuntil(b"\r\n")
            else:
                await reader.readexactly(length)
            if b" /paced" in head.split(b"\r\n")[0]:
                writer.write(_HEAD)
                for _ in range(PACED_EVENTS):
                    await asyncio.sleep(PACE_S)
                    writer.write(piece(b"data: %d\n\n" % time.monotonic_ns()))
                writer.write(b"0\r\n\r\n")
            else:
                event = piece(b'data: {"choices": [{"index": 0, "delta": {"content": "words "}}]}\n\n')
                writer.write(_HEAD + event * EVENTS + piece(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 22)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
