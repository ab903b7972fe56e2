"""How evenly a step loaded the experts, as metrics.

Expert balance follows Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts"
(arXiv 2408.15664): MaxVio = (max load - mean load) / mean load per layer. Beside it stand the coefficient of
variation, which sees all experts and not just the busiest, and the entropy over log E, which sees collapse.

Shapes: L routers (MoE layers, then MTP layers), E experts.
"""

import numpy as np
from numpy.typing import ArrayLike

from glmforge.observe.metrics import Record, make_record

_DIGITS = 4
"""Significant digits of numbers that come once per layer."""


def balance_metrics(counts_LE: ArrayLike, dropped_LE: ArrayLike | None = None, *, by_layer: bool = False) -> Record:
    """The balance metrics of one step.

    Args:
        counts_LE: rows routed to each expert of each layer, summed over ranks and micro-batches: a numpy
            array, nested list or CPU tensor.
        dropped_LE: those of them that were dropped, where a capacity limits the experts.
        by_layer: with the metrics `layer_*`.

    Returns:
        The metrics of the group `balance` that follow from the counts; the large `expert_load` has its own function.

    Raises:
        ValueError: not two dimensions, or a layer that routed nothing.
    """
    load_LE = _load(counts_LE)
    num_experts = load_LE.shape[1]
    relative_LE = load_LE * num_experts
    violation_L = relative_LE.max(axis=1) - 1
    cv_L = relative_LE.std(axis=1)
    entropy_L = _entropy(load_LE) / np.log(num_experts) if num_experts > 1 else np.ones(len(load_LE))
    dead_L = (load_LE == 0).sum(axis=1)
    record = make_record(
        max_violation_mean=violation_L.mean(),
        max_violation_max=violation_L.max(),
        load_cv_mean=cv_L.mean(),
        load_cv_max=cv_L.max(),
        load_entropy_mean=entropy_L.mean(),
        load_entropy_min=entropy_L.min(),
        dead_experts=dead_L.sum(),
    )
    if by_layer:
        record |= make_record(
            layer_max_violation=few_digits(violation_L),
            layer_load_cv=few_digits(cv_L),
            layer_load_entropy=few_digits(entropy_L),
            layer_dead_experts=dead_L,
        )
    return record if dropped_LE is None else record | _dropped(counts_LE, dropped_LE, by_layer)


def bias_metrics(spread_L: ArrayLike, drift_L: ArrayLike) -> Record:
    """The metrics of the correction biases: `spread_L` is a layer's largest bias minus its smallest, `drift_L` the
    most that one of its biases has moved."""
    spread_L, drift_L = np.asarray(spread_L, dtype=np.float64), np.asarray(drift_L, dtype=np.float64)
    return make_record(
        bias_spread_mean=spread_L.mean(),
        bias_spread_max=spread_L.max(),
        bias_drift_max=drift_L.max(),
        layer_bias_spread=few_digits(spread_L),
        layer_bias_drift=few_digits(drift_L),
    )


def expert_load(counts_LE: ArrayLike) -> list[list[float]]:
    """The metric `expert_load`: each expert's share of its layer's routed rows, rounded to 6 decimals."""
    loads: list[list[float]] = _load(counts_LE).round(6).tolist()
    return loads


def few_digits(values_L: ArrayLike) -> list[float]:
    """Rounded to four significant digits: one number per layer and record must be short."""
    return [float(f"{value:.{_DIGITS}g}") for value in np.asarray(values_L).tolist()]


def _dropped(counts_LE: ArrayLike, dropped_LE: ArrayLike, by_layer: bool) -> Record:
    counts_L, dropped_L = (np.asarray(x, dtype=np.float64).sum(axis=1) for x in (counts_LE, dropped_LE))
    return make_record(
        dropped_fraction=dropped_L.sum() / counts_L.sum(),
        layer_dropped_fraction=few_digits(dropped_L / counts_L) if by_layer else None,
    )


def _load(counts_LE: ArrayLike) -> np.ndarray:
    counts = np.asarray(counts_LE, dtype=np.float64)
    if counts.ndim != 2:
        raise ValueError(f"expert counts have shape {counts.shape}, expected [layers, experts]")
    total_L1 = counts.sum(axis=1, keepdims=True)
    if not (total_L1 > 0).all():
        raise ValueError(f"layer {int(np.argmin(total_L1))} routed no tokens in this step, so its balance is undefined")
    load_LE: np.ndarray = counts / total_L1
    return load_LE


def _entropy(load_LE: np.ndarray) -> np.ndarray:
    log_LE = np.log(load_LE, out=np.zeros_like(load_LE), where=load_LE > 0)  # 0 log 0 = 0
    entropy_L: np.ndarray = -(load_LE * log_LE).sum(axis=1)
    return entropy_L
