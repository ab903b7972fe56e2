"""`reward` and `dpo`: training on pairs of answers, of which one was preferred."""

from typing import Any

from pydantic import Field, NonNegativeFloat, PositiveFloat

from glmforge.config.model import Strict, refuse


class RewardConfig(Strict):
    """What a reward model adds. It needs `model.heads: {score: 1}` and `model.lm_head: false`."""

    center_weight: NonNegativeFloat = Field(
        default=0.01,
        description="weight of the mean squared sum of a pair's two scores, which keeps scores around 0 (Eisenstein "
        "et al., 2023); 0: scores may drift together",
    )


class DpoConfig(Strict):
    """What direct preference optimisation adds."""

    beta: PositiveFloat = Field(
        default=0.1, description="scale of the implicit rewards: larger values keep the policy nearer the reference"
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=0.5, description="share of pairs that are taken to be labelled the wrong way round"
    )


def check_preferences(run: Any) -> None:
    """Refuse what stages `reward` and `dpo` have no use for."""
    stage = f"stage '{run.stage}'"
    if len(run.phases) > 1:
        refuse("phases.1", f"{stage} has one phase; remove the others")
    phase = run.phases[0]
    only = {"packing": "best_fit", "document_mask": True, "fim_rate": 0, "z_loss_weight": 0, "sources": None}
    for name, value in only.items():
        if getattr(phase, name) != value:
            refuse(f"phases.0.{name}", f"does not apply to pairs of answers ({stage}); remove it")
    for name, number in (("phases.0.batch_size", phase.batch_size), *_sizes(run)):
        if number % 2:
            refuse(name, f"{number} rows are no pairs of rows ({stage}); make it even")
    for key in ("sources", "held_out"):
        for index, source in enumerate(getattr(run.data, key)):
            _check_source(f"data.{key}.{index}", source, stage)
    for name in ("samples", "needles", "benchmarks", "early_stopping"):
        if getattr(run.observe, name) is not None:
            refuse(f"observe.{name}", f"{stage} evaluates held-out pairs only; remove it")
    if run.checkpoint.keep_best is not None:
        refuse("checkpoint.keep_best", f"{stage} measures none of its metrics; remove it")


def check_reward(run: Any) -> None:
    """As `check_preferences`; the model answers with a score."""
    if run.model.heads.get("score") != 1:
        refuse("model.heads", "a reward model answers with one score; set {score: 1}")
    if run.model.lm_head:
        refuse("model.lm_head", "a reward model has no use for it; set it to false")
    check_preferences(run)


def _sizes(run: Any) -> list[tuple[str, int]]:
    ramp, micro = run.phases[0].batch_ramp, run.parallel.micro_batch_size
    sizes = [] if micro is None else [("parallel.micro_batch_size", micro)]
    if ramp is not None:
        sizes += [("phases.0.batch_ramp.start", ramp.start), ("phases.0.batch_ramp.increment", ramp.increment)]
    return sizes


def _check_source(place: str, source: Any, stage: str) -> None:
    if not source.is_conversations:
        refuse(f"{place}.path", f"{stage} reads preference pairs (.jsonl, .json, .parquet), not token shards")
    for name, default in (("weight", 1.0), ("max_epochs", None)):
        if getattr(source, name) != default:
            refuse(f"{place}.{name}", f"{stage} reads all sources once in an epoch; remove it")
    if source.chat is not None and (source.chat.overlong == "cut" or source.chat.turns != "all"):
        name = "overlong" if source.chat.overlong == "cut" else "turns"
        refuse(f"{place}.chat.{name}", f"does not apply to pairs of answers ({stage}); remove it")
