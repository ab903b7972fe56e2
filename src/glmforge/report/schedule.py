"""The schedule of a run in numbers, before it runs: what `glmforge plan --schedule` draws and tabulates.

Everything follows from the configuration except the mixture: a source's cap on epochs moves what its weight asks for
beyond it to the others, which depends on how much the source holds. Where the token shards exist, the draws are those
of training itself (`glmforge.data.stream.curriculum`); where they do not, as in a plan made before the data,
they are what the weights ask for, and the schedule says so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from glmforge.config.data import SourceConfig
from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import DataError
from glmforge.observe.units import format_count
from glmforge.optim.schedule import learning_rate_schedule


class Draw(NamedTuple):
    """What a phase takes of a source. `epochs` is None if the size of the source is unknown."""

    share: float
    tokens: float
    epochs: float | None


Draws = dict[str, dict[str, Draw]]
"""Phase -> source -> draw; a source that a phase does not draw from is absent."""


class Span(NamedTuple):
    """Tokens [start, stop) of the run, taken in batches of `batch_tokens`."""

    start: int
    stop: int
    batch_tokens: int


@dataclass(frozen=True)
class PlannedPhase:
    """A phase in its place: tokens [start, stop) of the run, with the learning rates of its first and last step."""

    config: PhaseConfig
    start: int
    stop: int
    first_lr: float
    last_lr: float
    rope_theta: float
    draws: dict[str, Draw]

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def spans(self) -> list[Span]:
        """Stretches of one batch size."""
        seq_len = self.config.seq_len
        return [
            Span(self.start + s.first_sample * seq_len, self.start + s.stop * seq_len, s.batch_size * seq_len)
            for s in self.config.batch_spans
        ]


@dataclass(frozen=True)
class Schedule:
    """The whole run. `learning_rate` is a function of its tokens. `missing` are the sources whose shards do not exist;
    if there is one, draws are as asked."""

    config: RunConfig
    phases: list[PlannedPhase]
    learning_rate: Callable[[float], float]
    missing: list[str]

    @property
    def lr_by_steps(self) -> bool:
        """Whether the learning rate follows steps."""
        return self.config.optim.schedule_unit == "steps"

    @property
    def tokens(self) -> int:
        return self.phases[-1].stop

    @property
    def warmup_tokens(self) -> int:
        """Tokens of the warm-up."""
        optim = self.config.optim
        return self.config.tokens_after(optim.warmup_steps or 0) if optim.warmup_tokens is None else optim.warmup_tokens

    @cached_property
    def sources(self) -> list[str]:
        """Sources that some phase draws from, in the order of the configuration."""
        drawn = {name for phase in self.phases for name in phase.draws}
        return [source.name for source in self.config.data.sources if source.name in drawn]

    def total(self, source: str) -> Draw:
        """What the whole run takes of a source."""
        draws = [phase.draws[source] for phase in self.phases if source in phase.draws]
        tokens = sum(draw.tokens for draw in draws)
        epochs = [draw.epochs for draw in draws if draw.epochs is not None]
        return Draw(tokens / self.tokens, tokens, sum(epochs) if len(epochs) == len(draws) else None)


def plan_schedule(config: RunConfig, *, look_at_data: bool = True) -> Schedule:
    """The schedule of a run; `look_at_data` opens the sources' shards where they all exist.

    Raises:
        ConfigError: the warm-up is longer than the run.
        DataError: a shard is damaged, or holds too little for what the phases ask of it.
    """
    missing = [source.name for source in config.data.sources if not _exists(source)]
    draws = _exact_draws(config) if look_at_data and not missing else _asked(config)
    learning_rate = _learning_rate(config)
    phases, start = [], 0
    for phase in config.phases:
        stop = start + phase.num_samples * phase.seq_len
        first_step = start + phase.batch_spans[0].batch_size * phase.seq_len
        theta = config.model.rope_theta if phase.rope_theta is None else phase.rope_theta
        rates = learning_rate(first_step), learning_rate(stop)
        phases.append(PlannedPhase(phase, start, stop, *rates, theta, draws[phase.name]))
        start = stop
    return Schedule(config, phases, learning_rate, missing if look_at_data else [])


def _learning_rate(config: RunConfig) -> Callable[[float], float]:
    """The learning rate after this many tokens of the run, also where it follows steps."""
    rate = learning_rate_schedule(config)
    if config.optim.schedule_unit == "tokens":
        return rate
    spans = [(span.num_steps, span.batch_size * phase.seq_len) for phase in config.phases for span in phase.batch_spans]

    def at_tokens(tokens: float) -> float:
        steps = 0.0
        for num_steps, batch_tokens in spans:
            taken = min(float(num_steps), tokens / batch_tokens)
            steps, tokens = steps + taken, tokens - taken * batch_tokens
        return rate(steps)

    return at_tokens


def _exists(source: SourceConfig) -> bool:
    return source.path.with_name(f"{source.path.name}.idx").is_file()


def _asked(config: RunConfig) -> Draws:
    """By weight alone."""
    draws: Draws = {}
    for phase in config.phases:
        weights, tokens = config.source_weights(phase), phase.num_samples * phase.seq_len
        total = sum(weights.values())
        draws[phase.name] = {name: Draw(w / total, w / total * tokens, None) for name, w in weights.items()}
    return draws


def _exact_draws(config: RunConfig) -> Draws:
    """As training will draw, caps on epochs included."""
    from glmforge.data.stream.curriculum import Curriculum  # imports torch: only those who have data pay
    from glmforge.data.tokens.shards import TokenShard

    if not config.data.tokenizer.is_dir():
        raise DataError(f"data.tokenizer: {config.data.tokenizer}: no such directory, although the shards exist")
    shards = {source.name: TokenShard(source.path) for source in config.data.sources}
    draws: Draws = {phase.name: {} for phase in config.phases}
    tokens = {phase.name: phase.num_samples * phase.seq_len for phase in config.phases}
    for draw in Curriculum(config, shards).planned_draws():
        if draw.samples:
            draws[draw.phase][draw.source] = Draw(draw.tokens / tokens[draw.phase], draw.tokens, draw.epochs)
    return draws


TOKENS_OF_STEPS = "The learning rate counts steps; tokens are those of full batches."

NUM_SIZES = 6
"""So many columns of `phase_columns` tell a phase's size and learning rate, the others its settings."""


