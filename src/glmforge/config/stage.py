"""`stage`: what a run trains. It decides which settings a run has, and what those are that it omits.

A stage is declared once, as a `StageDeclaration` in `STAGES`: configurations, training, plans, the check whether a run
fits, help and docs read it there. What a stage sets for its phases, where a phase says nothing else, and why:

| | pretrain | midtrain, sft, reward, dpo |
|---|---|---|
| `router_bias_rate` | 1e-3: loads are far from level and the text is plentiful | 0: the report freezes the bias after 15T tokens; the few domains of a batch would pull experts away from the text they were trained on |
| `aux_loss_weight` | 1e-4 | 1e-4: with the bias frozen, it alone keeps a sequence from falling on a few experts |
| `mtp_loss_weight` | 0.3 | 0.1, as in the report after 15T tokens: MTP layers stay true to the trunk and take little from it; dpo: on the chosen answers; reward: 0, it has none |
| `packing` | truncate | midtrain: truncate; others: best_fit, since no conversation is to be cut |

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
from glmforge.config.preferences import DpoConfig, RewardConfig, check_preferences, check_reward
from glmforge.config.rl import RlConfig
from glmforge.config.role import BF16_BYTES, FP32_BYTES, MODEL, Role

SAMPLES_OF_SFT: Mapping[str, Any] = {
    "held_out": 4,
    "max_new_tokens": 256,
    "temperature": 0.0,
    "weight_bytes": 1 << 30,
}
"""`observe.samples` of a run that evaluates on conversations without setting it. It was not planned for, so it keeps
few gathered weights: a large model takes longer, and no run ends for lack of memory."""


class SftConfig(Strict):
    """What supervised fine-tuning adds."""

    mean: Literal["tokens", "conversations"] = Field(
        default="tokens",
        description="what the loss averages over: trained tokens, or conversations with equal weight",
    )


def _one_model(run: Any) -> tuple[Role, ...]:
    return (MODEL,)


@dataclass(frozen=True, kw_only=True)
class StageDeclaration:
    """One stage.

    Attributes:
        name: in configurations.
        summary: what it trains, in a few words, for help and docs.
        recipe: "module:function" that makes its `glmforge.recipes.recipe.Recipe`, imported by those that train.
        starts_from_weights: whether a run needs `init_from`.
        roles: the models that it holds in memory, the one that it is about first, without regard to adapters. It is
            called with the checked `RunConfig`.
        needs_lm_head: whether it trains on next tokens, which `model.lm_head` predicts.
        answers_held_out: whether at evaluations held-out prompts are answered, each set as a benchmark of its name, and
            no text is scored.
        phase_defaults: of `PhaseConfig`, where they are others than written there.
        sections: sections of `RunConfig` that the stage brings, by name. Elsewhere they are refused.
        fill: of what a run is given makes other defaults, by section.
        own_settings: fields of `RunConfig`, with dots, that other stages have no use for unless they name them too.
        check_phase: raises `ValueError` (`refuse`) for settings of a phase that the stage cannot have, given its place.
        check_run: the same for those of the `RunConfig`.
    """

    name: str
    summary: str = ""
    recipe: str = ""
    starts_from_weights: bool = True
    roles: Callable[[Any], tuple[Role, ...]] = _one_model
    needs_lm_head: bool = False
    answers_held_out: bool = False
    phase_defaults: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, type[Strict]] = field(default_factory=dict)
    fill: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda given: {}
    own_settings: tuple[str, ...] = ()
    check_phase: Callable[[str, PhaseConfig], None] = lambda place, phase: None
    check_run: Callable[[Any], None] = lambda run: None

    @property
    def settings(self) -> tuple[str, ...]:
        """Its sections and `own_settings`."""
        return *self.sections, *self.own_settings


def _check_sft_phase(place: str, phase: PhaseConfig) -> None:
    if phase.packing == "truncate":
        refuse(f"{place}.packing", "'truncate' would cut conversations; use 'best_fit', the default of stage 'sft'")
    if not phase.document_mask:
        refuse(
            f"{place}.document_mask", "in stage 'sft' conversations in a row must not attend to each other; remove it"
        )
    if phase.fim_rate:
        refuse(f"{place}.fim_rate", "stage 'sft' has no fill-in-the-middle; remove it, or use it in stage 'midtrain'")


def _samples_of_sft(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _evaluates_on_conversations(given):
        return {}
    return {"observe": {"samples": SAMPLES_OF_SFT, **given["observe"]}}


def _evaluates_on_conversations(given: Mapping[str, Any]) -> bool:
    data, observe = given.get("data"), given.get("observe")
    if not (isinstance(data, dict) and isinstance(observe, dict) and observe.get("evaluate_every")):
        return False
    held_out = data.get("held_out")
    paths = (
        [source.get("path") for source in held_out if isinstance(source, dict)] if isinstance(held_out, list) else []
    )
    return any(is_conversation_file(Path(path)) for path in paths if isinstance(path, str | Path))


def _check_rl_phase(place: str, phase: PhaseConfig) -> None:
    for name in ("mtp_loss_weight", "aux_loss_weight", "router_bias_rate", "fim_rate", "z_loss_weight"):
        if getattr(phase, name):
            refuse(f"{place}.{name}", "stage 'rl' trains the policy alone; remove it")
    if phase.steps is None:
        refuse(f"{place}.tokens", "answers have no fixed length; give the phase's length in steps")
    if phase.batch_ramp is not None:
        refuse(f"{place}.batch_ramp", "stage 'rl' has batches of one size; remove it")


def _optim_of_rl(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The learning rate goes by steps: answers have no fixed number of tokens."""
    optim = given.get("optim", {})
    return {"optim": {"schedule_unit": "steps", **optim}} if isinstance(optim, dict) else {}


