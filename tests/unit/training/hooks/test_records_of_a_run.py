"""Files of runs are read by others for years: the names in the records of a real run, and how a hook adds one."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from glmforge.observe.metric_table import Metric
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.tiny_data import TinyData

ALWAYS = """
step phase tokens samples world_size batch_size seq_len rope_theta skipped_samples rollbacks nonfinite_steps_total
loss loss_mtp loss_aux trained_tokens source_tokens source_loss source_epochs lr grad_norm router_bias_rate
tokens_per_second step_seconds data_seconds model_tflops_per_second rss_bytes
max_violation_mean max_violation_max load_cv_mean load_cv_max load_entropy_mean load_entropy_min dead_experts
bias_spread_mean bias_spread_max bias_drift_max layer_max_violation layer_load_cv layer_load_entropy
layer_dead_experts layer_bias_spread layer_bias_drift expert_load
"""
EVALUATED = "step tokens source bits_per_byte nll accuracy num_tokens num_bytes"
AFTER_A_SAVE = "checkpoint_seconds_blocked checkpoint_seconds_total checkpoint_bytes checkpoint_bytes_per_second"


class TokensHook(Hook):
    """Records what share of the run's tokens is behind, a metric of its own."""

    name = "tokens"
    metric_rows = (Metric("share_of_tokens", "fraction", "run", "tokens of the run that are behind"),)

    def on_record(self, trainer: Trainer, result: StepResult) -> None:
        trainer.record(share_of_tokens=trainer.state.tokens / trainer.config.num_tokens)


def test_records_have_the_names_they_always_had_and_a_hook_adds_another(tiny_data: TinyData, tmp_path: Path) -> None:
    (row,) = TokensHook.metric_rows
    config = tiny_data.run_config(
        tmp_path,
        phases=[{"name": "main", "steps": 4, "seq_len": 32, "batch_size": 2}],
        observe={"log_every": 2, "evaluate_every": 2, "evaluate_tokens": 100, "progress": False, "tensorboard": True},
        checkpoint={"every_steps": 1, "background": False},
    )
    train(config, [TokensHook()])
    first, second = read_jsonl(tmp_path / "metrics.jsonl")
    assert set(first) == set(second) == {*ALWAYS.split(), *AFTER_A_SAVE.split(), row.name}
    assert (first[row.name], second[row.name]) == (0.5, 1.0)
    for record in read_jsonl(tmp_path / "evaluation.jsonl"):
        assert set(record) >= set(EVALUATED.split())
    scalars = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in scalars.Scalars(row.tag)] == [(2, 0.5), (4, 1.0)]
