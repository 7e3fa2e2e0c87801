#!/usr/bin/env python3
"""Serves /NUMBER/metrics of many simulated agents from one process.

usage: agents.py PORT DIR [SECONDS]

DIR has the metrics of variants, one file each with the samples of two hours. Every agent continues with the next sample
every SECONDS [default: 30], from a point of its own.
"""
import asyncio
import sys
import time
from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\ncontent-length: %d\r\n\r\n"
END = b"# EOF\n"
SECONDS = int(sys.argv[3]) if len(sys.argv) > 3 else 30


def load(directory):
    """Returns the samples of all variants."""
    return [[part + END for part in path.read_bytes().split(END)[:-1]] for path in sorted(Path(directory).iterdir())]


async def serve(reader, writer, variants):
    """Answers the requests of one connection."""
    try:
        while request := await reader.readuntil(b"\r\n\r\n"):
            number = int(request.split(b"/", 2)[1])
            samples = variants[number % len(variants)]
            body = samples[(int(time.time() / SECONDS) + number) % len(samples)]
            writer.write(HEAD % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, ValueError, IndexError):
        pass
    finally:
        writer.close()


async def main():
    variants = load(sys.argv[2])
    server = await asyncio.start_server(lambda reader, writer: serve(reader, writer, variants), "127.0.0.1", int(sys.argv[1]),
                                        backlog=1024)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


asyncio.run(main())
