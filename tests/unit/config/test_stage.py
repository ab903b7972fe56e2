"""What a stage decides of a run: its defaults, what it refuses, and where it must start."""

from typing import Any

import pytest

from glmforge.config import load_config
from glmforge.config.schema import RunConfig
from glmforge.config.stage import STAGES, StageDeclaration
from glmforge.errors import ConfigError

FROM = "init_from=base"


SCORE_ONLY = ["model.heads={score: 1}", "model.lm_head=false", "model.num_nextn_predict_layers=0"]
PAIRS = ["data.sources.0.path=pairs.jsonl", "data.held_out.0.path=held.jsonl"]
OF_STAGE = {"reward": [*PAIRS, *SCORE_ONLY], "dpo": PAIRS}
"""What a stage cannot be without."""


def run_of(run_yaml: str, stage: str, *overrides: str) -> RunConfig:
    return load_config(run_yaml, [f"stage={stage}", FROM, *OF_STAGE.get(stage, ()), *overrides])


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("pretrain", {"router_bias_rate": 1e-3, "mtp_loss_weight": 0.3, "packing": "truncate"}),
        ("midtrain", {"router_bias_rate": 0.0, "mtp_loss_weight": 0.1, "packing": "truncate"}),
        ("sft", {"router_bias_rate": 0.0, "mtp_loss_weight": 0.1, "packing": "best_fit"}),
        ("reward", {"router_bias_rate": 0.0, "mtp_loss_weight": 0.0, "packing": "best_fit"}),
        ("dpo", {"router_bias_rate": 0.0, "mtp_loss_weight": 0.1, "packing": "best_fit"}),
    ],
)
def test_a_phase_that_says_nothing_has_the_defaults_of_the_stage(
    run_yaml: str, stage: str, expected: dict[str, Any]
) -> None:
    phase = run_of(run_yaml, stage).phases[0]
    assert {name: getattr(phase, name) for name in expected} == expected
    assert phase.aux_loss_weight == 1e-4
    regularization = run_of(run_yaml, stage).regularization
    assert {value for name, value in regularization if name.endswith("dropout")} == {0.0}


def test_what_a_phase_says_stands(run_yaml: str) -> None:
    phase = run_of(run_yaml, "midtrain", "phases.0.router_bias_rate=1e-4", "phases.0.mtp_loss_weight=0").phases[0]
    assert (phase.router_bias_rate, phase.mtp_loss_weight) == (1e-4, 0.0)


@pytest.mark.parametrize("stage", [name for name in STAGES if name != "rl"])  # which trains no MTP layers
def test_adapters_come_before_the_stage_and_what_a_phase_says_before_both(run_yaml: str, stage: str) -> None:
    assert run_of(run_yaml, stage, "lora={}").phases[0].mtp_loss_weight == 0.0
    assert run_of(run_yaml, stage, "lora={}", "phases.0.mtp_loss_weight=0.1").phases[0].mtp_loss_weight == 0.1


def test_a_phase_with_another_balance_has_no_bias_to_freeze(run_yaml: str) -> None:
    assert run_of(run_yaml, "midtrain", "phases.0.balance=sinkhorn").phases[0].balance == "sinkhorn"


@pytest.mark.parametrize(
    ("stage", "overrides", "message"),
    [
        ("pretrain", ["sft={}"], "sft: belongs to stage 'sft', but this run's"),
        (
            "midtrain",
            ["regularization.neftune_alpha=5"],
            "regularization.neftune_alpha: belongs to stage 'sft', but this run's",
        ),
        ("sft", ["phases.0.packing=truncate"], "phases.0.packing: 'truncate' would cut conversations"),
        ("sft", ["phases.0.document_mask=false"], "phases.0.document_mask: in stage 'sft' conversations in a row must"),
        (
            "sft",
            ["phases.0.fim_rate=0.5"],
            "phases.0.fim_rate: stage 'sft' has no fill-in-the-middle; remove it, or use",
        ),
        ("midtrain", ["init_from=null"], "init_from: stage 'midtrain' starts from trained weights; set a Hugging"),
        ("pretrain", SCORE_ONLY, "model.lm_head: stage 'pretrain' trains on next tokens; remove this key or set it"),
        ("pretrain", ["backend=deepspeed"], "deepspeed: missing; give file"),
        ("pretrain", ["dpo={}"], "dpo: belongs to stage 'dpo', but this run's"),
        ("dpo", ["dpo.beta=0"], "dpo.beta: should be greater than 0"),
        ("dpo", ["dpo.label_smoothing=0.5"], "dpo.label_smoothing: should be less than 0.5"),
        ("dpo", SCORE_ONLY, "model.lm_head: stage 'dpo' trains on next tokens"),
        ("reward", ["model.heads={value: 1}"], "model.heads: a reward model answers with one score; set {score: 1}"),
        ("reward", ["model.lm_head=true"], "model.lm_head: a reward model has no use for it; set it to false"),
        ("dpo", ["phases.0.packing=truncate"], "phases.0.packing: does not apply to pairs of answers"),
        ("dpo", ["phases.0.z_loss_weight=1e-4"], "phases.0.z_loss_weight: does not apply to pairs of answers"),
        ("dpo", ["phases.0.batch_size=7"], "phases.0.batch_size: 7 rows are no pairs of rows (stage 'dpo'); make it"),
        ("dpo", ["parallel.micro_batch_size=1"], "parallel.micro_batch_size: 1 rows are no pairs of rows"),
        ("dpo", ["data.sources.0.path=data/train"], "data.sources.0.path: stage 'dpo' reads preference pairs"),
        ("dpo", ["data.held_out.0.path=data/held"], "data.held_out.0.path: stage 'dpo' reads preference pairs"),
        ("dpo", ["data.sources.0.weight=2"], "data.sources.0.weight: stage 'dpo' reads all sources once in an epoch"),
        ("dpo", ["data.sources.0.chat={overlong: cut}"], "data.sources.0.chat.overlong: does not apply to pairs"),
        ("dpo", ["observe.samples={prompts: [a]}"], "observe.samples: stage 'dpo' evaluates held-out pairs only"),
        ("sfd", [], "stage: unknown 'sfd'; did you mean 'sft'?"),
        ("[sft]", [], "stage: should be 'pretrain', 'midtrain', 'sft', 'reward', 'dpo' or 'rl'"),
    ],
)
def test_what_the_stage_has_no_use_for_is_refused(
    run_yaml: str, stage: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        run_of(run_yaml, stage, *overrides)
    assert message in str(refused.value)


def test_a_run_that_was_written_out_is_read_back_as_it_was(run_yaml: str) -> None:
    for stage in STAGES:
        config = run_of(run_yaml, stage)
        assert RunConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_model_without_a_language_model_head_writes_no_samples(
    run_yaml: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES, "score", StageDeclaration(name="score", recipe="none", starts_from_weights=False))
    assert not run_of(run_yaml, "score", *SCORE_ONLY).model.lm_head
    with pytest.raises(ConfigError, match=r"observe.samples: needs a language-model head, but model\.lm_head is false"):
        run_of(run_yaml, "score", *SCORE_ONLY, "observe.samples={prompts: [a]}")
