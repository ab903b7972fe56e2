"""What a run reports, in one table: name, unit and meaning of every number; and the balance of the experts.

A record is a flat, JSON-able dictionary. Training writes one per logging step, evaluation one per source; the
sinks, the progress bar, the HTML report and the docs all take their names from `METRICS`, so that a number is
called the same everywhere and a misspelt one is an error rather than a second curve. What is not known is
absent: there is no MFU on a device whose peak is unknown and no `device_memory_bytes` on a CPU. What one rank
alone can tell (memory, communication) is told by the rank that writes the record.

Expert balance follows Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts"
(arXiv 2408.15664): MaxVio = (max load - mean load) / mean load per layer. Beside it stand the coefficient of
variation, which sees all experts and not just the busiest, and the entropy over log E, which sees collapse.

Shapes: L routers (MoE layers, then MTP layers), E experts.
"""

import difflib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Record = dict[str, Any]


class Metric(NamedTuple):
    """One row of the table."""

    name: str
    unit: str
    group: str
    meaning: str

    @property
    def tag(self) -> str:
        """The TensorBoard tag, e.g. `loss/loss_mtp`; groups become TensorBoard's sections."""
        return f"{self.group}/{self.name}"


# What `glmforge.parallel.communication` tells apart.
_COMMUNICATION = {
    "pp": "activations and their gradients between pipeline stages",
    "dp_replicate": "gradients between copies of the model",
    "fsdp": "dense parameters and their gradients between their shards",
    "efsdp": "experts' parameters and their gradients between their shards",
    "ep": "tokens between experts",
    "cp": "keys and values between parts of a sequence",
    "tp": "activations between parts of a matrix",
    "other": "all else, such as sums over all ranks",
}

