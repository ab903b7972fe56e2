"""What a run is: one section per concern, one YAML key per field.

A run trains one model through one or more phases (the report's pre-training, code, 32K and 128K stages), with
one learning-rate schedule over all of them. A check that concerns one section stands in that section, a check
between sections in `RunConfig`, and what depends on the number of processes in `glmforge.config.layout`.

Relative paths are relative to the working directory of the run, not to the file they are written in: a
configuration may be stored with the run and still mean the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, NonNegativeInt, model_validator
from pydantic.fields import FieldInfo

from glmforge.config.adapters import WrongTargetError, table_with
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.config.data import DataConfig
from glmforge.config.deepspeed import DeepSpeedSection, check_deepspeed, with_deepspeed_defaults
from glmforge.config.fault_tolerance import FaultToleranceConfig
from glmforge.config.fields import YamlPath, refuse_duplicates
from glmforge.config.kernels import KernelsConfig
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig, Strict, refuse
from glmforge.config.observe import HELD_OUT_METRICS, ObserveConfig
from glmforge.config.optim import OptimConfig
from glmforge.config.parallel import ParallelConfig, PrecisionConfig
from glmforge.config.parameter_groups import wrong_rule
from glmforge.config.phase import PhaseConfig
from glmforge.config.quantised import BLOCK, cut_block
from glmforge.config.regularization import RegularizationConfig
from glmforge.config.stage import (
    STAGES,
    StageDeclaration,
    StageName,
    check_stage,
    with_lora_defaults,
    with_stage_defaults,
)

_Section = TypeVar("_Section", bound=Strict)


class RunConfig(Strict):
    """A whole training run. `declare_stage` adds the sections that stages bring."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="also the name of its directory")
    output_dir: YamlPath = Field(default_factory=lambda earlier: Path("runs") / earlier["name"])
    stage: StageName = Field(default="pretrain", description="training stage; 'glmforge train --help' lists them")
    backend: Literal["native", "deepspeed"] = Field(
        default="native",
        description="training backend. native: PyTorch's FSDP2, DTensor and pipelining; deepspeed: ZeRO",
    )
    deepspeed: DeepSpeedSection | None = Field(
        default=None, exclude_if=lambda section: section is None, description="DeepSpeed's own settings"
    )
    seed: NonNegativeInt = 0
    init_from: YamlPath | None = Field(
        default=None,
        description="initial weights: a Hugging Face directory, a run, a step of a run (RUN@STEP) or a checkpoint; "
        "None: random weights from seed",
    )
    init_cache_dir: YamlPath | None = Field(
        default=None,
        description="directory on each node's local disk that a Hugging Face directory in init_from is copied to "
        "first; None: read in place",
    )
    model: ModelConfig
    data: DataConfig
    phases: list[PhaseConfig] = Field(min_length=1)
    lora: LoraConfig | None = Field(default=None, description="train adapters instead of init_from's weights")
    optim: OptimConfig = OptimConfig()
    regularization: RegularizationConfig = RegularizationConfig()
    parallel: ParallelConfig = ParallelConfig()
    precision: PrecisionConfig = PrecisionConfig()
    kernels: KernelsConfig = KernelsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    observe: ObserveConfig = ObserveConfig()
    fault_tolerance: FaultToleranceConfig = FaultToleranceConfig()

    @property
    def num_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.num_steps for phase in self.phases)

    @property
    def num_tokens(self) -> int:
        """Tokens that all phases consume, each phase rounded up to whole steps."""
        return sum(phase.num_samples * phase.seq_len for phase in self.phases)

    @property
    def adapter_dropout(self) -> float:
        """Of what adapters read; 0 without adapters."""
        return 0.0 if self.lora is None else self.lora.dropout

    def stage_settings(self, kind: type[_Section]) -> _Section:
        """The section of this class that the run's stage brings."""
        sections = (getattr(self, name) for name in STAGES[self.stage].sections)
        return next(section for section in sections if isinstance(section, kind))

    def tokens_after(self, steps: int) -> int:
        """Tokens that the first `steps` steps of the run consume, as planned; all of them if it has fewer."""
        tokens = 0
        for phase in self.phases:
            for span in phase.batch_spans:
                taken = min(steps, span.num_steps)
                tokens, steps = tokens + taken * span.batch_size * phase.seq_len, steps - taken
        return tokens

    def steps_before(self, samples: Mapping[str, int]) -> int:
        """Steps that take, of each phase by name, this many of its first samples, as planned."""
        return sum(phase.steps_before(samples.get(phase.name, 0)) for phase in self.phases)

    def source_weights(self, phase: PhaseConfig) -> dict[str, float]:
        """Name -> weight of the sources that `phase` draws from, in the order of `data.sources`."""
        weights = {source.name: source.weight for source in self.data.sources}
        return weights if phase.sources is None else {n: phase.sources[n] for n in weights if n in phase.sources}

    @model_validator(mode="before")
    @classmethod
    def _take_defaults_of_stage(cls, given: Any) -> Any:
        return with_stage_defaults(with_lora_defaults(with_deepspeed_defaults(given)))

    @model_validator(mode="after")
    def _check_stage_and_backend(self) -> Self:
        check_stage(self.stage, self, self.phases, self.init_from)
        check_deepspeed(self)
        if not self.model.lm_head:
            if STAGES[self.stage].needs_lm_head:
                refuse(
                    "model.lm_head", f"stage '{self.stage}' trains on next tokens; remove this key or set it to true"
                )
            for field in ("samples", "needles", "benchmarks"):
                value = getattr(self.observe, field)
                if value is not None:
                    refuse(
                        f"observe.{field}", "needs a language-model head, but model.lm_head is false; remove this key"
                    )
        return self

    @model_validator(mode="after")
    def _check_phases(self) -> Self:
        refuse_duplicates("phases", [phase.name for phase in self.phases])
        names = [source.name for source in self.data.sources]
        for index, phase in enumerate(self.phases):
            if phase.seq_len > self.model.max_position_embeddings:
                limit = f"model.max_position_embeddings = {self.model.max_position_embeddings}"
                refuse(f"phases.{index}.seq_len", f"{phase.seq_len} is more than {limit}")
            for unknown in sorted(set(phase.sources or ()) - set(names)):
                refuse(
                    f"phases.{index}.sources.{unknown}",
                    f"unknown source; data.sources has {', '.join(names)}",
                )
        return self

    @model_validator(mode="after")
    def _check_code(self) -> Self:
        code = {source.name for source in self.data.sources if source.code}
        for index, phase in enumerate(self.phases):
            if phase.fim_rate and not code & self.source_weights(phase).keys():
                refuse(
                    f"phases.{index}.fim_rate",
                    f"{phase.fim_rate:g}, but phase '{phase.name}' has no code source; set code: true on the code "
                    "sources, or remove fim_rate",
                )
        return self

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        try:
            table = table_with(self.model, self.lora)
        except WrongTargetError as error:
            refuse(f"lora.{error.field}", error.problem)
        wrong = wrong_rule(self.optim, table) if self.optim.rules else None
        if wrong is not None:
            field, problem = wrong
            refuse(f"optim.{field}", problem)
        return self

    @model_validator(mode="after")
    def _check_lora(self) -> Self:
        if self.lora is None:
            if self.checkpoint.mode == "lite":
                refuse("checkpoint.mode", "lite is for adapters (lora) only; remove it, or set it to full")
            if self.precision.frozen == "nf4":
                refuse("precision.frozen", "'nf4' is for runs with adapters (lora) only; set it to bf16 or fp32")
            return self
        if self.init_from is None:
            refuse("lora", "adapters need base weights; set init_from, or remove this section")
        for index, phase in enumerate(self.phases):
            if phase.router_bias_rate and phase.balance == "bias":
                refuse(
                    f"phases.{index}.router_bias_rate",
                    f"{phase.router_bias_rate:g} would update a bias of the base model, which adapters cannot store; "
                    "remove it, or set it to 0",
                )
        if self.lora.dropout and self.parallel.ep_overlap:
            refuse("lora.dropout", "needs unsplit micro-batches; set it to 0, or parallel.ep_overlap to false")
        if self.regularization.ewc is not None:
            refuse("regularization.ewc", "penalises changes to weights that lora freezes; remove one of them")
        return self

    @model_validator(mode="after")
    def _check_quantised(self) -> Self:
        if self.lora is None or self.precision.frozen != "nf4":
            return self
        if self.lora.dora:
            refuse("lora.dora", "needs exact row norms, which 'nf4' rounds; remove it, or set precision.frozen")
        if name := cut_block(table_with(self.model, self.lora), self.parallel.tp):
            refuse(
                "precision.frozen",
                f"'nf4' rounds blocks of {BLOCK} inputs together, which those of {name} on each rank (parallel.tp = "
                f"{self.parallel.tp}) are no multiple of: lower tp, or set this to bf16",
            )
        return self

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        apart = {"checkpoint.dir": self.checkpoint.dir, "observe.tensorboard_dir": self.observe.tensorboard_dir}
        own = {self.output_dir.absolute() / name for name in ("", "checkpoints", "tensorboard")}
        for key, place in apart.items():
            if place is not None and place.absolute() in own:
                refuse(key, f"{place} lies inside output_dir; remove it, or choose a directory outside")
        return self

    @model_validator(mode="after")
    def _check_evaluation(self) -> Self:
        stopping, names = self.observe.early_stopping, [source.name for source in self.data.held_out]
        if self.observe.evaluate_every is not None and not names:
            refuse("observe.evaluate_every", "needs a token shard in data.held_out to evaluate on")
        if stopping is not None:
            self._check_metric("observe.early_stopping", stopping.metric)
        if self.observe.samples is not None and self.observe.evaluate_every is None:
            refuse("observe.samples", "are written at evaluations; set observe.evaluate_every")
        if stopping is not None and stopping.source is not None and stopping.metric not in HELD_OUT_METRICS:
            refuse(
                "observe.early_stopping.source",
                f"'{stopping.metric}' is a benchmark, not held-out text; remove this key",
            )
        if stopping is not None and stopping.source is not None and stopping.source not in names:
            refuse("observe.early_stopping.source", f"'{stopping.source}' is not in data.held_out: {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _check_keep_best(self) -> Self:
        keep_best, every = self.checkpoint.keep_best, self.checkpoint.every_steps
        if keep_best is None:
            return self
        measured_every = self._check_metric("checkpoint.keep_best", keep_best.metric)
        if every is None or every % measured_every:
            refuse(
                "checkpoint.keep_best",
                f"{keep_best.metric} is measured every {measured_every:,} steps: set checkpoint.every_steps to a "
                "multiple of that, so that each checkpoint has a value",
            )
        if self.lora is not None and self.checkpoint.local_dir is not None:
            refuse("checkpoint.keep_best", "adapters in checkpoint.local_dir stay on the nodes; leave one of them out")
        return self

    def _check_metric(self, key: str, metric: str) -> int:
        """The steps between two of its values."""
        every, benchmarks = self.observe.evaluate_every, self.observe.benchmarks
        answers = STAGES[self.stage].answers_held_out
        of_text = [one.name for one in self.data.held_out] if answers else list(HELD_OUT_METRICS)
        if metric in of_text:
            return every or refuse(key, "needs evaluations: set observe.evaluate_every")
        if benchmarks is not None and metric in benchmarks.measured:
            return benchmarks.every_steps
        names = ", ".join([*of_text, *(benchmarks.measured if benchmarks else [])]) or "a set of data.held_out"
        refuse(f"{key}.metric", f"'{metric}' is not measured; choose one of {names}, or add it to observe.benchmarks")

    @model_validator(mode="after")
    def _check_needles(self) -> Self:
        needles, names = self.observe.needles, [source.name for source in self.data.held_out]
        if needles is None:
            return self
        if self.observe.evaluate_every is None:
            refuse("observe.needles", "run at evaluations; set observe.evaluate_every")
        if needles.haystack is not None and needles.haystack not in names:
            refuse("observe.needles.haystack", f"'{needles.haystack}' is not in data.held_out: {', '.join(names)}")
        longest = max(phase.seq_len for phase in self.phases)
        if max(needles.lengths) > longest:
            refuse(
                "observe.needles.lengths",
                f"{max(needles.lengths)} is longer than any phase's sequences ({longest}); remove it, and test "
                "longer texts with 'glmforge evaluate needles'",
            )
        if needles.answers == "generated" and self.parallel.cp > 1:
            refuse(
                "observe.needles.answers",
                "'generated' needs whole texts on each rank, but parallel.cp is more than 1; set it to 'scored'",
            )
        return self

    @model_validator(mode="after")
    def _check_spikes(self) -> Self:
        saved = self.checkpoint.every_steps or self.checkpoint.ephemeral_every_steps
        if self.fault_tolerance.spikes is not None and not saved:
            refuse("fault_tolerance.spikes", "rollback needs checkpoints; set checkpoint.every_steps")
        return self

    @model_validator(mode="after")
    def _check_patience(self) -> Self:
        hang, group = self.fault_tolerance.hang_timeout_s, self.parallel.process_group_timeout_s
        if hang is not None and hang >= group:
            refuse(
                "fault_tolerance.hang_timeout_s",
                f"{hang:g} is not less than parallel.process_group_timeout_s = {group}, after which a rank is killed "
                "without writing stacks; lower it, or set null",
            )
        return self

    @model_validator(mode="after")
    def _check_regularization(self) -> Self:
        if self.regularization.attention_dropout and self.parallel.cp > 1:
            refuse("regularization.attention_dropout", "needs whole sequences on each rank: set parallel.cp to 1")
        return self

    @model_validator(mode="after")
    def _check_sinkhorn(self) -> Self:
        for index, phase in enumerate(self.phases):
            if phase.balance == "sinkhorn" and self.model.n_group > 1:
                refuse(
                    f"phases.{index}.balance",
                    f"'sinkhorn' does not support expert groups (model.n_group: {self.model.n_group}); choose 'bias'",
                )
        return self


def declare_stage(stage: StageDeclaration) -> None:
    """Make a stage known: a run may name it, and has its sections, which are None in runs of other stages."""
    fields = RunConfig.__pydantic_fields__
    for name, kind in stage.sections.items():
        annotation: Any = kind | None
        if name in fields and fields[name].annotation != annotation:
            raise ValueError(f"stage {stage.name}: section '{name}' is already declared; choose another name")
        default = Field(default=None, description=f"settings of stage {stage.name}; null in other stages")
        after = {key: fields.pop(key) for key in tuple(fields)[tuple(fields).index("lora") :]}  # written after phases
        fields.update({name: FieldInfo.from_annotated_attribute(annotation, default)} | after)
    STAGES[stage.name] = stage
    RunConfig.model_rebuild(force=True)


for _stage in tuple(STAGES.values()):
    declare_stage(_stage)
