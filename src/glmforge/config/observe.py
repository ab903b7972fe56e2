"""`observe`: what a run reports, how often, and what it does about it."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from glmforge.config.fields import YamlPath, refuse_duplicates
from glmforge.config.model import Strict, refuse
from glmforge.config.needles import NeedlesConfig

HELD_OUT_METRICS = ("bits_per_byte", "nll")


class AnomalyConfig(Strict):
    """A step whose loss or gradient norm lies far above the steps before it is recorded with its samples."""

    window: int = Field(default=128, ge=8, description="window of window of steps that it is compared with")
    threshold: PositiveFloat = Field(
        default=8.0,
        description="threshold: robust standard deviations (from the median absolute deviation) above "
        "the window's median",
    )


class EarlyStoppingConfig(Strict):
    """Stop when an evaluation no longer improves."""

    metric: str = Field(
        default="bits_per_byte",
        description="bits_per_byte or nll of held-out text (lower is better), or a benchmark of observe.benchmarks",
    )
    source: str | None = Field(default=None, description="name in data.held_out; None: mean over all")
    patience: PositiveInt = Field(default=3, description="evaluations without improvement after which the run stops")
    min_delta: NonNegativeFloat = Field(default=0.0, description="smallest change that counts as an improvement")


class BenchmarksConfig(Strict):
    """Benchmarks that the model answers while it is trained, on all ranks. Needs `glmforge[eval]`."""

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
        """The names of the benchmarks in records: task files without their ending."""
        return [name.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml") for name in self.names]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        refuse_duplicates("names", self.measured)
        return self


class SamplesConfig(Strict):
    """Texts that the model writes at every evaluation: to given prompts, to prompts of held-out conversations, or both.

    A run of stage sft has answers to held-out prompts by default; see `glmforge.config.stage`.
    """

    prompts: list[Annotated[str, Field(min_length=1)]] = Field(default=[], description="prompts to continue")
    held_out: NonNegativeInt = Field(
        default=0,
        description="prompts to answer from each conversation source in data.held_out (a conversation file, or a "
        "shard with loss weights): everything before the last answer, which is recorded as the reference",
    )
    num_samples: PositiveInt = Field(default=1, description="samples per prompt")
    max_new_tokens: PositiveInt = Field(default=64, description="longest sample, in tokens")
    temperature: NonNegativeFloat = Field(default=1.0, description="0: greedy decoding")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="nucleus sampling: smallest set of tokens with this total probability"
    )
    seed: NonNegativeInt = Field(default=0, description="sampling seed, sampling seed, the same at every evaluation")
    cache_bytes: PositiveInt = Field(default=1 << 28, description="most memory for the KV cache on each rank")
    weight_bytes: NonNegativeInt | None = Field(
        default=None,
        description="most memory for gathered weights on each rank; None: unlimited, no weight is gathered twice",
    )

    @model_validator(mode="after")
    def _check_prompts(self) -> Self:
        if not self.prompts and not self.held_out:
            refuse(
                "prompts", "is empty, so there is nothing to sample; add prompts, set held_out, or set samples: null"
            )
        return self


class PrometheusConfig(Strict):
    """Metrics that Prometheus fetches from the run while it trains. Needs `glmforge[observe]`."""

    port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="0: any free port, written to <output_dir>/exporter; else that of a node's first rank, its further "
        "ranks use the next ones",
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on; beyond the loopback, whoever reaches the port can read the metrics",
    )
    ranks: Literal["first", "all"] = Field(
        default="first", description="all: ranks other than 0 export their own times and memory, 12 series each"
    )
    guide_names: bool = Field(
        default=False, description="add training_loss, nccl_busbw_gbps and others; see metrics.md"
    )
    expert_load: bool = Field(default=False, description="add the load of every expert of every layer")


class TrackingConfig(Strict):
    """An experiment tracker with the API of Weights & Biases. Needs `glmforge[tracking]`, or trackio."""

    package: Literal["wandb", "trackio"] = Field(default="wandb", description="which one")
    project: str = Field(min_length=1, max_length=128, description="project of the tracker")
    name: str | None = Field(default=None, min_length=1, max_length=128, description="None: the run's name")
    mode: Literal["online", "offline", "disabled"] = Field(
        default="online",
        description="of wandb: send at once, or write to <output_dir>/wandb for 'wandb sync'; disabled: no tracker. "
        "trackio writes to this machine, or to the Space that TRACKIO_SPACE_ID names",
    )


class DebugConfig(Strict):
    """For a run that misbehaves; slower."""

    detect_anomaly: bool = Field(
        default=False, description="autograd anomaly mode: name the operation that produced a NaN"
    )
    layer_grad_norms: bool = Field(default=False, description="record the gradient norm of every layer")
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class LogsConfig(Strict):
    """Log messages in files of the run, one per rank: `<run>/logs/rank-00000.log`; older ones are `.log.1` ..."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe messages written; observe.debug.log_level limits the messages made"
    )
    per_rank_files: bool = Field(default=True, description="false: only rank 0 writes a file")
    format: Literal["text", "json"] = Field(default="text", description="json: one object per line")
    max_bytes: int = Field(default=16 << 20, ge=4096, description="size at which a file is rotated")
    keep: NonNegativeInt = Field(default=2, description="older files kept per rank")


