"""`stage`: what a run trains. It decides which settings a run has, and what those are that it leaves out.

What a stage sets for its phases, where a phase says nothing else, and why:

| | pretrain | midtrain, sft |
|---|---|---|
| `router_bias_rate` | 1e-3: loads are far from level and the text is plentiful | 0: the report freezes the bias after 15T tokens; the few domains of a batch would pull experts away from the text they were trained on |
| `aux_loss_weight` | 1e-4 | 1e-4: with the bias frozen, it alone keeps a sequence from falling on a few experts |
| `mtp_loss_weight` | 0.3 | 0.1, as in the report after 15T tokens: MTP layers stay true to the trunk and take little from it |
| `packing` | truncate | midtrain: truncate; sft: best_fit, since no conversation is to be cut |

A run of stage sft that evaluates, and names a file of conversations in `data.held_out`, answers four prompts of
them at each evaluation where `observe.samples` is not given (`SAMPLES_OF_SFT`): loss and accuracy do not tell whether a model answers in
form and stops. The cost is that of up to 256 forward passes, one for each token of all answers, and at most 1.25 GiB on
each rank for weights and caches; `sampling_seconds` in samples.jsonl tells it, `observe.samples: null` saves it.

Dropout is 0 in every stage: a mixture of experts that sees each token once or a few times gains nothing by it.
"""  # noqa: E501

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from glmforge.config.chat import is_conversation_file
from glmforge.config.model import Strict, refuse
from glmforge.config.phase import PhaseConfig
from glmforge.config.regularization import RegularizationConfig

Stage = Literal["pretrain", "midtrain", "sft"]

_ADAPTED = {"router_bias_rate": 0.0, "mtp_loss_weight": 0.1}
PHASE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "pretrain": {},
    "midtrain": _ADAPTED,
    "sft": _ADAPTED | {"packing": "best_fit"},
}
"""Of each stage, where they differ from those of `PhaseConfig`."""


SAMPLES_OF_SFT: Mapping[str, Any] = {
    "held_out": 4,
    "max_new_tokens": 256,
    "temperature": 0.0,
    "weight_bytes": 1 << 30,
}
"""`observe.samples` of a run that evaluates on conversations and does not say. Nobody has planned for it, so it keeps
few gathered weights: a large model takes longer, and no run ends for want of memory."""


class SftConfig(Strict):
    """What supervised fine-tuning adds."""

    mean: Literal["tokens", "conversations"] = Field(
        default="tokens",
        description="what the loss is a mean over: trained tokens, or conversations, which then count alike",
    )


def with_stage_defaults(given: Any) -> Any:
    """What a run is given, with its stage's defaults where a phase says nothing. What is malformed is left alone."""
    if not isinstance(given, dict) or not isinstance(given.get("phases"), list):
        return given
    stage = given.get("stage", "pretrain")
    defaults = PHASE_DEFAULTS.get(stage, {}) if isinstance(stage, str) else {}
    phases = [_filled(phase, defaults) if isinstance(phase, dict) else phase for phase in given["phases"]]
    section: dict[str, Any] = {"sft": {}} if stage == "sft" and given.get("sft") is None else {}
    if stage == "sft" and _evaluates_on_conversations(given):
        section["observe"] = {"samples": SAMPLES_OF_SFT, **given["observe"]}
    return {**given, **section, "phases": phases}


def refuse_foreign(
    stage: Stage, sft: SftConfig | None, regularization: RegularizationConfig, phases: Sequence[PhaseConfig]
) -> None:
    """Refuse what the stage has no use for. Raises `ValueError` that names the field."""
    if stage == "sft":
        for index, phase in enumerate(phases):
            _refuse_foreign_to_sft(f"phases.{index}", phase)
        return
    elsewhere = f"is for stage 'sft', and this run's is '{stage}': leave it out, or set stage: sft"
    if sft is not None:
        refuse("sft", elsewhere)
    if regularization.neftune_alpha:
        refuse("regularization.neftune_alpha", elsewhere)


def _refuse_foreign_to_sft(place: str, phase: PhaseConfig) -> None:
    if phase.packing == "truncate":
        refuse(f"{place}.packing", "'truncate' would cut conversations: take 'best_fit', the default of stage 'sft'")
    if not phase.document_mask:
        refuse(f"{place}.document_mask", "in stage 'sft' conversations of a row must not see each other: leave it out")
    if phase.fim_rate:
        refuse(f"{place}.fim_rate", "stage 'sft' rearranges no documents: leave it out, or do it in stage 'midtrain'")


def _evaluates_on_conversations(given: Mapping[str, Any]) -> bool:
    data, observe = given.get("data"), given.get("observe")
    if not (isinstance(data, dict) and isinstance(observe, dict) and observe.get("evaluate_every")):
        return False
    held_out = data.get("held_out")
    paths = (
        [source.get("path") for source in held_out if isinstance(source, dict)] if isinstance(held_out, list) else []
    )
    return any(is_conversation_file(Path(path)) for path in paths if isinstance(path, str | Path))


def _filled(phase: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    fits = {
        name: value
        for name, value in defaults.items()
        if name != "router_bias_rate" or phase.get("balance", "bias") == "bias"
    }
    return {**fits, **phase}
