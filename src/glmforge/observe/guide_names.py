"""The names that widespread dashboards for training use, made of our own metrics (`observe.prometheus.guide_names`).

`nccl_*` are about the last step that was measured (`observe.communication_every`), along one axis of the layout, in
GB/s (1e9 bytes) as nccl-tests prints them: bytes of a call over its time, and for `busbw` times what the collective
sends per byte, so that it can be compared with the link. The time includes the wait for late ranks, so both are lower
bounds. `nccl_allreduce_time_ms` is that of gradients between copies of the model.
"""

from collections.abc import Iterator, Mapping

from glmforge.config.layout import Layout

Values = Mapping[str, Mapping[tuple[str, ...], float]]
"""By name and labels."""

Family = tuple[str, str, str, tuple[str, ...], Mapping[tuple[str, ...], float]]
"""Name, type, help, labels, values."""

_SAME = (
    ("training_loss", "gauge", "loss", 1.0),
    ("training_learning_rate", "gauge", "lr", 1.0),
    ("training_tokens_per_second", "gauge", "tokens_per_second", 1.0),
    ("training_steps_total", "counter", "step", 1.0),
    ("expert_balance_cv", "gauge", "load_cv_mean", 1.0),
    ("nccl_allreduce_time_ms", "gauge", "comm_seconds_dp_replicate", 1e3),
)
_SENT = {"dp_replicate": 2.0, "tp": 2.0, "fsdp": 1.0, "efsdp": 1.0, "ep": 1.0}
"""Per byte of a call and over n ranks, times (n - 1) / n: 2 for an all-reduce, else 1. Not known of other axes."""


def guide_values(values: Values, layout: Layout) -> Iterator[Family]:
    """The metrics whose parts are known."""
    for name, type_, ours, factor in _SAME:
        if ours in values:
            text = f"{ours} of glmforge" if factor == 1 else f"{factor:g} times {ours} of glmforge"
            yield name, type_, text, (), {labels: factor * value for labels, value in values[ours].items()}
    bandwidth: dict[tuple[str, ...], float] = {}
    bus: dict[tuple[str, ...], float] = {}
    for name, found in values.items():
        axis = name.removeprefix("comm_seconds_")
        seconds, num_bytes = found.get((), 0.0), values.get(f"comm_bytes_{axis}", {}).get((), 0.0)
        if axis == name or not seconds > 0:
            continue
        bandwidth[(axis,)] = num_bytes / seconds / 1e9
        if axis in _SENT:
            size = layout.size(axis)
            bus[(axis,)] = bandwidth[(axis,)] * _SENT[axis] * (size - 1) / size
    if bandwidth:
        yield (
            "nccl_bandwidth_gbps",
            "gauge",
            "bytes of an axis over the time of its collectives, GB/s",
            ("axis",),
            bandwidth,
        )
    if bus:
        yield "nccl_busbw_gbps", "gauge", "the same as bus bandwidth of nccl-tests, GB/s", ("axis",), bus