def _roles_of_rl(run: Any) -> tuple[Role, ...]:
    """The models that the run's settings need."""
    rl: RlConfig = run.rl
    engine: dict[str, Any] = {"cache_bytes": rl.rollout.cache_bytes, "kept_bytes": rl.rollout.weight_bytes}
    frozen: dict[str, Any] = {"is_trained": False, "forwards": 1}
    frozen["frozen_bytes"] = FP32_BYTES if run.precision.compute == "fp32" else BF16_BYTES
    roles = [Role("actor", forwards=int(rl.needs_old), **engine)]
    if rl.needs_reference:
        roles.append(Role("reference", base_of="actor", **frozen))
    if rl.reward_model is not None:
        roles.append(Role("reward", has_vocabulary=False, **frozen))
    if rl.critic is not None:
        roles.append(Role("critic", forwards=1, has_vocabulary=False))
    return tuple(roles)


_ADAPTED = {"router_bias_rate": 0.0, "mtp_loss_weight": 0.1}

_DPO = (
    Role("actor"),
    # It answers once for each pair, before the first step, while the actor's weights still are its own.
    Role("reference", is_trained=False, forwards=1, weights_of="actor"),
)

STAGES = {
    stage.name: stage
    for stage in (
        StageDeclaration(
            name="pretrain",
            summary="the whole model on text, from scratch or continued",
            recipe="glmforge.recipes.token_shards:next_token",
            starts_from_weights=False,
            needs_lm_head=True,
        ),
        StageDeclaration(
            name="midtrain",
            summary="a trained model on a new domain or longer contexts",
            recipe="glmforge.recipes.token_shards:next_token",
            needs_lm_head=True,
            phase_defaults=_ADAPTED,
        ),
        StageDeclaration(
            name="sft",
            summary="a trained model on conversations",
            recipe="glmforge.recipes.token_shards:sft",
            needs_lm_head=True,
            phase_defaults=_ADAPTED | {"packing": "best_fit"},
            sections={"sft": SftConfig},
            fill=_samples_of_sft,
            own_settings=("regularization.neftune_alpha",),
            check_phase=_check_sft_phase,
        ),
        StageDeclaration(
            name="reward",
            summary="a model that scores answers, on pairs of them",
            recipe="glmforge.recipes.preferences:reward",
            roles=lambda run: (Role("model", has_vocabulary=False),),
            phase_defaults=_ADAPTED | {"mtp_loss_weight": 0.0, "packing": "best_fit"},
            sections={"reward": RewardConfig},
            check_run=check_reward,
        ),
        StageDeclaration(
            name="dpo",
            summary="a trained model on pairs of answers, against the model that it was",
            recipe="glmforge.recipes.preferences:dpo",
            roles=lambda run: _DPO,
            needs_lm_head=True,
            phase_defaults=_ADAPTED | {"packing": "best_fit"},
            sections={"dpo": DpoConfig},
            check_run=check_preferences,
        ),
        StageDeclaration(
            name="rl",
            summary="a policy on rewards of its own answers: GRPO, PPO and relatives",
            recipe="glmforge.recipes.rl:RlRecipe",
            needs_lm_head=True,
            answers_held_out=True,
            roles=_roles_of_rl,
            phase_defaults={"router_bias_rate": 0.0, "mtp_loss_weight": 0.0, "aux_loss_weight": 0.0},
            sections={"rl": RlConfig},
            fill=_optim_of_rl,
            check_phase=_check_rl_phase,
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
    sections: dict[str, Any] = {
        name: {} for name, kind in stage.sections.items() if given.get(name) is None and not _required(kind)
    }
    return {**given, **sections, **stage.fill(given), "phases": phases}


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
        for path in other.settings:
            if path not in stage.settings and operator.attrgetter(path)(run):
                refuse(
                    path,
                    f"belongs to stage '{other.name}', but this run's stage is '{name}'; remove it, or set stage: "
                    f"{other.name}",
                )
    for section, kind in stage.sections.items():
        if getattr(run, section) is None:
            refuse(section, f"stage '{name}' needs this section, with {', '.join(_required(kind))}")
    for index, phase in enumerate(phases):
        stage.check_phase(f"phases.{index}", phase)
    stage.check_run(run)
    if stage.starts_from_weights and init_from is None:
        refuse(
            "init_from",
            f"stage '{name}' starts from trained weights; set a Hugging Face directory, a checkpoint or a run, or "
            "stage: pretrain",
        )


def stage_lines() -> list[str]:
    """A line for each stage that a run can train: its name, and what it trains."""
    return [f"{stage.name}: {stage.summary}" if stage.summary else stage.name for stage in STAGES.values()]


def stages_markdown() -> str:
    """All stages, as docs/stages.md shows them."""
    lines = ["| stage | trains |", "| --- | --- |"]
    lines += [f"| `{stage.name}` | {stage.summary} |" for stage in STAGES.values()]
    return "\n".join(lines) + "\n"


def _required(section: type[Strict]) -> list[str]:
    return [name for name, field in section.model_fields.items() if field.is_required()]


def _filled(phase: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    fits = {
        name: value
        for name, value in defaults.items()
        if name != "router_bias_rate" or phase.get("balance", "bias") == "bias"
    }
    return {**fits, **phase}
