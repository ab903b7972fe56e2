"""A run's records under the names that other tools and guides use: three JSONL files, made from those of the run.

`train_log.jsonl` has a line per record of training, `eval_log.jsonl` per evaluation and held-out source,
`expert_usage.jsonl` per layer and expert in each of the few records that have the loads of all experts. Nothing is
computed but an epoch, a perplexity and a layer's number. What a run did not record is absent.
"""

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from glmforge.observe.metrics import Record
from glmforge.observe.record_files import encode_line
from glmforge.observe.run import RunLog, write_text

TRAIN_FIELDS: Mapping[str, str] = {
    "step": "step",
    "epoch": "",
    "loss": "loss",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "tokens_per_second": "tokens_per_second",
    "seconds_per_step": "step_seconds",
    "tokens": "tokens",
    "samples": "samples",
}
"""Field -> metric; of `epoch` see `_epoch`."""

EVAL_FIELDS: Mapping[str, str] = {
    "step": "step",
    "epoch": "",
    "source": "source",
    "eval_loss": "nll",
    "perplexity": "",
    "accuracy": "accuracy",
    "bits_per_byte": "bits_per_byte",
    "num_tokens": "num_tokens",
}
"""Field -> metric; `perplexity` is exp(nll)."""


def export_logs(run: RunLog, directory: Path) -> list[Path]:
    """Write the three files into `directory`, in the place of earlier ones; returns those that have lines.

    Raises `RunFileError` if they cannot be written.
    """
    files: dict[str, Iterable[Record]] = {
        "train_log.jsonl": _train_lines(run),
        "eval_log.jsonl": _eval_lines(run),
        "expert_usage.jsonl": _expert_lines(run),
    }
    written = []
    for name, records in files.items():
        text = b"".join(map(encode_line, records)).decode("ascii")
        if text:
            write_text(directory / name, text)
            written.append(directory / name)
    return written


def _train_lines(run: RunLog) -> Iterator[Record]:
    for record in run.metrics:
        yield _renamed(TRAIN_FIELDS, record, {"epoch": _epoch(record)})


def _eval_lines(run: RunLog) -> Iterator[Record]:
    with_epoch = [record for record in run.metrics if _epoch(record) is not None]
    steps = [record["step"] for record in with_epoch]
    for record in run.evaluations:
        if "nll" not in record:
            continue
        before = bisect.bisect_right(steps, record["step"])
        epoch = _epoch(with_epoch[before - 1]) if before else None
        yield _renamed(EVAL_FIELDS, record, {"epoch": epoch, "perplexity": _perplexity(record["nll"])})


def _expert_lines(run: RunLog) -> Iterator[Record]:
    """A router's number becomes that of its layer; those of MTP layers follow the trunk's."""
    first = run.config.get("model", {}).get("first_k_dense_replace", 0)
    for record in run.metrics:
        for row, shares in enumerate(record.get("expert_load", [])):
            for expert, share in enumerate(shares):
                yield {"step": record["step"], "layer": first + row, "expert": expert, "share": share}


def _renamed(fields: Mapping[str, str], record: Record, computed: Mapping[str, float | None]) -> Record:
    values = {field: computed[field] if field in computed else record.get(metric) for field, metric in fields.items()}
    return {field: value for field, value in values.items() if value is not None}


def _epoch(record: Record) -> float | None:
    """How often all training data together were passed through: label tokens read over those of one pass."""
    tokens, epochs = record.get("source_tokens", {}), record.get("source_epochs", {})
    passed = [(tokens[name], tokens[name] / epochs[name]) for name in tokens if epochs.get(name)]
    return sum(read for read, _ in passed) / sum(whole for _, whole in passed) if passed else None


def _perplexity(nll: float) -> float:
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf
