"""`stage`: what a run trains. It decides which settings a run has, and what those are that it leaves out.

`STAGES` is the one list of them. What a stage sets for its phases, where a phase says nothing else, and why:

| | pretrain | midtrain, sft |
|---|---|---|
| `router_bias_rate` | 1e-3: loads are far from level and the text is plentiful | 0: the report freezes the bias after 15T tokens; the few domains of a batch would pull experts away from the text they were trained on |
| `aux_loss_weight` | 1e-4 | 1e-4: with the bias frozen, it alone keeps a sequence from falling on a few experts |
| `mtp_loss_weight` | 0.3 | 0.1, as in the report after 15T tokens: MTP layers stay true to the trunk and take little from it |
| `packing` | truncate | midtrain: truncate; sft: best_fit, since no conversation is to be cut |

A run of stage sft that evaluates, and names a file of conversations in `data.held_out`, answers four prompts of them at
each evaluation where `observe.samples` is not given (`SAMPLES_OF_SFT`): loss and accuracy do not tell whether a model
answers in form and stops. The cost is that of up to 256 forward passes, one for each token of all answers, and at most
1.25 GiB on each rank for weights and caches; `sampling_seconds` in samples.jsonl tells it, `observe.samples: null`
saves it.

Dropout is 0 in every stage: a mixture of experts that sees each token once or a few times gains nothing by it.
"""  # noqa: E501

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from glmforge.config.chat import is_conversation_file
from glmforge.config.fields import one_of
from glmforge.config.model import Strict, refuse
from glmforge.config.phase import PhaseConfig

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


@dataclass(frozen=True, kw_only=True)
class StageDeclaration:
    """One stage.

    Attributes:
        name: in configurations.
        recipe: "module:function" that makes its `glmforge.recipes.recipe.Recipe`, imported by those that train.
        starts_from_weights: whether a run needs `init_from`.
        needs_lm_head: whether it trains on next tokens, which `model.lm_head` predicts.
        phase_defaults: of `PhaseConfig`, where they are others than written there.
        sections: of what a run is given makes the sections that it has besides, or has otherwise.
        own_settings: fields of `RunConfig`, with dots, that other stages have no use for unless they name them too.
        check_phase: raises `ValueError` (`refuse`) for settings of a phase that the stage cannot have, given its place.
    """

    name: str
    recipe: str
    starts_from_weights: bool = True
    needs_lm_head: bool = False
    phase_defaults: Mapping[str, Any] = field(default_factory=dict)
    sections: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda given: {}
    own_settings: tuple[str, ...] = ()
    check_phase: Callable[[str, PhaseConfig], None] = lambda place, phase: None


def _check_sft_phase(place: str, phase: PhaseConfig) -> None:
    if phase.packing == "truncate":
        refuse(f"{place}.packing", "'truncate' would cut conversations: take 'best_fit', the default of stage 'sft'")
    if not phase.document_mask:
        refuse(f"{place}.document_mask", "in stage 'sft' conversations of a row must not see each other: leave it out")
    if phase.fim_rate:
        refuse(f"{place}.fim_rate", "stage 'sft' rearranges no documents: leave it out, or do it in stage 'midtrain'")


def _sft_sections(given: Mapping[str, Any]) -> Mapping[str, Any]:
    sections: dict[str, Any] = {} if given.get("sft") is not None else {"sft": {}}
    if _evaluates_on_conversations(given):
        sections["observe"] = {"samples": SAMPLES_OF_SFT, **given["observe"]}
    return sections


def _evaluates_on_conversations(given: Mapping[str, Any]) -> bool:
    data, observe = given.get("data"), given.get("observe")
    if not (isinstance(data, dict) and isinstance(observe, dict) and observe.get("evaluate_every")):
        return False
    held_out = data.get("held_out")
    paths = (
        [source.get("path") for source in held_out if isinstance(source, dict)] if isinstance(held_out, list) else []
    )
    return any(is_conversation_file(Path(path)) for path in paths if isinstance(path, str | Path))


