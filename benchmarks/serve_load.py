"""A server under load: streams side by side, clients that vanish, wrong keys, prompts that are too long, broken bodies.

    python benchmarks/serve_load.py                  200 streams for two minutes; writes results/serve_load.json
    python benchmarks/serve_load.py --quick          20 streams for five seconds
    python benchmarks/serve_load.py --model runs/demo/export

Each client asks again and again until the time is over. What it does is chosen by chance: it reads its answer to the
end, closes the connection after some tokens, or sends something that has to be refused. Every answer has to be whole or
a proper error; the server's memory is read each half second. Server and clients share this machine's cores, so times
are those of a busy machine.
"""

import argparse
import asyncio
import json
import os
import random
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from record import write_result

KEY = secrets.token_hex(16)
_KINDS = {"whole": 10, "vanishes": 5, "too long": 1, "wrong key": 1, "broken": 1}
_EXPECTED = {"too long": 400, "wrong key": 401, "broken": 400}


@dataclass
class Load:
    """What the clients have seen.

    Attributes:
        outcomes: requests by kind and how they ended.
        wrong: what should not have been.
        first: seconds to the first token.
        memory: resident bytes of the server by seconds.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    num_tokens: int = 0

    def growth(self) -> float:
        """Memory in the last quarter against the second one, medians; 0 for flat."""
        used = [size for _, size in self.memory]
        quarter = len(used) // 4
        if not quarter:
            return 0.0
        return statistics.median(used[-quarter:]) / statistics.median(used[quarter : 2 * quarter]) - 1


class Client:
    """Asks one request after another, each over a connection of its own."""

    def __init__(self, port: int, model: str, load: Load, seed: int) -> None:
        self._port, self._model, self._load, self._source = port, model, load, random.Random(seed)

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            kind = self._source.choices([*_KINDS], weights=[*_KINDS.values()])[0]
            try:
                outcome = await asyncio.wait_for(self._ask(kind), 120)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
                outcome = "failed"
                self._load.wrong.append(f"{kind}: {type(error).__name__}: {error}"[:500])
            self._load.outcomes[f"{kind}: {outcome}"] += 1

    async def _ask(self, kind: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        try:
            writer.write(self._request(kind))
            began, last = time.monotonic(), self._source.randrange(1, 40)
            status, headers = await _head(reader)
            if kind in _EXPECTED or status != 200:
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                assert body["error"]["message"], "an error without a message"
                assert status in (_EXPECTED.get(kind, 429), 429), f"status {status}: {body}"
                assert status != 429 or "retry-after" in headers
                await asyncio.sleep(0.05 if status == 429 else 0)
                return str(status)
            return await self._read(reader, began, last if kind == "vanishes" else None)
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, began: float, last: int | None) -> str:
        """Read a stream to its end, or the `last` line of interest."""
        number, finished, failed = 0, False, False
        async for data in _events(reader):
            if data == "[DONE]":
                assert finished or failed, "the stream has ended without a reason"
                return "error event" if failed else "whole"
            chunk = json.loads(data)
            if "error" in chunk:
                failed = True
                continue
            number += 1
            if number == 1:
                self._load.first.append(time.monotonic() - began)
            self._load.num_tokens += 1
            finished = finished or chunk["choices"][0]["finish_reason"] in ("length", "stop")
            if number == last:
                return "left"
        raise AssertionError("the stream broke off")

    def _request(self, kind: str) -> bytes:
        words = " ".join(self._source.choices(["def", "return", "x", "class", "import"], k=self._source.randrange(60)))
        body: dict[str, Any] = {"model": self._model, "prompt": f"a {words}", "stream": True, "temperature": 0.8}
        body["max_tokens"] = self._source.randrange(1, 80)
        if kind == "too long":
            body["prompt"] = "word " * 60_000
        sent = json.dumps(body).encode()
        key = "wrong" if kind == "wrong key" else KEY
        sent = sent[:-5] if kind == "broken" else sent
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        return f"{head}Content-Length: {len(sent)}\r\nContent-Type: application/json\r\n\r\n".encode() + sent


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    return int(first.split()[1]), headers


async def _events(reader: asyncio.StreamReader) -> Any:
    """The data of each event, out of chunked lines."""
    async for line in reader:
        if line.startswith(b"data: "):
            yield line[6:].strip().decode()


def start(model: Path, log: Path, *options: str) -> tuple[subprocess.Popen[bytes], int]:
    """A server, and the port that it listens on."""
    command = [sys.executable, "-m", "glmforge", "serve", str(model), "--port", "0", *options]
    environment = os.environ | {"GLMFORGE_API_KEYS": KEY}
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    while (found := re.search(r"at http://127\.0\.0\.1:(\d+)", log.read_text(errors="replace"))) is None:
        if server.poll() is not None:
            raise SystemExit(f"the server has not started: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
    return server, int(found[1])


async def press(server: psutil.Process, port: int, model: str, streams: int, seconds: float) -> Load:
    """So many clients at a time, for so long."""
    load, until = Load(), time.monotonic() + seconds

    async def watch() -> None:
        began = time.monotonic()
        while time.monotonic() < until:
            load.memory.append((round(time.monotonic() - began, 1), server.memory_info().rss))
            await asyncio.sleep(0.5)

    await asyncio.gather(watch(), *(Client(port, model, load, seed).run(until) for seed in range(streams)))
    return load


def measure(model: Path, streams: int, seconds: float) -> dict[str, Any]:
    """Start a server, press it, end it; what was seen."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        server, port = start(model, log, "--cache-gib", "0.1", "--max-queued", str(streams))
        try:
            load = asyncio.run(press(psutil.Process(server.pid), port, model.name, streams, seconds))
            server.send_signal(signal.SIGTERM)
            status = server.wait(60)
        finally:
            server.kill()
        output = log.read_text(errors="replace")
    first = sorted(load.first) or [float("nan")]
    return {
        "streams": streams,
        "seconds": seconds,
        "model": model.name,
        "requests": sum(load.outcomes.values()),
        "outcomes": dict(sorted(load.outcomes.items())),
        "wrong": load.wrong[:20],
        "num_wrong": len(load.wrong),
        "tokens_per_second": round(load.num_tokens / seconds, 1),
        "first_token_seconds": {
            f"p{share}": round(first[int(share / 100 * (len(first) - 1))], 3) for share in (50, 95, 99)
        },
        "memory_growth": round(load.growth(), 4),
        "memory_mib": [[at, round(size / 2**20, 1)] for at, size in load.memory[:: max(1, len(load.memory) // 24)]],
        "exit_status": status,
        "failures_in_log": output.count("failed ("),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("runs/demo/export"))
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--quick", action="store_true", help="20 streams for five seconds; writes no result")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    streams, seconds = (20, 5.0) if options.quick else (options.streams, options.seconds)
    result = measure(options.model, streams, seconds)
    print(json.dumps(result, indent=1))
    if not options.quick:
        write_result("serve_load", result, code=["src/glmforge/deploy/serve", "src/glmforge/generate"], out=options.out)
    if result["num_wrong"] or result["exit_status"] or result["failures_in_log"] or result["memory_growth"] > 0.05:
        raise SystemExit("the server did something wrong, or its memory grew")


if __name__ == "__main__":
    main()
