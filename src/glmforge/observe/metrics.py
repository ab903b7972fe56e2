"""The metrics of every run, in one table: name, unit, kind, labels and meaning of each number.

A record is a JSON-able dictionary: of numbers and text, of lists with one number per layer, of dictionaries with one
number per source. Training writes one per logging step, evaluation one per source; the sinks, the progress bar, the
HTML report and the docs all take their names from the table (`glmforge.observe.metric_table`). What is not known is
absent: there is no MFU on a device whose peak is unknown and no `device_memory_bytes` on a CPU. What one rank
alone can tell (memory, communication) is reported by the rank that writes the record.

Labels of lists: `router` counts MoE layers, then MTP layers; `layer` counts decoder layers, then MTP layers.
"""

from collections.abc import Mapping
from typing import Any

from glmforge.observe.metric_table import LABEL, SUM, TEXT, Metric, MetricTable

Record = dict[str, Any]

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

COMMUNICATION_AXES = tuple(_COMMUNICATION)

_ROWS = (
    Metric("step", "steps", "run", "optimizer steps done since the run began, this one included"),
    Metric("phase", "text", "run", "name of the training phase", kind=TEXT),
    Metric("tokens", "tokens", "run", "tokens consumed since the run began, over all ranks"),
    Metric("samples", "samples", "run", "samples consumed since the run began, over all ranks"),
    Metric("world_size", "ranks", "run", "number of ranks that trained this step"),
    Metric("batch_size", "sequences", "run", "sequences in the step's global batch"),
    Metric("seq_len", "tokens", "run", "tokens of each of them"),
    Metric(
        "trained_tokens",
        "tokens",
        "run",
        "tokens of the step that have a label; the others, such as what users say in conversations, are only read",
    ),
    Metric("rope_theta", "1", "run", "base of the rotary position embedding"),
    Metric("skipped_samples", "samples", "run", "samples left out since the run began, for loss spikes"),
    Metric("rollbacks", "1", "run", "how often the run has rolled back to before a loss spike"),
    Metric(
        "nonfinite_steps_total",
        "steps",
        "run",
        "steps not taken since the run began, for a loss or gradient that is not finite",
    ),
    Metric("loss", "nats/token", "loss", "mean next-token cross-entropy of the step's global batch"),
    Metric("loss_mtp", "nats/token", "loss", "mean cross-entropy of multi-token prediction, before its weight"),
    Metric("loss_aux", "1", "loss", "sequence-level balance loss before its weight; 1 is perfect balance"),
    Metric(
        "extra_losses",
        "1",
        "loss",
        "mean of each loss term of the models that are trained besides the run's own, such as a critic",
        labels=("model", "term"),
    ),
    Metric(
        "source_tokens",
        "tokens",
        "sources",
        "label tokens of each source since the run began; a source that has given none is absent",
        labels=("source",),
    ),
    Metric(
        "source_epochs",
        "epochs",
        "sources",
        "how often the run has gone through each source, samples that were left out included",
        labels=("source",),
    ),
    Metric(
        "source_loss",
        "nats/token",
        "sources",
        "mean next-token cross-entropy of each source over the steps taken since the last record",
        labels=("source",),
    ),
    Metric("lr", "1", "optim", "learning rate used by the step"),
    Metric("grad_norm", "1", "optim", "L2 norm of the whole gradient before clipping"),
    Metric(
        "extra_grad_norms",
        "1",
        "optim",
        "the same of each model that is trained besides the run's own",
        labels=("model",),
    ),
    Metric(
        "layer_grad_norms",
        "1",
        "optim",
        "L2 norm of each layer's gradient before clipping, MTP layers last; embedding, final norm and head are in none",
        labels=("layer",),
    ),
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
    Metric(
        "straggler_ratio",
        "1",
        "speed",
        "own time of the slowest rank, without waiting for others, over the ranks' median, in the last compared step",
    ),
    Metric("slowest_rank", "rank", "speed", "the slowest rank"),
    *(
        Metric(f"comm_seconds_{axis}", "s", "communication", f"time under way in the last measured step: {what}")
        for axis, what in _COMMUNICATION.items()
    ),
    *(
        Metric(f"comm_bytes_{axis}", "bytes", "communication", f"size of the buffers of that step: {what}")
        for axis, what in _COMMUNICATION.items()
    ),
    Metric(
        "checkpoint_seconds_blocked",
        "s",
        "checkpoint",
        "time training waited for saves since the last record",
        kind=SUM,
    ),
    Metric(
        "checkpoint_seconds_total",
        "s",
        "checkpoint",
        "from asking for a save until it was on the disk, checked and in place; sum of those that ended",
        kind=SUM,
    ),
    Metric("checkpoint_bytes", "bytes", "checkpoint", "size of these checkpoints, all ranks", kind=SUM),
    Metric("checkpoint_bytes_per_second", "bytes/s", "checkpoint", "checkpoint_bytes over checkpoint_seconds_total"),
    Metric("rss_bytes", "bytes", "memory", "resident memory of the rank that writes the record"),
    Metric("device_memory_bytes", "bytes", "memory", "peak accelerator memory allocated by that rank"),
    Metric(
        "goodput",
        "fraction",
        "job",
        "useful time over allocated time of the job's nodes, until this attempt of it; in its first record",
    ),
    Metric(
        "allocated_node_seconds", "s", "job", "time that nodes were allocated to the job until then, over all nodes"
    ),
    Metric("lost_node_seconds", "s", "job", "time lost, by cause", labels=("cause",)),
    Metric("queue_seconds", "s", "job", "time that the job has waited for nodes until then"),
    Metric("attempts_before", "1", "job", "attempts of the job before this one"),
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
    Metric("dead_experts", "experts", "balance", "experts without tokens in the step, summed over layers"),
    Metric(
        "dropped_fraction",
        "fraction",
        "balance",
        "routed rows dropped for lack of capacity; only with a capacity factor",
    ),
    Metric(
        "bias_spread_mean", "1", "balance", "a layer's largest correction bias minus its smallest; mean over layers"
    ),
    Metric("bias_spread_max", "1", "balance", "the same in the layer where it is largest"),
    Metric(
        "bias_drift_max",
        "1",
        "balance",
        "largest change of a correction bias since the last record with it, or since the run was resumed",
    ),
    Metric(
        "layer_max_violation",
        "1",
        "layers",
        "of each layer: the busiest expert's load over the mean, minus 1",
        labels=("router",),
    ),
    Metric(
        "layer_load_cv",
        "1",
        "layers",
        "of each layer: standard deviation of expert loads over their mean",
        labels=("router",),
    ),
    Metric(
        "layer_load_entropy",
        "fraction",
        "layers",
        "of each layer: entropy of expert loads over log E",
        labels=("router",),
    ),
    Metric(
        "layer_dead_experts",
        "experts",
        "layers",
        "of each layer: experts without tokens in the step",
        labels=("router",),
    ),
    Metric(
        "layer_dropped_fraction",
        "fraction",
        "layers",
        "of each layer: routed rows dropped for lack of capacity; only with a capacity factor",
        labels=("router",),
    ),
    Metric(
        "layer_bias_spread",
        "1",
        "layers",
        "of each layer: largest correction bias minus the smallest",
        labels=("router",),
    ),
    Metric(
        "layer_bias_drift",
        "1",
        "layers",
        "of each layer: largest change of a bias; see bias_drift_max",
        labels=("router",),
    ),
    Metric(
        "expert_load",
        "fraction",
        "balance",
        "share of a layer's routed rows per expert; rows sum to 1",
        labels=("router", "expert"),
    ),
    Metric(
        "source", "text", "evaluation", "name of the held-out data, also that a sample's prompt is from", kind=LABEL
    ),
    Metric("bits_per_byte", "bits/byte", "evaluation", "held-out cross-entropy per byte of UTF-8 text"),
    Metric(
        "bits_per_byte_at_start",
        "bits/byte",
        "evaluation",
        "the same for the initial weights; only with init_from",
    ),
    Metric(
        "bits_per_byte_change",
        "bits/byte",
        "evaluation",
        "bits_per_byte minus that; above 0, on text like the initial weights' training data, means forgetting",
    ),
    Metric("nll", "nats/token", "evaluation", "held-out cross-entropy per token"),
    Metric("accuracy", "fraction", "evaluation", "accuracy of the most likely token"),
    Metric("num_tokens", "tokens", "evaluation", "tokens the evaluation predicted"),
    Metric("num_bytes", "bytes", "evaluation", "bytes of text these tokens stand for"),
    Metric("mtp_acceptance", "fraction", "evaluation", "how often the MTP head's greedy token is the trunk's"),
    Metric(
        "mtp_acceptance_by_depth", "fraction", "evaluation", "the same of each MTP depth, if several", labels=("depth",)
    ),
    Metric(
        "num_answers",
        "1",
        "evaluation",
        "answers to held-out prompts of the source; only with observe.samples.held_out",
    ),
    Metric("stopped", "fraction", "evaluation", "how many of them ended before max_new_tokens"),
    Metric(
        "well_formed",
        "fraction",
        "evaluation",
        "how many are in GLM's format: reasoning, answer and tool calls closed and in order, no control tokens",
    ),
    Metric(
        "needle_task",
        "text",
        "needles",
        "task: one of glmforge.data.needles.questions",
        kind=LABEL,
    ),
    Metric("needle_length", "tokens", "needles", "longest that the tests may be", kind=LABEL),
    Metric("needle_depth", "fraction", "needles", "depth of the needle; 0 is the beginning of the text", kind=LABEL),
    Metric("needle_accuracy", "fraction", "needles", "correct answers"),
    Metric("needle_nll", "nats/token", "needles", "cross-entropy of the answers' tokens, where they are scored"),
    Metric("needle_answers", "1", "needles", "how many answers were asked for"),
    Metric("needle_method", "text", "needles", "scored or generated; see observe.needles.answers", kind=TEXT),
    Metric("needle_seconds", "s", "needles", "time for all tests of the evaluation, all ranks together"),
    Metric("benchmark", "text", "benchmarks", "name of the benchmark; see observe.benchmarks", kind=LABEL),
    Metric("benchmark_score", "fraction", "benchmarks", "mean over the items; answers that were cut count as they are"),
    Metric("benchmark_low", "fraction", "benchmarks", "lower end of the score's interval at 95 %"),
    Metric("benchmark_high", "fraction", "benchmarks", "upper end of it"),
    Metric("benchmark_finished_score", "fraction", "benchmarks", "mean over the answers that were not cut"),
    Metric("benchmark_cut_share", "fraction", "benchmarks", "answers that reached max_new_tokens"),
    Metric("benchmark_items", "1", "benchmarks", "number of items"),
    Metric("benchmark_seconds", "s", "benchmarks", "time for the benchmark, all ranks together"),
    Metric("prompt", "text", "samples", "what a text begins with", kind=TEXT),
    Metric("sample", "1", "samples", "number of the text among those to its prompt"),
    Metric("completion", "text", "samples", "completion", kind=TEXT),
    Metric("reference", "text", "samples", "reference answer of the held-out conversation", kind=TEXT),
    Metric(
        "malformed",
        "text",
        "samples",
        "format error of an answer to a held-out prompt, if any",
        kind=TEXT,
    ),
    Metric("finished", "text", "samples", "finish reason: stop or length", kind=TEXT),
    Metric("new_tokens", "tokens", "samples", "tokens of the completion"),
    Metric("sampling_seconds", "s", "samples", "time for all samples of the evaluation, all ranks together"),
    Metric("sampling_cache_bytes", "bytes", "samples", "keys and values that a rank had room for meanwhile"),
    Metric("sampling_weight_bytes", "bytes", "samples", "gathered or cast weights that the rank that writes kept"),
    Metric("sampling_regathered_bytes", "bytes", "samples", "weights that it gathered or cast in every step"),
)

METRICS = MetricTable(_ROWS)
"""Of every run; what objectives, hooks and recipes bring comes on top."""


def make_record(**values: object) -> Record:
    """`MetricTable.record` for the metrics of every run."""
    return METRICS.record(values)


def metrics_markdown(table: Mapping[str, Metric]) -> str:
    """A table as Markdown, for the docs."""
    rows = [
        f"| `{m.name}` | {m.unit} | {m.kind} | {', '.join(m.labels)} | `{m.tag}` | {m.meaning} |"
        for m in table.values()
    ]
    header = ["| name | unit | kind | labels | TensorBoard tag | meaning |", "|---|---|---|---|---|---|"]
    return "\n".join([*header, *rows, ""])
