"""Problems of reasoning-gym's families, with the entries that its scorers need; without solutions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from glmforge.data.files import write_whole
from glmforge.errors import DataError
from glmforge.verify.reasoning_gym import records
from glmforge_corpus.pipeline.statistics import dump_json

SOURCE = "reasoning-gym"


def make_reasoning_gym(
    families: Sequence[str], count: int, directory: Path, *, seed: int = 0, redo: bool = False
) -> dict[str, Any]:
    """Write `messages/00000.jsonl`, as many problems of each family (the first ones one more), and `report.json`.

    Returns:
        The report: `options`, `written`.

    Raises:
        DataError: no such family, or the directory holds something else and `redo` is not given.
        MissingPackageError: reasoning-gym is not installed.
    """
    options = {"source": SOURCE, "families": list(families), "count": count, "seed": seed}
    report, path = {"options": options, "written": count}, directory / "report.json"
    if path.exists() and not redo:
        if orjson.loads(path.read_bytes()).get("options") != options:
            raise DataError(f"{directory}: has problems made with other options; choose another directory, or --redo")
        return report
    sizes = [count // len(families) + (number < count % len(families)) for number in range(len(families))]
    lines = [
        orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        for family, size in zip(families, sizes, strict=True)
        for record in records(family, size, seed)
    ]
    (directory / "messages").mkdir(parents=True, exist_ok=True)
    write_whole(directory / "messages" / "00000.jsonl", b"".join(lines))
    write_whole(path, dump_json(report))
    return report
