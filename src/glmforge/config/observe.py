"""`observe`: what a run reports, how often, and what it does about it."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from glmforge.config.fields import YamlPath, refuse_duplicates
from glmforge.config.model import Strict, refuse
from glmforge.config.needles import NeedlesConfig

HELD_OUT_METRICS = ("bits_per_byte", "nll")


class AnomalyConfig(Strict):
    """A step whose loss or gradient norm lies far above the steps before it is recorded with its samples."""

    window: int = Field(default=128, ge=8, description="steps that it is compared with")
    threshold: PositiveFloat = Field(
        default=8.0, description="robust standard deviations (from the median absolute deviation) above their median"
    )


class EarlyStoppingConfig(Strict):
    """Stop when an evaluation no longer improves."""

    metric: str = Field(
        default="bits_per_byte",
        description="bits_per_byte or nll of held-out text (lower is better), or a benchmark of observe.benchmarks",
    )
    source: str | None = Field(default=None, description="name in data.held_out; None takes the mean over all")
    patience: PositiveInt = Field(default=3, description="evaluations without improvement after which the run stops")
    min_delta: NonNegativeFloat = Field(default=0.0, description="an improvement is at least this much")


class BenchmarksConfig(Strict):
    """Benchmarks that the model answers every so many steps, on all ranks. Needs `glmforge[eval]`."""

    names: list[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1, description="as `glmforge evaluate --benchmark` takes them, such as gsm8k or a task's YAML file"
    )
    data: YamlPath | None = Field(default=None, description="directory with the benchmarks' files")
    every_steps: PositiveInt = Field(description="also after the last step")
    limit: PositiveInt | None = Field(
        default=100, description="items of each, taken evenly, the same every time; None takes all"
    )
    chat: bool = Field(default=False, description="ask through the chat template")
    thinking: bool = Field(default=False, description="with chat: let the model reason before it answers")
    max_new_tokens: PositiveInt = Field(default=256, description="longest answer")
    cache_bytes: PositiveInt = Field(default=1 << 28, description="memory for keys and values on each rank, at most")

    @property
    def measured(self) -> list[str]:
        """What the benchmarks are called in records: task files without their ending."""
        return [name.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml") for name in self.names]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        refuse_duplicates("names", self.measured)
        return self


class SamplesConfig(Strict):
    """Texts that the model writes at every evaluation: to given prompts, to prompts of held-out conversations, or both.

    A run of stage sft has answers to held-out prompts by default; see `glmforge.config.stage`.
    """

    prompts: list[Annotated[str, Field(min_length=1)]] = Field(default=[], description="what texts begin with")
    held_out: NonNegativeInt = Field(
        default=0,
        description="answer so many prompts of each source in data.held_out that is conversations (a file of them, or "
        "a shard with loss weights): what comes before the last answer, which is kept as reference",
    )
    num_samples: PositiveInt = Field(default=1, description="texts to each prompt")
    max_new_tokens: PositiveInt = Field(default=64, description="length of each, unless it ends before")
    temperature: NonNegativeFloat = Field(default=1.0, description="0 takes the likeliest token")
    top_p: float = Field(default=1.0, gt=0, le=1, description="draw from the likeliest tokens of this probability")
    seed: NonNegativeInt = Field(default=0, description="the same at every evaluation")
    cache_bytes: PositiveInt = Field(default=1 << 28, description="memory for keys and values on each rank, at most")
    weight_bytes: NonNegativeInt | None = Field(
        default=None, description="memory for gathered weights on each rank, at most; None gathers nothing twice"
    )

    @model_validator(mode="after")
    def _check_prompts(self) -> Self:
        if not self.prompts and not self.held_out:
            refuse("prompts", "there are none to write to: give some, set held_out, or set samples: null")
        return self


class DebugConfig(Strict):
    """For a run that misbehaves; slower."""

    detect_anomaly: bool = Field(default=False, description="autograd names the operation that made a NaN")
    layer_grad_norms: bool = Field(default=False, description="record the gradient norm of every layer")
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class ObserveConfig(Strict):
    """What a run reports and how often. Steps are optimizer steps."""

    log_every: PositiveInt = 1
    communication_every: PositiveInt | None = Field(
        default=None,
        description="measure what is communicated along each axis on every n-th step; that step is slower",
    )
    straggler_every: PositiveInt | None = Field(
        default=None, description="compare the ranks' own time, without waiting, on every n-th step; None: never"
    )
    straggler_ratio: float = Field(default=1.25, gt=1, description="own time over the median that is reported")
    tensorboard: bool = True
    tensorboard_dir: YamlPath | None = Field(
        default=None,
        description="where TensorBoard's files are written, of this run alone; <output_dir>/tensorboard becomes a link "
        "there. None is that directory itself",
    )
    progress: bool = True
    evaluate_every: PositiveInt | None = Field(default=None, description="None does not evaluate while training")
    evaluate: Literal["subset", "full"] = Field(
        default="subset",
        description="how much of the held-out sources is scored: a subset, the same at every evaluation, or all",
    )
    evaluate_tokens: PositiveInt = Field(
        default=262_144, description="of a subset: at most so many labels of each source, spread evenly over it"
    )
    evaluate_samples: PositiveInt | None = Field(
        default=None,
        description="a subset of so many samples of each source instead: conversations, or rows of text, drawn by "
        "evaluate_seed; None takes evaluate_tokens",
    )
    evaluate_seed: NonNegativeInt = Field(default=42, description="which samples evaluate_samples draws")
    early_stopping: EarlyStoppingConfig | None = None
    samples: SamplesConfig | None = Field(
        default=None,
        description="texts written at evaluations. None: none; by default in stage sft answers to held-out prompts",
    )
    needles: NeedlesConfig | None = Field(default=None, description="None does not test retrieval at evaluations")
    benchmarks: BenchmarksConfig | None = Field(default=None, description="None asks no benchmarks while training")
    anomalies: AnomalyConfig | None = Field(default=AnomalyConfig(), description="None records none")
    debug: DebugConfig = DebugConfig()

    def measured_every(self, metric: str) -> int | None:
        """The steps between two values of a metric that a run may stop or keep checkpoints by; None if there are none.

        Held-out text gives `HELD_OUT_METRICS`, and each benchmark the metric of its name.
        """
        if metric in HELD_OUT_METRICS:
            return self.evaluate_every
        return self.benchmarks.every_steps if self.benchmarks and metric in self.benchmarks.measured else None

    @model_validator(mode="after")
    def _check_subset(self) -> Self:
        if self.evaluate == "full" and self.evaluate_samples is not None:
            refuse("evaluate_samples", "is of a subset, and evaluate is full; leave one of them out")
        return self
