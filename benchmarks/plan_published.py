"""The planner against published throughputs: its overheads fitted to some models, and tested on the others.

    python benchmarks/plan_published.py

`published_runs.py` has the rows, and the rule by which they came there. Five numbers are fitted
(`glmforge.plan.time.overheads`) to the models that are not held out, each model with the same weight however often it
was run: the least squares of the logarithm of predicted over published tokens per second, within physical bounds.

The interval of a prediction comes from the same rows: each model is predicted with what is fitted to the others (leave
one model out), and the spread of the logarithms gives the factor within which four of five runs should be. Whether they
are is for the rows that are held out to say.

The planner has the numbers as constants. This script fits them again, says where the two part, and writes the result.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from harness import result, table
from published_runs import Published, express, facts, not_predicted, published_runs, published_tokens
from record import write_result

from glmforge.plan.time.overheads import BOUNDS, FITTED, INTERVAL, Overheads
from glmforge.plan.time.step_time import StepTime, predict_step

_STEPS = Overheads(2e-6, 2e-6, 5e-6, 0.02, 0.02)
"""By how much each is changed to see what it does."""
_ROUNDS = 6
_SHARE = 1.2816
"""Standard deviations to each side that hold 80 % of a normal distribution."""
_WITHOUT = Overheads(0.0, 0.0, 0.0, 0.83, 1.0)
"""What the planner had before: a share of a dense product's rate for experts, and nothing else."""
SIDES = {"held_out": "held out", "fitted_to": "fitted to"}


def predict(row: Published, overheads: Overheads = FITTED) -> StepTime:
    """A step of it, or one of its passes."""
    run = express(row)
    kernels = replace(run.kernels, overheads=overheads)
    return predict_step(run.config, run.layout, run.machine, kernels, run.stage, mean_attended=run.mean_attended)


def log_ratio(row: Published, overheads: Overheads = FITTED) -> float:
    """Of predicted to published tokens per second."""
    published = published_tokens(row, express(row).flops_per_token)
    return math.log(predict(row, overheads).tokens_per_second / row.gpus / published)


def weights(rows: Sequence[Published]) -> np.ndarray:
    """Each model counts once."""
    number = Counter(row.model for row in rows)
    return np.array([1 / number[row.model] for row in rows])


def fit(rows: Sequence[Published], start: Overheads = FITTED) -> tuple[Overheads, np.ndarray, np.ndarray]:
    """(overheads, log ratios with them, their slopes). Refuses rows that are held out."""
    if seen := sorted({row.model for row in rows if row.is_held_out}):
        raise ValueError(f"{', '.join(seen)}: held out, so nothing may be fitted to it")
    found = start
    for _ in range(_ROUNDS):
        ratios, slopes = _slopes(rows, found)
        found = _step(found, ratios, slopes, weights(rows))
    return found, *_slopes(rows, found)


def leave_one_out(rows: Sequence[Published], fitted: Overheads, ratios: np.ndarray, slopes: np.ndarray) -> list[float]:
    """Log ratios of each row with what is fitted to the other models, along the slopes at the fit to all."""
    found = []
    weight = weights(rows)
    for row in rows:
        others = np.array([other.model != row.model for other in rows])
        without = _step(fitted, ratios[others], slopes[others], weight[others])
        found.append(log_ratio(row, without))
    return found


def _slopes(rows: Sequence[Published], at: Overheads) -> tuple[np.ndarray, np.ndarray]:
    """Log ratios, and by how much they change with each overhead."""
    here = np.array([log_ratio(row, at) for row in rows])
    columns = []
    for name, step, (low, high) in zip(at._fields, _STEPS, BOUNDS, strict=True):
        value = getattr(at, name)
        other = value + step if value + step <= high else max(low, value - step)
        there = np.array([log_ratio(row, at._replace(**{name: other})) for row in rows])
        columns.append((there - here) / (other - value))
    return here, np.array(columns).T


def _step(at: Overheads, ratios: np.ndarray, slopes: np.ndarray, weight: np.ndarray) -> Overheads:
    """The least squares of the ratios along their slopes, within bounds: what would leave them stays at its bound."""
    low, high = np.array(BOUNDS).T
    scale = np.array(_STEPS)
    value, root = np.array(at), np.sqrt(weight)
    free = np.ones(len(value), dtype=bool)
    best = value.copy()
    for _ in value:
        target = ratios + slopes[:, ~free] @ (best[~free] - value[~free])
        change = np.linalg.lstsq((slopes * scale)[:, free] * root[:, None], -target * root, rcond=None)[0]
        best[free] = value[free] + change * scale[free]
        outside = free & ((best < low) | (best > high))
        best = np.clip(best, low, high)
        if not outside.any():
            break
        free &= ~outside
    return Overheads(*map(float, best))


