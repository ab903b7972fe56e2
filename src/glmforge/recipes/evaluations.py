"""What a run of token shards evaluates while it trains: held-out text, samples, needles, benchmarks."""

from collections.abc import Iterator
from functools import partial

from glmforge.config.needles import NeedlesConfig
from glmforge.config.observe import BenchmarksConfig, ObserveConfig
from glmforge.config.schema import RunConfig
from glmforge.data.needles.build import NeedleTests
from glmforge.data.needles.haystack import make_haystack
from glmforge.data.stream.evaluation import DrawnSamples, Subset
from glmforge.errors import ConfigError, DataError
from glmforge.evaluate.bits_per_byte import evaluate_held_out
from glmforge.evaluate.needles import score_needles
from glmforge.evaluate.needles_generated import generate_needles
from glmforge.evaluate.samples import SampleWriter
from glmforge.extras import needed_for
from glmforge.recipes.run_data import RunData
from glmforge.training import hooks
from glmforge.training.hooks.benchmarks import Asker
from glmforge.training.hooks.needles import FindNeedles
from glmforge.training.trainer import Hook


def evaluations(config: RunConfig, data: RunData) -> Iterator[Hook]:
    """The hooks that `config.observe` asks for."""
    observe = config.observe
    if observe.evaluate_every is not None:
        yield from _at_evaluations(config, data, observe.evaluate_every)
    if observe.benchmarks is not None:
        yield hooks.BenchmarksHook(observe.benchmarks.every_steps, _asker(observe.benchmarks, data))
    if observe.early_stopping is not None:
        yield hooks.EarlyStoppingHook(observe.early_stopping)


def _at_evaluations(config: RunConfig, data: RunData, every_steps: int) -> Iterator[Hook]:
    observe = config.observe
    evaluate = partial(
        evaluate_held_out,
        held_out=data.held_out,
        tokenizer=data.tokenizer,
        seq_len=max(phase.seq_len for phase in config.phases),
        subset=_subset(observe),
    )
    continues = config.init_from is not None
    yield hooks.EvaluationHook(every_steps, evaluate, from_given_weights=continues)
    if observe.samples is not None:
        yield hooks.SamplesHook(SampleWriter(observe.samples, config.model, data.tokenizer, data.held_out))
    if observe.needles is not None:
        yield hooks.NeedlesHook(_needles(config, observe.needles, data))


def _asker(benchmarks: BenchmarksConfig, data: RunData) -> Asker:
    """Raises `MissingPackageError` without the extra `eval`, and `ConfigError` for benchmarks that cannot be opened."""
    with needed_for("observe.benchmarks"):
        import lm_eval  # noqa: F401
    from glmforge.evaluate.benchmarks.in_training import BenchmarkAsker

    return BenchmarkAsker(benchmarks, data.tokenizer)


def _subset(observe: ObserveConfig) -> Subset:
    if observe.evaluate == "full":
        return None
    number = observe.evaluate_samples
    return observe.evaluate_tokens if number is None else DrawnSamples(number, observe.evaluate_seed)


def _needles(config: RunConfig, needles: NeedlesConfig, data: RunData) -> FindNeedles:
    """Takes the tests that are no longer than the phase's sequences."""
    shard = next((each.shard for each in data.held_out if each.name == needles.haystack), None)
    try:
        tests = NeedleTests(needles, data.tokenizer, make_haystack(shard, data.tokenizer))
    except DataError as error:
        raise ConfigError(f"observe.needles.{error}") from error
    find = score_needles if needles.answers == "scored" else generate_needles
    fitting = {phase.name: [n for n in needles.lengths if n <= phase.seq_len] for phase in config.phases}
    return lambda model, phase, alive: find(model, tests, fitting[phase], alive) if fitting[phase] else []