def phase_columns() -> list[str]:
    """Headings of `phase_rows`."""
    sizes = ["phase", "tokens", "steps", "sequence", "batch, tokens", "learning rate"]
    return [*sizes, "packing", "mask", "RoPE base", "FIM", "router bias", "aux", "MTP"]


def phase_rows(schedule: Schedule) -> Iterator[list[str]]:
    """A row of words per phase."""
    for phase in schedule.phases:
        config, batches = phase.config, [span.batch_tokens for span in phase.spans]
        yield [
            config.name,
            format_count(phase.tokens),
            f"{config.num_steps:,}",
            f"{config.seq_len:,}",
            _from_to(*(format_count(size) for size in (batches[0], batches[-1]))),
            _from_to(rate_words(phase.first_lr), rate_words(phase.last_lr)),
            config.packing.replace("_", " "),
            "documents" if config.document_mask else "none",
            *settings_words(phase).values(),
        ]


def settings_words(phase: PlannedPhase) -> dict[str, str]:
    """What is constant over a phase and not shown elsewhere, in the order of `phase_columns`."""
    config = phase.config
    return {
        "RoPE base": rate_words(phase.rope_theta),
        "FIM": f"{config.fim_rate:g}",
        "router bias": rate_words(config.router_bias_rate) if config.balance == "bias" else config.balance,
        "aux": rate_words(config.aux_loss_weight),
        "MTP": f"{config.mtp_loss_weight:g}",
    }


def rate_words(value: float) -> str:
    """0.00025 -> '2.5e-4', 1000000 -> '1e6', 0.3 -> '0.3': at most three digits."""
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:.3g}"
    digits, exponent = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def _from_to(first: str, last: str) -> str:
    return first if first == last else f"{first} → {last}"


def source_rows(schedule: Schedule) -> Iterator[list[str]]:
    """Per source: name, tokens of the run, share, epochs and cap, then its share of each phase."""
    caps = {source.name: source.max_epochs for source in schedule.config.data.sources}
    for name in schedule.sources:
        total, cap = schedule.total(name), caps[name]
        shares = (phase.draws.get(name) for phase in schedule.phases)
        yield [
            name,
            format_count(total.tokens),
            f"{total.share:.1%}",
            "unknown" if total.epochs is None else f"{total.epochs:.3g}",
            "" if cap is None else f"{cap:g}",
            *("" if draw is None else _share_words(draw) for draw in shares),
        ]


def _share_words(draw: Draw) -> str:
    epochs = "" if draw.epochs is None else f" ({draw.epochs:.2g} epochs)"
    return f"{draw.share:.1%}{epochs}"
