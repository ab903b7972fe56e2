"""A real Prometheus and a real Alertmanager on this machine, and the webhook that alerts reach."""

import json
import os
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from glmforge_ops.monitor.rule_files import RULE_FILES, alertmanager_text, rule_text
from helpers.distributed import free_port

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_DURATION = re.compile(r"(?<=\[)\d+[mhd](?=\])|(?<=offset )\d+[mhd]|(?<=for: )\d+[mhd]")


def faster(rules: str, factor: int) -> str:
    """The rules with all windows, offsets and `for` divided by `factor`; thresholds stay."""
    units = {"m": 60, "h": 3600, "d": 86400}

    def shorter(found: re.Match[str]) -> str:
        return f"{int(found[0][:-1]) * units[found[0][-1]] * 1000 // factor}ms"

    return _DURATION.sub(shorter, rules).replace("24 * 3600", f"24 * 3600 / {factor}")


@contextmanager
def answering(answer: Callable[[str, bytes], tuple[int, bytes]]) -> Iterator[int]:
    """A server on 127.0.0.1; `answer` takes path and body. Gives the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, text = answer(self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Webhook:
    """What Alertmanager has sent: labels of an alert, whether it fires or is resolved, and when it came."""

    received: list[tuple[float, str, dict[str, str]]] = field(default_factory=list)
    _came: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        with self._came:
            now = time.monotonic()
            self.received += [(now, alert["status"], alert["labels"]) for alert in json.loads(body)["alerts"]]
            self._came.notify_all()
        return 200, b""

    def first(self, status: str, **labels: str) -> float | None:
        """When the first alert with the labels came."""
        found = (at for at, of, all_ in self.received if of == status and labels.items() <= all_.items())
        return next(found, None)

    def wait(self, status: str, timeout: float = 60.0, **labels: str) -> bool:
        with self._came:
            return self._came.wait_for(lambda: self.first(status, **labels) is not None, timeout)


@dataclass(frozen=True)
class Stack:
    """Both servers. `targets` is the file of file_sd; `processes` by name."""

    directory: Path
    prometheus: str
    alertmanager: str
    webhook: Webhook
    processes: dict[str, subprocess.Popen[bytes]]

    @property
    def targets(self) -> Path:
        return self.directory / "targets.json"

    def set_targets(self, targets: list[dict[str, Any]]) -> None:
        beside = self.targets.with_suffix(".part")
        beside.write_text(json.dumps(targets))
        beside.replace(self.targets)

    def query(self, expression: str) -> list[dict[str, Any]]:
        return fetch(f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")["data"][
            "result"
        ]  # type: ignore[no-any-return]


def fetch(url: str, data: bytes | None = None) -> dict[str, Any]:
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with _OPENER.open(request, timeout=30) as reply:
        return json.loads(reply.read() or b"{}")  # type: ignore[no-any-return]


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            _OPENER.open(f"{url}/-/ready", timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, f"{url} ended with status {process.returncode}"
            time.sleep(0.05)
    raise AssertionError(f"{url} is not ready after 30 s")


@contextmanager
def stack(directory: Path, *, factor: int = 1, interval: str = "1s", rules: bool = True) -> Iterator[Stack]:
    """Prometheus with our rules, `factor` times as fast, and Alertmanager with our configuration, as fast too."""
    hook = Webhook()
    with answering(hook.answer) as port:
        prometheus, alertmanager = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        for name in RULE_FILES if rules else ():
            (directory / name).write_text(faster(rule_text(name), factor))
        (directory / "prometheus.yml").write_text(yaml.safe_dump(_prometheus(interval, alertmanager, rules)))
        (directory / "alertmanager.yml").write_text(_waits(alertmanager_text(f"http://127.0.0.1:{port}/"), factor))
        (directory / "targets.json").write_text("[]")
        commands = {
            "prometheus": [
                *("prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"),
                *(f"--web.listen-address={prometheus.removeprefix('http://')}", "--log.level=warn"),
                f"--query.lookback-delta={300_000 // factor}ms",
            ],
            "alertmanager": [
                *("prometheus-alertmanager", f"--config.file={directory}/alertmanager.yml"),
                *(f"--storage.path={directory}/am", "--cluster.listen-address=", "--log.level=warn"),
                f"--web.listen-address={alertmanager.removeprefix('http://')}",
            ],
        }
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name, command in commands.items():
                with (directory / f"{name}.log").open("wb") as log:
                    processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            wait_ready(prometheus, processes["prometheus"])
            wait_ready(alertmanager, processes["alertmanager"])
            yield Stack(directory, prometheus, alertmanager, hook, processes)
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.wait(30)


def _prometheus(interval: str, alertmanager: str, rules: bool) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": list(RULE_FILES) if rules else [],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [alertmanager.removeprefix("http://")]}]}],
        },
        "scrape_configs": [
            {
                "job_name": "glmforge",
                "honor_labels": True,
                "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": interval}],
            }
        ],
    }


def _waits(text: str, factor: int) -> str:
    content = yaml.safe_load(text)
    content["route"] |= {"group_wait": f"{30_000 // factor}ms", "group_interval": f"{300_000 // factor}ms"}
    return yaml.safe_dump(content)
