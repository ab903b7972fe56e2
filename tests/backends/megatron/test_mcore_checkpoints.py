"""Checkpoints that real megatron-core writes and reads on ranks of the CPU, against ours: bit for bit, and in logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glmforge.checkpoint.convert.megatron_read import MegatronTensors
from glmforge.checkpoint.convert.megatron_write import export_megatron
from glmforge.config.hf import DEFAULTS
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from helpers.distributed import run_ranks
from helpers.megatron_gpt import ITERATION, Layout, load_and_save, logits, save
from helpers.models import tiny_config

VOCAB, PADDED = 500, 512
DENSE = ModelConfig.model_validate(
    {
        **DEFAULTS,
        **{"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 4, "first_k_dense_replace": 4},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 80},
        **{"partial_rotary_factor": 1.0, "max_position_embeddings": 256, "num_nextn_predict_layers": 0},
        **{"eos_token_id": [], "pad_token_id": None},
    }
)
MOE = tiny_config(vocab_size=VOCAB)


def weights_of(config: ModelConfig) -> dict[str, Tensor]:
    """Random bf16 weights, and router biases in fp32, that no other tensor equals."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(row.shape, generator=generator).to(torch.float32 if row.fp32 else torch.bfloat16)
        for name, row in parameter_table(config).items()
    }


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        *((DENSE, Layout(*sizes)) for sizes in [(1, 1), (2, 1), (1, 2), (2, 2)]),
        *((MOE, Layout(*sizes)) for sizes in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]),
        (MOE, Layout(ep=2, grouped=True)),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, Layout) else "moe" if value == MOE else "dense",
)
def test_what_megatron_loads_in_a_layout_and_saves_again_is_bit_equal(
    config: ModelConfig, layout: Layout, tmp_path: Path
) -> None:
    expected = weights_of(config)
    export_megatron(expected, config, tmp_path / "ours")
    release, again = tmp_path / "ours" / "release", tmp_path / "again"
    run_ranks(load_and_save, layout.world_size, release, config, layout, again, torch.bfloat16, PADDED)
    for directory in (tmp_path / "ours", again):
        found = MegatronTensors(directory, config)
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert tensor.dtype == expected[name].dtype, name
            assert torch.equal(tensor, expected[name]), name
