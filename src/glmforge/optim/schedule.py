"""The learning rate as a pure function of how far the run is: linear warm-up, then the schedule to its end.

One schedule spans all phases: GLM-4.5 warms up from 0 to 2.5e-4 and follows one cosine to 2.5e-5, reached at the end of
mid-training. Progress is counted in tokens: a run whose batches grow, whose phases change the sequence length, or that
continues with other batches follows the same curve. With batches of one size it is the curve over steps. Where batches
have no fixed number of tokens, as rollouts, `optim.schedule_unit: steps` counts steps. The curves are in
`glmforge.config.schedules`.

`wsd` (warm-up, stable, decay: Hu et al., 2024, arXiv 2404.06395) stays at `lr` until the last `decay_share` of the
tokens and then falls in a straight line: a run can be prolonged from any checkpoint before that. A decay that would
begin within the warm-up begins at its end.
"""

from collections.abc import Callable
from functools import partial

from glmforge.config.optim import OptimConfig
from glmforge.config.schedules import SCHEDULES
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError


def learning_rate_schedule(config: RunConfig) -> Callable[[float], float]:
    """The learning rate of the step that ends after this many tokens of the run, its own included, or after this many
    steps where `optim.schedule_unit` says so.

    With a warm-up the rate is 0 at 0 and exactly `lr` at its end (`warmup_steps` are steps as planned); the last
    step of the run has exactly `min_lr`, which stays beyond, but for `constant`. Raises `ConfigError` if the warm-up is
    longer than the run.
    """
    if config.optim.schedule_unit == "steps":
        warmup, total = config.optim.warmup_steps or 0, config.num_steps
        _refuse_longer(warmup, total, "steps")
        return partial(_learning_rate, config.optim, warmup, total)
    return partial(_learning_rate, config.optim, _warmup_tokens(config), config.num_tokens)


def _learning_rate(config: OptimConfig, warmup: int, total: int, behind: float) -> float:
    schedule = SCHEDULES[config.schedule]
    if behind < warmup:
        return config.lr * (behind / warmup)
    if schedule.remaining is None:
        return config.lr
    if behind >= total:
        return config.min_lr
    start = max(warmup, total * (1 - config.decay_share)) if schedule.decays_late else warmup
    done = max(0.0, (behind - start) / (total - start))
    return config.min_lr + (config.lr - config.min_lr) * schedule.remaining(done)


def _warmup_tokens(config: RunConfig) -> int:
    tokens, steps = config.optim.warmup_tokens, config.optim.warmup_steps
    if tokens is not None:
        _refuse_longer(tokens, config.num_tokens, "tokens")
        return tokens
    _refuse_longer(steps or 0, config.num_steps, "steps")
    return config.tokens_after(steps or 0)


def _refuse_longer(warmup: int, total: int, unit: str) -> None:
    if warmup > total:
        raise ConfigError(f"optim.warmup_{unit}: {warmup:,} is more than the {total:,} {unit} of the run; shorten it")
