"""What a finished run has recorded, as the series that its exporter would have given in a time of any length."""

from pathlib import Path

from glmforge.observe.metric_table import SUM
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.all_metrics import all_metrics

_RUN = 'run="r",stage="pretrain",rank="0"'
EVERY_S = 15


def replayed(run: Path, hours: float = 2.0) -> dict[str, list[float | None]]:
    """Each record is held for as long as an even share of the time, scraped every 15 s."""
    records, table = read_jsonl(run / "metrics.jsonl"), all_metrics()
    saves = {one["step"] for one in read_jsonl(run / "events.jsonl") if one["event"] == "saved"}
    num = round(hours * 3600 / EVERY_S) + 1
    at = [min(n * len(records) // num, len(records) - 1) for n in range(num)]
    first = [next(n for n in range(num) if at[n] == one) * EVERY_S if one in at else 0 for one in range(len(records))]
    series: dict[str, list[float | None]] = {
        f"glmforge_run_ended{{{_RUN}}}": [0.0] * num,
        f'up{{job="glmforge",{_RUN}}}': [1.0] * num,
        f"glmforge_last_record_timestamp_seconds{{{_RUN}}}": [float(first[one]) for one in at],
    }
    saved, newest = [], None
    for one, record in enumerate(records):
        newest = float(first[one]) if any(_before(records, one) < step <= record["step"] for step in saves) else newest
        saved.append(newest)
    series[f"glmforge_last_checkpoint_timestamp_seconds{{{_RUN}}}"] = [saved[one] for one in at]
    sums: dict[str, float] = {}
    values: dict[str, list[float | None]] = {}
    for one, record in enumerate(records):
        for name, value in record.items():
            row, exported = table[name], table.exported(name)
            for labels, number in row.points(value) if exported else ():
                key = "".join(f',{label}="{of}"' for label, of in zip(row.labels, labels, strict=True))
                full = f"{exported.name}{{{_RUN}{key}}}"
                sums[full] = sums.get(full, 0.0) + number if row.kind is SUM else number
        for full, number in sums.items():
            values.setdefault(full, [None] * len(records))[one] = number
    return series | {full: [known[one] for one in at] for full, known in values.items()}


def _before(records: list[dict[str, int]], one: int) -> int:
    return records[one - 1]["step"] if one else 0