class ObserveConfig(Strict):
    """What a run reports and how often. Steps are optimizer steps."""

    log_every: PositiveInt = 1
    communication_every: PositiveInt | None = Field(
        default=None,
        description="profile the communication of each axis every n steps; those steps are slower",
    )
    straggler_every: PositiveInt | None = Field(
        default=None, description="compare the ranks' compute time, without waiting, every n steps; None: never"
    )
    straggler_ratio: float = Field(
        default=1.25, gt=1, description="report ranks whose compute time exceeds the median by this factor"
    )
    tensorboard: bool = True
    tensorboard_dir: YamlPath | None = Field(
        default=None,
        description="where TensorBoard files are written: a directory for this run alone; <output_dir>/tensorboard "
        "becomes a link to it. None: <output_dir>/tensorboard itself",
    )
    progress: bool = True
    evaluate_every: PositiveInt | None = Field(default=None, description="None: no evaluation during training")
    evaluate: Literal["subset", "full"] = Field(
        default="subset",
        description="how much of the held-out sources to score: a subset, sampling seed, the same at every "
        "evaluation, or all",
    )
    evaluate_tokens: PositiveInt = Field(
        default=262_144, description="size of the subset: most labels per source, spread evenly over it"
    )
    evaluate_samples: PositiveInt | None = Field(
        default=None,
        description="size of the subset in samples per source (conversations, or rows of text), drawn with "
        "evaluate_seed; None: use evaluate_tokens",
    )
    evaluate_seed: NonNegativeInt = Field(default=42, description="seed for evaluate_samples")
    early_stopping: EarlyStoppingConfig | None = None
    samples: SamplesConfig | None = Field(
        default=None,
        description="samples written at evaluations. None: no samples; default in stage sft: answers to held-out "
        "prompts",
    )
    needles: NeedlesConfig | None = Field(default=None, description="None: no retrieval tests at evaluations")
    benchmarks: BenchmarksConfig | None = Field(default=None, description="None: no benchmarks while training")
    anomalies: AnomalyConfig | None = Field(default=AnomalyConfig(), description="None: no profile")
    prometheus: PrometheusConfig | None = Field(default=None, description="None: no exporter")
    tracking: TrackingConfig | None = Field(default=None, description="None: no experiment tracker")
    debug: DebugConfig = DebugConfig()
    logs: LogsConfig | None = Field(default=None, description="None: log messages go to stderr only")

    @model_validator(mode="after")
    def _check_subset(self) -> Self:
        if self.evaluate == "full" and self.evaluate_samples is not None:
            refuse("evaluate_samples", "selects a subset, but evaluate is full; remove one of them")
        return self
