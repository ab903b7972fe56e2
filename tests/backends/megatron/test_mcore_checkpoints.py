"""Checkpoints that real megatron-core writes and reads on the CPU, against ours: bit for bit, and in logits."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from glmforge.checkpoint.convert.hf_config import hf_config
from glmforge.checkpoint.convert.megatron import MegatronTensors, export_megatron
from glmforge.config.hf import DEFAULTS
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.deploy.megatron import import_megatron
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
LLAMA = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 10000.0},
    **{name: getattr(DENSE, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256},
}
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
    export_megatron(expected, config, tmp_path / "ours", dtype=torch.bfloat16)
    release, again = tmp_path / "ours" / "release", tmp_path / "again"
    run_ranks(load_and_save, layout.world_size, release, config, layout, again, torch.bfloat16, PADDED)
    for directory in (tmp_path / "ours", again):
        found = MegatronTensors(directory, config)
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert tensor.dtype == expected[name].dtype, name
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_transformers_computes_with_the_conversion_what_megatron_does(config: ModelConfig, tmp_path: Path) -> None:
    """Megatron's dense model has its layers stacked, and rows of padding that are not zero."""
    run_ranks(save, 2, config, Layout(pp=2), tmp_path / "megatron", torch.float32, PADDED)
    ids_BS = torch.randint(VOCAB, (2, 33), generator=torch.Generator().manual_seed(0))
    checkpoint = tmp_path / "megatron" / f"iter_{ITERATION:07d}"
    (expected_BSV,) = run_ranks(logits, 1, config, checkpoint, ids_BS, PADDED)
    given = tmp_path / "config"
    given.mkdir()
    content = LLAMA if config is DENSE else hf_config(config, torch.float32)
    (given / "config.json").write_text(json.dumps(content))
    import_megatron(tmp_path / "megatron", tmp_path / "hf", given, dtype="fp32")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    assert type(theirs).__name__ == ("LlamaForCausalLM" if config is DENSE else "Glm4MoeForCausalLM")
    with torch.no_grad():
        actual_BSV = theirs(ids_BS).logits
    # fp32 sums in another order; a wrong place of a single matrix changes logits by their own size
    torch.testing.assert_close(actual_BSV, expected_BSV[..., :VOCAB], rtol=1e-4, atol=1e-4 * expected_BSV.std().item())
