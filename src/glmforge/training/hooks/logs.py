"""Log messages of each rank in a file of the run, of bounded size; see `observe.logs`.

Messages go on to stderr as before. A disk that is full, or a file that cannot be written, never stops a run: it is said
once on stderr, and the file misses some lines.
"""

import json
import logging
import sys
import time
from logging.handlers import RotatingFileHandler

from glmforge.config.observe import LogsConfig
from glmforge.observe.run import RunDirectory
from glmforge.training.order import Priority
from glmforge.training.trainer import Hook, Trainer


class LogsHook(Hook):
    """Writes `<run>/logs/rank-N.log` while the run trains."""

    name = "logs"
    priority = Priority.GUARD

    def __init__(self, directory: RunDirectory, config: LogsConfig) -> None:
        self.directory, self.config = directory.logs, config
        self._handler: _RankFile | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        rank = trainer.world.rank
        if not (self.config.per_rank_files or trainer.world.is_main):
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            handler = _RankFile(
                self.directory / f"rank-{rank:05d}.log",
                maxBytes=self.config.max_bytes,
                backupCount=max(self.config.keep, 1),  # 0 would never rotate
                encoding="utf-8",
                errors="backslashreplace",
            )
        except OSError as error:
            logging.getLogger(__name__).warning(
                "observe.logs: %s cannot be written (%s)", self.directory, error.strerror
            )
            return
        handler.setLevel(self.config.level.upper())
        handler.setFormatter(_Json(rank) if self.config.format == "json" else _Text(rank))
        self._handler = handler
        logging.getLogger("glmforge").addHandler(handler)

    def close(self) -> None:
        if self._handler is not None:
            logging.getLogger("glmforge").removeHandler(self._handler)
            self._handler.close()
            self._handler = None


class _RankFile(RotatingFileHandler):
    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._failed:
            print(f"glmforge: {self.baseFilename} cannot be written ({sys.exc_info()[1]})", file=sys.stderr)
        self._failed = True


class _Text(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self, rank: int) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ rank {rank} %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )


class _Json(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self, rank: int) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S")
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}Z",
            "rank": self._rank,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
