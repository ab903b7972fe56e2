"""What a run is: one section per concern, one YAML key per field.

A run trains one model through one or more phases (the report's pre-training, code, 32K and 128K stages), with
one learning-rate schedule over all of them. A check that concerns one section stands in that section, a check
between sections in `RunConfig`, and what depends on the number of processes in `glmforge.config.layout`.

Relative paths are relative to the working directory of the run, not to the file they are written in: a
configuration may be stored with the run and still mean the same.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from glmforge.config.model import ModelConfig, Strict, refuse

# YAML has neither paths nor pairs, so these two take a string and a list.
YamlPath = Annotated[Path, Field(strict=False)]
YamlPair = Annotated[tuple[float, float], Field(strict=False)]


class SourceConfig(Strict):
    """One token shard and how often it is drawn."""

    name: str = Field(min_length=1)
    path: YamlPath = Field(description="prefix of the .bin and .idx files")
    weight: PositiveFloat = Field(default=1.0, description="share of the tokens, relative to the other sources")


class DataConfig(Strict):
    """Where the tokens come from."""

    tokenizer: YamlPath = Field(description="directory written by 'glmforge data tokenizer'")
    sources: list[SourceConfig] = Field(min_length=1)
    held_out: list[SourceConfig] = Field(default=[], description="never trained on; weights are not used")
    num_workers: NonNegativeInt = Field(default=0, description="reading processes; 0 reads in the trainer's own")
    prefetch: PositiveInt = Field(default=2, description="batches that each reading process prepares ahead")

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for field in ("sources", "held_out"):
            _refuse_duplicates(field, [source.name for source in getattr(self, field)])
        return self


class PhaseConfig(Strict):
    """A stretch of training with one sequence length, batch size and mixture."""

    name: str = Field(min_length=1)
    tokens: PositiveInt | None = Field(default=None, description="length in tokens, rounded up to whole steps")
    steps: PositiveInt | None = Field(default=None, description="length in optimizer steps")
    seq_len: PositiveInt
    batch_size: PositiveInt = Field(description="sequences per optimizer step, all ranks together")
    document_mask: bool = Field(default=True, description="attention and loss stop at document borders")
    sources: dict[str, PositiveFloat] | None = Field(
        default=None, min_length=1, description="weights of this phase; a source not named is not drawn"
    )
    rope_theta: PositiveFloat | None = Field(default=None, description="None is the model's own")
    router_bias_rate: NonNegativeFloat = Field(default=1e-3, description="loss-free balance; 0 freezes the biases")
    aux_loss_weight: NonNegativeFloat = Field(default=1e-4, description="sequence-level balance loss")
    mtp_loss_weight: NonNegativeFloat = 0.3
    capacity_factor: PositiveFloat | None = Field(
        default=None,
        description="an expert takes at most this times the mean load of the tokens that a rank routes at once; "
        "None drops nothing",
    )

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    @property
    def num_steps(self) -> int:
        return self.steps if self.steps is not None else math.ceil((self.tokens or 0) / self.tokens_per_step)

    @property
    def num_samples(self) -> int:
        """Sequences that the phase consumes, all ranks together."""
        return self.num_steps * self.batch_size

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if (self.tokens is None) == (self.steps is None):
            both = "both are" if self.tokens is not None else "neither is"
            refuse(
                "tokens",
                f"give exactly one of 'tokens' and 'steps'; {both} set in phase '{self.name}' (null unsets)",
            )
        return self


class OptimConfig(Strict):
    """Muon for matrices, AdamW for the rest; one learning-rate schedule over all phases."""

    matrix_optimizer: Literal["muon", "adamw"] = "muon"
    lm_head: Literal["muon", "adamw"] = Field(default="muon", description="the report says Muon, others use AdamW")
    lr: PositiveFloat = 2.5e-4
    min_lr: NonNegativeFloat = 2.5e-5
    warmup_steps: NonNegativeInt | None = None
    warmup_tokens: NonNegativeInt | None = None
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    weight_decay: NonNegativeFloat = 0.1
    grad_clip: PositiveFloat | None = Field(default=1.0, description="global gradient norm; None does not clip")
    betas: YamlPair = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    muon_nesterov: bool = True
    muon_update_rms: PositiveFloat = 0.2
    newton_schulz: Literal["quintic", "polar_express"] = "quintic"
    newton_schulz_steps: PositiveInt = 5

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.warmup_steps is not None and self.warmup_tokens is not None:
            refuse("warmup_tokens", "give 'warmup_steps' or 'warmup_tokens', not both")
        if self.min_lr > self.lr:
            refuse("min_lr", f"{self.min_lr:g} is more than lr = {self.lr:g}")
        return self

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            refuse("betas", f"{list(self.betas)}: both must lie in [0, 1)")
        return self


class ParallelConfig(Strict):
    """How the model is laid out on the processes; see `glmforge.config.layout.resolve_layout`.

    The processes form a grid pp x dp_replicate x dp_shard x cp x tp, ranks of the last axis next to each other. Expert
    parallelism is laid over it: the `ep` ranks that share a layer's experts are neighbours among the
    dp_shard x cp x tp ranks of a pipeline stage, so `ep` does not multiply the number of processes.
    """

    pp: PositiveInt = Field(default=1, description="pipeline ranks, each with a share of the layers")
    dp_replicate: PositiveInt = Field(default=1, description="groups of ranks that hold full copies (HSDP)")
    dp_shard: PositiveInt | Literal["auto"] = Field(
        default="auto", description="data ranks that share one copy (FSDP); auto is what the other axes leave"
    )
    cp: PositiveInt = Field(default=1, description="ranks that share each sequence (context parallelism)")
    tp: PositiveInt = Field(default=1, description="ranks that share each matrix (tensor parallelism)")
    ep: PositiveInt = Field(default=1, description="ranks that share a layer's experts; laid over dp_shard x cp x tp")
    sequence_parallel: bool = Field(
        default=True, description="between matrices, tp ranks share the tokens instead of repeating norms and residuals"
    )
    context_method: Literal["gather", "ulysses"] = Field(
        default="gather", description="cp ranks gather keys and values, or exchange heads for tokens (ulysses)"
    )
    pipeline_schedule: Literal[
        "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev"
    ] = Field(default="1f1b", description="order of the micro-batches' forward and backward passes")
    pipeline_stages_per_rank: PositiveInt | None = Field(
        default=None, description="model parts on one pp rank; None is 1 for gpipe and 1f1b and 2 for the others"
    )
    pipeline_layers: list[NonNegativeInt] | None = Field(
        default=None, description="trunk layers of each stage, first to last; None balances the work"
    )
    micro_batch_size: PositiveInt | None = Field(
        default=None, description="sequences per forward on a rank; None takes its whole share at once"
    )
    reduce_gradients: Literal["every_micro_batch", "last_micro_batch"] = Field(
        default="every_micro_batch",
        description="last_micro_batch communicates once per step but keeps whole fp32 gradients meanwhile",
    )
    reshard_after_forward: bool | None = Field(
        default=None,
        description="free gathered weights between forward and backward; None does so but under pp, where each "
        "micro-batch would gather them anew",
    )
    prefetch_layers: NonNegativeInt = Field(default=1, description="layers whose weights are gathered ahead of use")
    cpu_offload: bool = Field(default=False, description="keep masters, gradients and optimizer state in host memory")
    recompute: Literal["none", "selective", "full", "budget"] = Field(
        default="none", description="what the backward pass computes again instead of keeping it"
    )
    recompute_budget: float = Field(
        default=0.5, ge=0, le=1, description="share of the activations that recompute: budget may keep; needs compile"
    )
    compile: bool = Field(default=False, description="torch.compile each decoder layer")
    process_group_timeout_s: PositiveInt = 600

    @property
    def reshards_after_forward(self) -> bool:
        return self.pp == 1 if self.reshard_after_forward is None else self.reshard_after_forward

    @model_validator(mode="after")
    def _check_resharding(self) -> Self:
        # A split backward pass looks the weights up before it gathers them: freed ones would lose their gradients.
        split = ("interleaved_zero_bubble", "zbv", "dualpipev")
        if self.pp > 1 and self.reshard_after_forward and self.pipeline_schedule in split:
            refuse(
                "reshard_after_forward",
                f"{self.pipeline_schedule} needs the weights until their gradients are computed: leave it out",
            )
        return self

    @model_validator(mode="after")
    def _check_recompute(self) -> Self:
        if self.recompute == "budget" and not self.compile:
            refuse(
                "recompute",
                "'budget' is torch.compile's choice of what to keep: set compile to true as well",
            )
        return self


class PrecisionConfig(Strict):
    """Compute type of the matmuls. Master weights, router, softmax and reductions are always fp32."""

    compute: Literal["bf16", "fp32"] = "bf16"


class CheckpointConfig(Strict):
    """When checkpoints are written and which are kept."""

    every_steps: PositiveInt | None = Field(default=None, description="None writes only the final one")
    keep_last: PositiveInt = 3
    keep_every_steps: PositiveInt | None = Field(default=None, description="these are never deleted")
    save_final: bool = True


class ObserveConfig(Strict):
    """What a run reports and how often. Steps are optimizer steps."""

    log_every: PositiveInt = 1
    communication_every: PositiveInt | None = Field(
        default=None,
        description="measure what is communicated along each axis on every n-th step; that step is slower",
    )
    tensorboard: bool = True
    progress: bool = True
    evaluate_every: PositiveInt | None = Field(default=None, description="None does not evaluate while training")
    evaluate_tokens: PositiveInt = Field(default=262_144, description="at most, per held-out source")


class FaultToleranceConfig(Strict):
    """What a run survives."""

    resume: Literal["auto", "never"] = Field(
        default="auto", description="auto goes on from the newest whole checkpoint"
    )
    max_nonfinite_steps: NonNegativeInt = Field(
        default=0,
        description="consecutive steps with a non-finite loss or gradient to skip before the run stops",
    )


class RunConfig(Strict):
    """A whole training run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="also the name of its directory")
    output_dir: YamlPath = Field(default_factory=lambda earlier: Path("runs") / earlier["name"])
    seed: NonNegativeInt = 0
    init_from: YamlPath | None = Field(
        default=None, description="Hugging Face directory whose weights the run begins with; None draws them from seed"
    )
    model: ModelConfig
    data: DataConfig
    phases: list[PhaseConfig] = Field(min_length=1)
    optim: OptimConfig = OptimConfig()
    parallel: ParallelConfig = ParallelConfig()
    precision: PrecisionConfig = PrecisionConfig()
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
        return sum(phase.num_steps * phase.tokens_per_step for phase in self.phases)

    def source_weights(self, phase: PhaseConfig) -> dict[str, float]:
        """Name -> weight of the sources that `phase` draws from, in the order of `data.sources`."""
        weights = {source.name: source.weight for source in self.data.sources}
        return weights if phase.sources is None else {n: phase.sources[n] for n in weights if n in phase.sources}

    @model_validator(mode="after")
    def _check_phases(self) -> Self:
        _refuse_duplicates("phases", [phase.name for phase in self.phases])
        names = [source.name for source in self.data.sources]
        for index, phase in enumerate(self.phases):
            if phase.seq_len > self.model.max_position_embeddings:
                limit = f"model.max_position_embeddings = {self.model.max_position_embeddings}"
                refuse(f"phases.{index}.seq_len", f"{phase.seq_len} is more than {limit}")
            for unknown in sorted(set(phase.sources or ()) - set(names)):
                refuse(
                    f"phases.{index}.sources.{unknown}",
                    f"no such source; data.sources has {', '.join(names)}",
                )
        return self

    @model_validator(mode="after")
    def _check_evaluation(self) -> Self:
        if self.observe.evaluate_every is not None and not self.data.held_out:
            refuse("observe.evaluate_every", "needs a token shard in data.held_out to evaluate on")
        return self


def _refuse_duplicates(field: str, names: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            refuse(field, f"the name '{name}' is used {count} times; give each its own")