def compare(rows: Sequence[Published], overheads: Overheads = FITTED) -> list[dict[str, Any]]:
    """One entry for each row; `ratio` is predicted over published."""
    found = []
    for row in rows:
        step, flops = predict(row, overheads), express(row).flops_per_token
        published, predicted = published_tokens(row, flops), step.tokens_per_second / row.gpus
        found.append(
            {
                "model": row.model,
                "framework": row.framework,
                "release": row.release,
                "what": row.what,
                "side": "held_out" if row.is_held_out else "fitted_to",
                "assumed": row.assumed,
                "source": facts()["sources"][row.source],
                "flops_per_token": flops,
                "published_tokens_per_second": published,
                "predicted_tokens_per_second": predicted,
                "ratio": predicted / published,
                "is_inside": 1 / INTERVAL <= predicted / published <= INTERVAL,
                "parts": step.parts,
            }
        )
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of some rows: errors are |predicted / published - 1|, and `typical_factor` what a factor is off by as a rule."""
    errors = [abs(row["ratio"] - 1) for row in rows]
    logs = [abs(math.log(row["ratio"])) for row in rows]
    worst = rows[max(range(len(rows)), key=lambda index: logs[index])]
    return {
        "rows": len(rows),
        "models": len({row["model"] for row in rows}),
        "mean_error": sum(errors) / len(errors),
        "median_error": sorted(errors)[len(errors) // 2],
        "typical_factor": math.exp(math.sqrt(sum(log * log for log in logs) / len(logs))),
        "inside": sum(row["is_inside"] for row in rows),
        "inside_share": sum(row["is_inside"] for row in rows) / len(rows),
        "worst": {key: worst[key] for key in ("model", "framework", "release", "what", "ratio")},
    }


def by_side(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A summary of the rows that are held out, and of the others."""
    return {side: summary([row for row in rows if row["side"] == side]) for side in SIDES}


def largest_change(rows: Sequence[dict[str, Any]]) -> float:
    """By how much the same run on the same framework differs between releases, as a factor."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        same = row["model"], row["framework"], row["what"], row["assumed"]
        found.setdefault(same, []).append(row["published_tokens_per_second"])
    return max(max(figures) / min(figures) for figures in found.values())


def fit_again() -> dict[str, Any]:
    """Overheads and the interval from the rows that are not held out, with what they were made of."""
    seen = [row for row in published_runs() if not row.is_held_out]
    fitted, ratios, slopes = fit(seen)
    left_out = leave_one_out(seen, fitted, ratios, slopes)
    weight = weights(seen)
    spread = math.sqrt(float(np.average(np.square(left_out), weights=weight)))
    return {
        "overheads": fitted._asdict(),
        "bounds": dict(zip(fitted._fields, BOUNDS, strict=True)),
        "spread": math.sqrt(float(np.average(ratios**2, weights=weight))),
        "spread_left_out": spread,
        "interval": math.exp(_SHARE * spread),
    }


def published_table() -> str:
    """Every row, those that are held out first."""
    header = ["published run", "by", "tokens/s of a GPU", "predicted", "predicted / published", "inside", "side"]
    rows = sorted(result("plan_published")["rows"], key=lambda row: (row["side"] != "held_out", row["model"]))
    lines = [
        [
            f"{row['model']}, {row['what']}",
            f"{row['framework']}, {row['release']}",
            f"{row['published_tokens_per_second']:,.0f}",
            f"{row['predicted_tokens_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            "yes" if row["is_inside"] else "no",
            SIDES[row["side"]],
        ]
        for row in rows
    ]
    return table(header, lines)


def left_out_table() -> str:
    """What was found and is not predicted, with the reason."""
    reasons = facts()["not_predicted"]
    rows = [[row["model"], row["framework"], f"{row['why']}: {reasons[row['why']]}"] for row in not_predicted()]
    return table(["published, not predicted", "by", "because"], rows)


def overheads_table() -> str:
    """The fitted numbers with their bounds."""
    words = {
        "launch": ("each operation of a pass", 1e6, "us"),
        "expert": ("each expert on a rank, in each of its products", 1e6, "us"),
        "fp8_expert": ("more where that product is in fp8", 1e6, "us"),
        "grouped": ("experts' products, of a dense product's rate", 1, ""),
        "sustained": ("products and attention, of the rate of short measurements", 1, ""),
    }
    rows = []
    for (name, (what, scale, unit)), (low, high) in zip(words.items(), BOUNDS, strict=True):
        value, *ends = (f"{number * scale:g} {unit}".strip() for number in (getattr(FITTED, name), low, high))
        rows.append([f"`{name}`", what, value, " to ".join(ends)])
    return table(["overhead", "of", "fitted", "between"], rows)


def models_table() -> str:
    """What stands for what a GLM has not."""
    rows = [[name, model["stands_for"]] for name, model in facts()["models"].items() if "stands_for" in model]
    return table(["published model", "is expressed by"], rows)


TABLES = (overheads_table, published_table, left_out_table, models_table)


def main() -> None:
    fitted = fit_again()
    print(
        "\n".join(
            f"{name}: {value:.4g}, the planner has {getattr(FITTED, name):.4g}"
            for name, value in fitted["overheads"].items()
        )
    )
    print(f"interval: {fitted['interval']:.3f}, the planner has {INTERVAL}")
    rows = compare(published_runs())
    before = by_side(compare(published_runs(), _WITHOUT))
    content = {"rows_in_all": len(rows), "rows": rows, **by_side(rows), "without_overheads": before, "fit": fitted}
    content["releases"] = {"largest": largest_change(rows)}
    content["not_predicted"] = [row | {"source": facts()["sources"][row["source"]]} for row in not_predicted()]
    for side, words in SIDES.items():
        found, old = content[side], before[side]
        print(
            f"{words}: {found['rows']} runs of {found['models']} models, mean error {found['mean_error']:.1%} "
            f"(without overheads {old['mean_error']:.1%}), worst {found['worst']['ratio']:.2f} "
            f"({found['worst']['model']}, {found['worst']['framework']}), inside the interval {found['inside']}"
        )
    write_result(
        "plan_published",
        content,
        code=[
            "benchmarks/published_runs.py",
            "benchmarks/data/published_runs.csv",
            "benchmarks/data/published_models.toml",
            *(f"src/glmforge/plan/{room}" for room in ("counts", "machine", "stages", "time", "work")),
        ],
    )


if __name__ == "__main__":
    main()
