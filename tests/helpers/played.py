"""The cases of `helpers.alert_cases` as exporters that a real Prometheus scrapes, a minute of them in a second."""

import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from helpers.alert_cases import Case, Series

FACTOR = 60
_OWN = re.compile(r'(?<=[{,])(run|uuid|UUID|hostname|Hostname|instance)="([^"]*)"')
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Played:
    """A case under labels of its own (`c12-r` instead of `r`), one target for all its series."""

    number: int
    case: Case
    mark: str
    series: dict[str, Series]

    @classmethod
    def of(cls, number: int, case: Case) -> "Played":
        mark = f"c{number:03d}"
        series = {_OWN.sub(rf'\1="{mark}-\2"', name): one for name, one in case.all_series().items()}
        return cls(number, case, mark, series)

    def up(self, minute: float) -> float | None:
        """None after the case's end, too."""
        if minute > self.case.until:
            return None
        return next((one(minute) for name, one in self.series.items() if name.startswith("up{")), 1)

    def labels(self) -> dict[str, str]:
        """Of the target."""
        name = next((name for name in self.series if name.startswith("up{")), next(iter(self.series)))
        return {key: value for key, value in _LABEL.findall(name) if key in ("job", "run", "stage", "rank", "instance")}

    def text(self, minute: float) -> str:
        """Seconds since minute 0 become times of day that are as long ago as they would be in full length."""
        lines = []
        for name, one in self.series.items():
            value = one(minute) if minute <= self.case.until else None
            if value is None or name.startswith("up{"):
                continue
            if "_timestamp_seconds" in name:
                value += time.time() - 60 * minute
            lines.append(f"{name} {value!r}\n")
        return "".join(lines)


class Player:
    """Answers scrapes of all cases at the minute that it is since `start`."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self.played = [Played.of(number, case) for number, case in enumerate(cases)]
        self._start: float | None = None
        self._lock = threading.Lock()

    def start(self, at_minute: float = 0.0) -> None:
        self._start = time.monotonic() - at_minute * 60 / FACTOR

    @property
    def minute(self) -> float:
        return 0.0 if self._start is None else (time.monotonic() - self._start) * FACTOR / 60

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """A target that is taken off the list answers without series until it is: Prometheus looks every 5 s only,
        5 minutes here."""
        one, minute = self.played[int(path.removeprefix("/"))], self.minute
        return (503, b"") if one.up(minute) == 0 else (200, one.text(minute).encode())

    def targets(self, port: int) -> list[dict[str, Any]]:
        """Those that exist in this minute."""
        minute = self.minute
        return [
            {
                "targets": [f"127.0.0.1:{port}"],
                "labels": {**one.labels(), "__metrics_path__": f"/{one.number}", "case": one.mark},
            }
            for one in self.played
            if one.up(minute) is not None
        ]