_ROWS = (
    Metric("step", "steps", "run", "optimizer steps done since the run began, this one included"),
    Metric("phase", "text", "run", "name of the training phase"),
    Metric("tokens", "tokens", "run", "tokens consumed since the run began, over all ranks"),
    Metric("samples", "samples", "run", "samples consumed since the run began, over all ranks"),
    Metric("world_size", "ranks", "run", "number of ranks that trained this step"),
    Metric("loss", "nats/token", "loss", "mean next-token cross-entropy of the step's global batch"),
    Metric("loss_mtp", "nats/token", "loss", "mean cross-entropy of multi-token prediction, before its weight"),
    Metric("loss_aux", "1", "loss", "sequence-level balance loss before its weight; 1 is perfect balance"),
    Metric("lr", "1", "optim", "learning rate used by the step"),
    Metric("grad_norm", "1", "optim", "L2 norm of the whole gradient before clipping"),
    Metric("router_bias_rate", "1/step", "optim", "update rate of the routers' correction bias"),
    Metric(
        "tokens_per_second",
        "tokens/s",
        "speed",
        "tokens over training time, all ranks, since the last record",
    ),
    Metric(
        "step_seconds",
        "s",
        "speed",
        "training time per step since the last record, without evaluation and saves",
    ),
    Metric("data_seconds", "s", "speed", "time per step spent waiting for data, part of step_seconds"),
    Metric(
        "model_tflops_per_second",
        "TFLOP/s",
        "speed",
        "the model's own FLOPs (no recomputation) per second and rank, since the last record",
    ),
    Metric(
        "mfu",
        "fraction",
        "speed",
        "these FLOPs per second over the devices' dense bf16 peak; bf16 on known devices only",
    ),
    *(
        Metric(f"comm_seconds_{axis}", "s", "communication", f"time under way in the last measured step: {what}")
        for axis, what in _COMMUNICATION.items()
    ),
    *(
        Metric(f"comm_bytes_{axis}", "bytes", "communication", f"size of the buffers of that step: {what}")
        for axis, what in _COMMUNICATION.items()
    ),
    Metric("rss_bytes", "bytes", "memory", "resident memory of the rank that writes the record"),
    Metric("device_memory_bytes", "bytes", "memory", "peak accelerator memory allocated by that rank"),
    Metric(
        "max_violation_mean",
        "1",
        "balance",
        "busiest expert's load over the mean load, minus 1; mean over layers",
    ),
    Metric("max_violation_max", "1", "balance", "the same in the worst layer; 0 is perfect balance"),
    Metric("load_cv_mean", "1", "balance", "standard deviation of expert loads over their mean; mean over layers"),
    Metric("load_cv_max", "1", "balance", "the same in the worst layer"),
    Metric("load_entropy_mean", "fraction", "balance", "entropy of expert loads over log E; mean over layers"),
    Metric("load_entropy_min", "fraction", "balance", "the same in the worst layer; 1 is perfect balance"),
    Metric("dead_experts", "experts", "balance", "experts that received no token in the step, summed over layers"),
    Metric(
        "dropped_fraction",
        "fraction",
        "balance",
        "routed rows dropped for want of capacity; only with a capacity factor",
    ),
    Metric(
        "expert_load",
        "fraction [L, E]",
        "balance",
        "share of a layer's routed rows per expert; rows sum to 1",
    ),
    Metric("source", "text", "evaluation", "name of the held-out data"),
    Metric("bits_per_byte", "bits/byte", "evaluation", "held-out cross-entropy per byte of UTF-8 text"),
    Metric("nll", "nats/token", "evaluation", "held-out cross-entropy per token"),
    Metric("num_tokens", "tokens", "evaluation", "tokens the evaluation predicted"),
    Metric("num_bytes", "bytes", "evaluation", "bytes of text these tokens stand for"),
    Metric("mtp_acceptance", "fraction", "evaluation", "how often the MTP head's greedy token is the trunk's"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ROWS}


def make_record(**values: object) -> Record:
    """A record, in the table's order, of Python, numpy or torch values; `None` (not known) is left out.

    Reading a tensor waits for its device: call this on logging steps only.

    Raises:
        ValueError: a name that `METRICS` does not have.
        TypeError: a value that JSON cannot hold.
    """
    for name in values:
        if name not in METRICS:
            near = difflib.get_close_matches(name, METRICS, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"metric {name!r} is not in glmforge.observe.metrics.METRICS{hint}")
    return {name: _plain(name, values[name]) for name in METRICS if values.get(name) is not None}


def balance_metrics(counts_LE: ArrayLike) -> Record:
    """The balance metrics of one step.

    Args:
        counts_LE: rows routed to each expert of each layer, summed over ranks and micro-batches: a numpy
            array, nested list or CPU tensor.

    Returns:
        The scalars of the group `balance`; the large `expert_load` has its own function.

    Raises:
        ValueError: not two dimensions, or a layer that routed nothing.
    """
    load_LE = _load(counts_LE)
    num_experts = load_LE.shape[1]
    relative_LE = load_LE * num_experts
    violation_L = relative_LE.max(axis=1) - 1
    cv_L = relative_LE.std(axis=1)
    entropy_L = _entropy(load_LE) / np.log(num_experts) if num_experts > 1 else np.ones(len(load_LE))
    return make_record(
        max_violation_mean=violation_L.mean(),
        max_violation_max=violation_L.max(),
        load_cv_mean=cv_L.mean(),
        load_cv_max=cv_L.max(),
        load_entropy_mean=entropy_L.mean(),
        load_entropy_min=entropy_L.min(),
        dead_experts=(load_LE == 0).sum(),
    )


def expert_load(counts_LE: ArrayLike) -> list[list[float]]:
    """The metric `expert_load`: each expert's share of its layer's routed rows, rounded to 6 decimals."""
    loads: list[list[float]] = _load(counts_LE).round(6).tolist()
    return loads


def metrics_markdown() -> str:
    """The table as Markdown, for the docs."""
    rows = [f"| `{m.name}` | {m.unit} | `{m.tag}` | {m.meaning} |" for m in METRICS.values()]
    return "\n".join(["| name | unit | TensorBoard tag | meaning |", "|---|---|---|---|", *rows, ""])


def _load(counts_LE: ArrayLike) -> np.ndarray:
    counts = np.asarray(counts_LE, dtype=np.float64)
    if counts.ndim != 2:
        raise ValueError(f"expert counts have shape {counts.shape}, expected [layers, experts]")
    total_L1 = counts.sum(axis=1, keepdims=True)
    if not (total_L1 > 0).all():
        raise ValueError(f"layer {int(np.argmin(total_L1))} routed no token in this step: its balance is undefined")
    load_LE: np.ndarray = counts / total_L1
    return load_LE


def _entropy(load_LE: np.ndarray) -> np.ndarray:
    log_LE = np.log(load_LE, out=np.zeros_like(load_LE), where=load_LE > 0)  # 0 log 0 = 0
    entropy_L: np.ndarray = -(load_LE * log_LE).sum(axis=1)
    return entropy_L


def _plain(name: str, value: Any) -> bool | int | float | str | list[Any]:
    if isinstance(value, (bool, int, float, str, list)) and not isinstance(value, np.generic):
        return value
    if hasattr(value, "tolist"):  # numpy scalar or array, torch tensor; a 0-d one gives a Python number
        plain: bool | int | float | str | list[Any] = value.tolist()
        return plain
    raise TypeError(f"metric {name!r} has a value of type {type(value).__name__}: give a number, text or list")