_ADAPTED = {"router_bias_rate": 0.0, "mtp_loss_weight": 0.1}

STAGES = {
    stage.name: stage
    for stage in (
        StageDeclaration(
            name="pretrain",
            recipe="glmforge.recipes.token_shards:next_token",
            starts_from_weights=False,
            needs_lm_head=True,
        ),
        StageDeclaration(
            name="midtrain",
            recipe="glmforge.recipes.token_shards:next_token",
            needs_lm_head=True,
            phase_defaults=_ADAPTED,
        ),
        StageDeclaration(
            name="sft",
            recipe="glmforge.recipes.token_shards:sft",
            needs_lm_head=True,
            phase_defaults=_ADAPTED | {"packing": "best_fit"},
            sections=_sft_sections,
            own_settings=("sft", "regularization.neftune_alpha"),
            check_phase=_check_sft_phase,
        ),
    )
}

StageName = Annotated[str, one_of(STAGES)]
"""A name in `STAGES`."""


def with_stage_defaults(given: Any) -> Any:
    """What a run is given, with its stage's defaults where a phase says nothing. What is malformed is left alone."""
    if not isinstance(given, dict) or not isinstance(given.get("phases"), list):
        return given
    name = given.get("stage", "pretrain")
    stage = STAGES.get(name) if isinstance(name, str) else None
    if stage is None:
        return given
    phases = [_filled(phase, stage.phase_defaults) if isinstance(phase, dict) else phase for phase in given["phases"]]
    return {**given, **stage.sections(given), "phases": phases}


def with_lora_defaults(given: Any) -> Any:
    """What a run with adapters does not say, to be filled in before its stage's defaults: AdamW trains them, what is
    frozen is held in bf16, the routers' correction biases, which belong to the base model, stay where they are, and
    MTP layers are not run.

    bf16 halves frozen weights and loses nothing of published ones, which are bf16; where the run computes in fp32 they
    would be converted in every step, so there they are fp32. Muon's orthogonal updates are for whole matrices: the
    factors of a product do not move it as a matrix of its own would be moved. MTP layers have no adapters: their loss
    would only hold the trunk's adapters to what frozen layers can predict from, for 4 % of the FLOPs of Air's step.
    """
    if not isinstance(given, dict) or not isinstance(given.get("lora"), dict | Strict):
        return given
    optim, precision = given.get("optim", {}), given.get("precision", {})
    filled = dict(given)
    if isinstance(optim, dict):
        filled["optim"] = {"matrix_optimizer": "adamw", **optim}
    if isinstance(precision, dict) and precision.get("compute", "bf16") == "bf16":
        filled["precision"] = {"frozen": "bf16", **precision}
    if isinstance(given.get("phases"), list):
        defaults = {"router_bias_rate": 0.0, "mtp_loss_weight": 0.0}
        filled["phases"] = [_filled(phase, defaults) if isinstance(phase, dict) else phase for phase in given["phases"]]
    return filled


def check_stage(name: str, run: Strict, phases: Sequence[PhaseConfig], init_from: Path | None) -> None:
    """Refuse what a run's stage has no use for, or lacks. Raises `ValueError` that names the field."""
    stage = STAGES[name]
    for other in STAGES.values():
        for path in other.own_settings:
            if path not in stage.own_settings and operator.attrgetter(path)(run):
                refuse(
                    path,
                    f"is for stage '{other.name}', and this run's is '{name}': leave it out, or set stage: "
                    f"{other.name}",
                )
    for index, phase in enumerate(phases):
        stage.check_phase(f"phases.{index}", phase)
    if stage.starts_from_weights and init_from is None:
        refuse(
            "init_from",
            f"stage '{name}' goes on from trained weights: name a Hugging Face directory, a checkpoint or a run, "
            "or set stage: pretrain",
        )


def _filled(phase: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    fits = {
        name: value
        for name, value in defaults.items()
        if name != "router_bias_rate" or phase.get("balance", "bias") == "bias"
    }
    return {**fits, **phase}
