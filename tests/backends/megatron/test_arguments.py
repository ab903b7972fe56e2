"""Arguments from runs' files, in the real parser of Megatron-LM, and in a real training run on the CPU.

Needs a checkout of Megatron-LM core_v0.16.1 in MEGATRON_SOURCE: `megatron.training` is in no package.
"""

import argparse
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint.sizes import megatron_sizes
from glmforge.config.load import load_config
from glmforge.config.megatron import to_arguments
from glmforge.config.megatron_words import known_arguments
from helpers.megatron_data import tokenised

ROOT, PROGRAM = Path(__file__).parents[3], Path(__file__).with_name("pretrain_gpt.py")
SOURCE = os.environ.get("MEGATRON_SOURCE", "")
RUNS = sorted(path for path in (ROOT / "configs").glob("*.yaml") if path.stem not in ("dpo_local", "reward_local"))

pytestmark = pytest.mark.skipif(not SOURCE, reason="MEGATRON_SOURCE: no checkout of Megatron-LM core_v0.16.1")


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its module of arguments. What they check of the machine is a GPU here."""
    import megatron.core  # the installed one, before the checkout's is found

    monkeypatch.setattr(megatron, "__path__", [*megatron.__path__, f"{SOURCE}/megatron"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: types.SimpleNamespace(major=9))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    from megatron.training import arguments

    return arguments


def test_the_table_is_that_of_the_real_parser(megatron: Any) -> None:
    real = megatron.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    ours = known_arguments()
    found = {action.option_strings[0]: action for action in real._actions if action.dest != "help"}
    assert ours.keys() == found.keys()
    for name, action in found.items():
        assert ours[name].names.split("|") == action.option_strings
        if ours[name].default and not hasattr(action.default, "name"):
            expected = action.default if isinstance(action.default, list) else [action.default]
            assert ours[name].default == ",".join(map(str, expected)), name


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_megatron_accepts_the_arguments_of_every_phase(
    megatron: Any, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(path)
    model, parallel = config.model, config.parallel
    monkeypatch.setenv("WORLD_SIZE", f"{parallel.pp * parallel.dp_replicate * parallel.cp * parallel.tp * parallel.ep}")
    for phase in config.phases:
        monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *to_arguments(config, phase.name)[0]])
        given = megatron.validate_args(megatron.parse_args())
        given.apply_rope_fusion = False  # needs Transformer Engine
        made = megatron.core_transformer_config_from_args(given)
        assert sum(made.moe_layer_freq) == model.num_moe_layers
        assert (made.num_moe_experts, made.moe_router_topk) == (model.n_routed_experts, model.num_experts_per_tok)
        assert (made.num_query_groups, made.kv_channels) == (model.num_key_value_heads, model.head_dim)
        assert made.mtp_num_layers == (model.num_nextn_predict_layers or None)
        assert made.moe_router_enable_expert_bias == (phase.balance == "bias")
        if parallel.pp > 1:
            made.pipeline_model_parallel_layout.validate_layer_layout(made.num_layers, made.mtp_num_layers)


def prepared(directory: Path) -> Path:
    """A run's file of a tiny GLM, with a tokenizer and token shards."""
    tokenised(directory)
    run = directory / "run.yaml"
    run.write_text(f"""
name: tiny
seed: 3
output_dir: {directory}/run
model: tiny
data: {{tokenizer: {directory}/tokenizer, sources: [{{name: text, path: {directory}/text}}]}}
phases: [{{name: pretrain, steps: 4, seq_len: 64, batch_size: 8}}]
optim: {{matrix_optimizer: adamw, lr: 1e-3, warmup_steps: 1}}
parallel: {{micro_batch_size: 2}}
checkpoint: {{background: false}}
""")
    return run


def test_a_glm_trains_from_the_arguments_and_its_checkpoint_has_14_bytes_per_parameter(tmp_path: Path) -> None:
    words, _ = to_arguments(load_config(prepared(tmp_path)))
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29761"}
    environment = os.environ | ranks | {"TORCHDYNAMO_DISABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    command = [sys.executable, str(PROGRAM), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "iteration        4/       4" in done.stdout, done.stderr[-3000:]
    sizes = {row.kind: row.actual for row in megatron_sizes(tmp_path / "run/megatron/iter_0000004")}
    bytes_each = {kind.split(":")[0]: kind.split(": ")[-1] for kind in sizes if "B per parameter" in kind}
    assert bytes_each == {
        "weights, bfloat16": "2.0 B per parameter",
        "weights, float32": "0.0 B per parameter",  # the routers' biases
        "optimizer master weights, float32": "4.0 B per parameter",
        "optimizer exp_avg, float32": "4.0 B per parameter",
        "optimizer exp_avg_sq, float32": "4.0 B per parameter",
    }
