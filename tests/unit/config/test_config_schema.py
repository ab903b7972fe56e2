from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.errors import ConfigError


def test_defaults_are_the_report_s() -> None:
    text = "\n".join(
        [
            "name: r",
            "model: tiny",
            "data: {tokenizer: t, sources: [{name: a, path: d/a}]}",
            "phases: [{name: p, steps: 2, seq_len: 32, batch_size: 4}]",
        ]
    )
    config = load_config(text)
    assert config.output_dir == Path("runs/r")
    phase, optim = config.phases[0], config.optim
    assert (phase.router_bias_rate, phase.aux_loss_weight, phase.mtp_loss_weight) == (1e-3, 1e-4, 0.3)
    assert (optim.matrix_optimizer, optim.lm_head, optim.schedule) == ("muon", "muon", "cosine")
    assert (optim.lr, optim.min_lr, optim.weight_decay) == (2.5e-4, 2.5e-5, 0.1)
    assert (optim.muon_momentum, optim.muon_update_rms, optim.newton_schulz_steps) == (0.95, 0.2, 5)
    assert config.precision.compute == "bf16"


@pytest.mark.parametrize(
    ("length", "num_steps"),
    [({"steps": 7}, 7), ({"tokens": 4096}, 1), ({"tokens": 4097}, 2), ({"tokens": 40_960}, 10)],
)
def test_length_of_a_phase(run_yaml: str, length: dict[str, int], num_steps: int) -> None:
    config = load_config(run_yaml, ["phases.0.steps=null", *(f"phases.0.{k}={v}" for k, v in length.items())])
    (phase,) = config.phases
    assert phase.tokens_per_step == 16 * 256
    assert phase.num_steps == config.num_steps == num_steps
    assert phase.num_samples == 16 * num_steps
    assert config.num_tokens == 4096 * num_steps


def test_a_phase_weights_its_sources(run_yaml: str) -> None:
    sources = "data.sources=[{name: a, path: a}, {name: b, path: b, weight: 3}, {name: c, path: c}]"
    config = load_config(run_yaml, [sources, "phases.0.sources={c: 0.5, b: 2}"])
    assert config.source_weights(config.phases[0]) == {"b": 2.0, "c": 0.5}
    everything = load_config(run_yaml, [sources])
    assert everything.source_weights(everything.phases[0]) == {"a": 1.0, "b": 3.0, "c": 1.0}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["phases.0.steps=null"],
            "phases.0.tokens: set exactly one of 'tokens', 'steps' and",
        ),
        (["phases.0.tokens=5"], "tokens and steps set in phase 'pretrain'"),
        (
            ["phases.0.seq_len=4096"],
            "phases.0.seq_len: 4096 is more than model.max_position_embeddings = 256",
        ),
        (["phases.0.sources={trian: 1.0}"], "phases.0.sources.trian: unknown source; data.sources has train"),
        (["phases.0.sources={train: 0}"], "phases.0.sources.train: should be greater than 0, not 0"),
        (
            ["data.sources=[{name: a, path: a}, {name: a, path: b}]"],
            "data.sources: the name 'a' is used 2 times",
        ),
        (["data.held_out=[]"], "observe.evaluate_every: needs a token shard in data.held_out"),
        (
            ["observe.evaluate=full", "observe.evaluate_samples=200"],
            "observe.evaluate_samples: selects a subset, but evaluate is full",
        ),
        (["observe.samples={max_new_tokens: 5}"], "observe.samples.prompts: is empty, so there is nothing to sample"),
        (["optim.warmup_tokens=5"], "optim.warmup_tokens: give 'warmup_steps' or 'warmup_tokens', not both"),
        (
            ["optim.warmup_steps=null", "optim.warmup_tokens=5", "optim.schedule_unit=steps"],
            "optim.warmup_tokens: optim.schedule_unit is 'steps'; give warmup_steps",
        ),
        (["optim.lr=1e-5"], "optim.min_lr: 0.0002 is more than lr = 1e-05"),
        (["optim.betas=[0.9, 1.0]"], r"optim.betas: \[0.9, 1.0\]: both must lie in \[0, 1\)"),
        (["optim.schedule=step"], "optim.schedule: should be 'cosine', 'linear', 'constant' or 'wsd', not 'step'"),
        (["name=a/b"], "name: should match pattern"),
        (["optim=muon"], "optim: should be a mapping of keys to values, not 'muon'"),
        (
            ["parallel.pp=2", "parallel.pipeline_schedule=zbv", "parallel.reshard_after_forward=true"],
            "parallel.reshard_after_forward: zbv needs the weights until their gradients are computed; remove this key",
        ),
        (
            ["parallel.activation_offload=true", "parallel.compile=true"],
            "parallel.activation_offload: compiled layers manage their own saved tensors; set compile or this to false",
        ),
        (
            ["parallel.ep_dispatch=deepep"],
            "parallel.ep_dispatch: 'deepep' sends tokens between ep ranks, but ep is 1; raise ep, or",
        ),
        (
            ["parallel.ep_overlap=true"],
            "parallel.ep_overlap: computes while ep ranks exchange tokens, but ep is 1; raise ep, or",
        ),
        (
            ["parallel.ep_overlap=true", "parallel.ep=2", "parallel.micro_batch_size=3"],
            "parallel.ep_overlap: splits micro-batches in two; make micro_batch_size =",
        ),
        (["parallel.async_tp=true", "parallel.tp=2"], "parallel.async_tp: .* needs compile: true, tp > 1"),
        (["parallel.recompute=budget"], "parallel.recompute: 'budget' is torch.compile's .* set compile to true"),
        (["parallel.tp=0"], "parallel.tp: should be greater than 0, not 0"),
        (["seed=1.5"], "seed: should be a valid integer, not 1.5"),
    ],
)
def test_impossible_runs_are_refused(run_yaml: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(run_yaml, overrides)


@pytest.mark.parametrize(
    ("overrides", "reshards"),
    [
        ([], True),
        (["parallel.pp=2"], False),
        (["parallel.pp=2", "parallel.reshard_after_forward=true"], True),
        (["parallel.reshard_after_forward=false"], False),
    ],
)
def test_weights_are_freed_after_the_forward_pass_without_a_pipeline(
    run_yaml: str, overrides: list[str], reshards: bool
) -> None:
    assert load_config(run_yaml, overrides).parallel.reshards_after_forward is reshards


def test_sft_answers_held_out_conversations_unless_told_otherwise(run_yaml: str) -> None:
    held_out = "data.held_out=[{name: text, path: text}, {name: chat, path: chat.jsonl.gz}]"
    given = ["stage=sft", "init_from=runs/base", "phases.0.packing=best_fit", "observe.evaluate_every=5"]
    samples = load_config(run_yaml, [*given, held_out]).observe.samples
    assert samples is not None
    assert (samples.held_out, samples.prompts, samples.temperature) == (4, [], 0)
    own = load_config(run_yaml, [*given, held_out, "observe.samples={prompts: [x]}"]).observe.samples
    assert own is not None
    assert own.held_out == 0
    for otherwise in (
        [*given, held_out, "observe.samples=null"],
        [*given, held_out, "observe.evaluate_every=null"],
        [*given, "data.held_out=[{name: text, path: text}]"],
        [*given, held_out, "stage=midtrain"],
    ):
        assert load_config(run_yaml, otherwise).observe.samples is None, otherwise


def test_every_mistake_has_its_own_line(run_yaml: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(run_yaml, ["seed=-1", "optim.eps=0", "observe.log_every=0"])
    assert len(str(caught.value).splitlines()) == 3
