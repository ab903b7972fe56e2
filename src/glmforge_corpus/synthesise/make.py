"""A directory of verified problems: documents, conversations and a report, from wherever a killed run stands.

<directory>/
  documents/00000.parquet ...   rendered conversations; each row's metadata is its record
  messages/00000.jsonl ...      the records: messages, tools, question, answer, verifier
  report.json                   how many of what
  quarantine.jsonl              problems that the checker refused; there should be none
  .work/                        finished tasks
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from glmforge.data.files import write_whole
from glmforge_corpus.pipeline.run import StepProgress, publish_files, run_stages
from glmforge_corpus.pipeline.stage import DOCUMENTS, QUARANTINE, REPORT
from glmforge_corpus.pipeline.statistics import Statistics, dump_json
from glmforge_corpus.synthesise.stage import MESSAGES, Problems


def make_problems(
    options: Problems,
    directory: Path,
    *,
    seed: int = 0,
    workers: int = 1,
    redo: bool = False,
    progress: Callable[[StepProgress], None] | None = None,
) -> dict[str, Any]:
    """Make what is not there yet, and publish it. Run again, it does nothing new.

    Args:
        redo: throw away problems made with other options, instead of refusing.

    Returns:
        The report: `wanted`, `written`, `made`, `verified`, `duplicates`, `contaminated`, `templates`, ...

    Raises:
        DataError: the directory holds problems made with other options, or an evaluation set cannot be read.
    """
    shards, (statistics,) = run_stages([options], directory, seed=seed, workers=workers, redo=redo, progress=progress)
    tasks = [shard.parent for shard in shards]
    publish_files([(task / DOCUMENTS, f"{task.name}.parquet") for task in tasks], directory / "documents")
    publish_files([(task / MESSAGES, f"{task.name}.jsonl") for task in tasks], directory / "messages")
    candidates = tasks[0].parent.with_name("candidates")
    refused = [path.read_bytes() for path in sorted(candidates.glob(f"*/{QUARANTINE}"))]
    write_whole(directory / "quarantine.jsonl", b"".join(refused))
    report = _report(options, seed, statistics, tasks)
    write_whole(directory / "report.json", dump_json(report))
    return report


def _report(options: Problems, seed: int, statistics: Statistics, tasks: Sequence[Path]) -> dict[str, Any]:
    templates = Counter[str]()
    for task in tasks:
        templates.update(orjson.loads((task / REPORT).read_bytes())["templates"])
    counts, removed = statistics.counts, statistics.removed
    return {
        "options": options.model_dump(mode="json"),
        "seed": seed,
        "wanted": options.count,
        "written": statistics.written.documents,
        "made": counts["made"],
        "verified": counts["verified"],
        "not_verified": statistics.quarantined["not verified"],
        "duplicates": counts["duplicates"],
        "contaminated": removed["contaminated"].documents if "contaminated" in removed else 0,
        "contaminated_by": {name: n for name, n in statistics.failed.items() if name.startswith("contaminated")},
        "distinct_questions_without_numbers": counts["distinct questions without numbers"],
        "languages": {name: flow.documents for name, flow in statistics.languages.items()},
        "templates": dict(sorted(templates.items())),
        "cpu_seconds": round(statistics.seconds, 3),
    }
