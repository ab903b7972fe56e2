"""What follows from a phase: its batch sizes, steps and samples, and how its kinds of balance exclude each other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.config.load import dump_config, load_config
from glmforge.config.phase import BatchSpan, PhaseConfig
from glmforge.errors import ConfigError
from helpers.models import run_config


def phase(**fields: object) -> PhaseConfig:
    return PhaseConfig.model_validate({"name": "main", "seq_len": 10, "batch_size": 8} | fields)


def ramp(start: int = 2, increment: int = 2, tokens: int = 300) -> dict[str, int]:
    return {"start": start, "increment": increment, "tokens": tokens}


def test_without_a_ramp_there_is_one_span() -> None:
    assert phase(tokens=161).batch_spans == (BatchSpan(0, 8, 3),)
    assert phase(steps=4).batch_spans == (BatchSpan(0, 8, 4),)


def test_a_ramp_gives_each_size_an_equal_share_of_its_tokens() -> None:
    # 100 tokens for each of 2, 4 and 6 sequences of 10 tokens: 5, 3 (2.5) and 2 (1.67) whole steps.
    grown = phase(tokens=700, batch_ramp=ramp())
    assert grown.batch_spans == (BatchSpan(0, 2, 5), BatchSpan(10, 4, 3), BatchSpan(22, 6, 2), BatchSpan(34, 8, 5))
    assert (grown.num_steps, grown.num_samples) == (15, 74)
    assert [grown.batch_size_at(sample) for sample in (0, 9, 10, 33, 34, 73, 1000)] == [2, 2, 4, 6, 8, 8, 8]


def test_a_phase_may_end_inside_its_ramp() -> None:
    assert phase(steps=6, batch_ramp=ramp()).batch_spans == (BatchSpan(0, 2, 5), BatchSpan(10, 4, 1))
    assert phase(tokens=130, batch_ramp=ramp()).batch_spans == (BatchSpan(0, 2, 5), BatchSpan(10, 4, 1))


@settings(deadline=None)
@given(
    start=st.integers(1, 5),
    increment=st.integers(1, 4),
    growths=st.integers(1, 5),
    ramp_tokens=st.integers(1, 5000),
    tokens=st.integers(1, 10_000),
)
def test_spans_follow_each_other_and_reach_the_tokens(
    start: int, increment: int, growths: int, ramp_tokens: int, tokens: int
) -> None:
    grown = phase(batch_size=start + growths * increment, tokens=tokens, batch_ramp=ramp(start, increment, ramp_tokens))
    position = 0
    for span in grown.batch_spans:
        assert span.first_sample == position
        assert span.num_steps > 0
        position = span.stop
    # The last step is the first to reach the tokens.
    assert (position - grown.batch_spans[-1].batch_size) * 10 < tokens <= position * 10


def test_tokens_after_steps_run_over_spans_and_phases() -> None:
    two = [
        {"name": "a", "seq_len": 16, "batch_size": 8, "steps": 4, "batch_ramp": ramp(4, 4, 128)},
        {"name": "b", "seq_len": 32, "batch_size": 8, "steps": 2},
    ]
    config = run_config(phases=two)
    assert [config.tokens_after(steps) for steps in range(8)] == [0, 64, 128, 256, 384, 640, 896, 896]
    assert config.num_tokens == 896
    # By samples: two steps of 4, two of 8; then two of 8. A step that is begun counts.
    assert [config.steps_before({"a": sample}) for sample in (0, 1, 4, 8, 9, 16, 24, 30)] == [0, 1, 1, 2, 3, 3, 4, 4]
    assert config.steps_before({"a": 24, "b": 8, "gone": 3}) == 5


@pytest.mark.parametrize(
    ("balance", "bias_rate", "aux_weight"), [("bias", 1e-3, 1e-4), ("aux", 0.0, 1e-2), ("sinkhorn", 0.0, 0.0)]
)
def test_balance_has_fitting_defaults_that_survive_a_dump(balance: str, bias_rate: float, aux_weight: float) -> None:
    main = {"name": "main", "seq_len": 16, "batch_size": 8, "steps": 4, "balance": balance}
    config = load_config(dump_config(run_config(phases=[main])))
    assert (config.phases[0].router_bias_rate, config.phases[0].aux_loss_weight) == (bias_rate, aux_weight)


ASKED = "observe.benchmarks={names: [gsm8k, tasks/sums.yaml], every_steps: 100}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["phases.0.balance=aux", "phases.0.router_bias_rate=0.1"],
            "phases.0.router_bias_rate: 0.1 updates biases, but balance is 'aux'; remove",
        ),
        (["phases.0.balance=aux", "phases.0.aux_loss_weight=0"], "phases.0.aux_loss_weight: 0 disables all balancing"),
        (["phases.0.batch_ramp={start: 3, increment: 2, tokens: 10}"], "phases.0.batch_ramp.start: 3 does not grow"),
        (["phases.0.fim_rate=0.5"], "phases.0.fim_rate: 0.5, but phase 'main' has no code source; set code: true"),
        (["phases.0.balance=sinkhorn", "model.n_group=2"], "phases.0.balance: 'sinkhorn' does not support expert"),
        (["regularization.attention_dropout=0.1", "parallel.cp=2"], "regularization.attention_dropout: needs whole"),
        (["fault_tolerance.hang_timeout_s=600"], "fault_tolerance.hang_timeout_s: 600 is not less than"),
        (
            ["fault_tolerance.spikes={}"],
            r"fault_tolerance.spikes: rollback needs checkpoints; set "
            r"checkpoint\.every_steps",
        ),
        (["observe.early_stopping={}"], "observe.early_stopping: needs evaluations"),
        (
            ["observe.early_stopping.metric=mmlu"],
            "observe.early_stopping.metric: 'mmlu' is not measured; choose one of",
        ),
        (
            [ASKED, "observe.early_stopping={metric: gsm8k, source: text}"],
            "observe.early_stopping.source: 'gsm8k' is a benchmark",
        ),
        (["observe.benchmarks={names: [a.yaml, b/a.yml], every_steps: 1}"], "the name 'a' is used 2 times"),
        (["checkpoint.keep_best={metric: nll, mode: min}"], "checkpoint.keep_best: needs evaluations"),
        (
            [ASKED, "checkpoint.keep_best={metric: mmlu, mode: max}"],
            "checkpoint.keep_best.metric: 'mmlu' is not measured; choose one of bits_per_byte, nll, gsm8k, sums",
        ),
        (
            [ASKED, "checkpoint.keep_best={metric: sums, mode: max}", "checkpoint.every_steps=250"],
            "checkpoint.keep_best: sums is measured every 100 steps: set checkpoint.every_steps to a multiple",
        ),
        (
            ["checkpoint.every_steps=5", "checkpoint.ephemeral_every_steps=5"],
            "checkpoint.ephemeral_every_steps: 5 must be less than every_steps",
        ),
    ],
)
def test_combinations_that_cannot_be_are_refused(overrides: list[str], message: str) -> None:
    main = {"name": "main", "seq_len": 16, "batch_size": 8, "steps": 4}
    text = "\n".join(
        line
        for line in dump_config(run_config(phases=[main])).splitlines()
        if not line.strip().startswith(("router_bias_rate", "aux_loss_weight"))
    )
    with pytest.raises(ConfigError, match=message):
        load_config(text, overrides)
