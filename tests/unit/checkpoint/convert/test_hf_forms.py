"""Every legal form of a Hugging Face directory, loaded here and by transformers: the same logits.

The directories are written by transformers itself, or from its tensors; logits are compared in fp32.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glmforge.checkpoint.convert import export_hf
from glmforge.checkpoint.pretrained import load_pretrained
from glmforge.errors import GlmforgeError
from glmforge.model import GlmMoe
from helpers.models import randomize_

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}
SINGLE = "model.safetensors"
IDS = torch.randint(0, 96, (2, 17), generator=torch.Generator().manual_seed(1))


def save(directory: Path, dtype: torch.dtype = torch.float32, **fields: Any) -> None:
    """A model of transformers with random weights as `save_pretrained` writes it."""
    model = transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**(SIZES | fields))).float()
    randomize_(model)
    model.to(dtype).save_pretrained(directory)


def edit(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = directory / "config.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def edit_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / SINGLE)
    change(tensors)
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})


def pack(tensors: dict[str, torch.Tensor]) -> None:
    """Experts as transformers holds them in memory."""
    for layer in (1, 2):
        prefix = f"model.layers.{layer}.mlp.experts."
        parts = {
            name: torch.stack([tensors.pop(f"{prefix}{e}.{name}_proj.weight") for e in range(6)])
            for name in ("gate", "up", "down")
        }
        tensors[f"{prefix}gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], dim=1)
        tensors[f"{prefix}down_proj"] = parts["down"]


def assert_same_logits(directory: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ours = load_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(IDS).logits
    # 1e-4 of the scale: fp32 rounding of differently ordered sums comes to about 1e-6.
    assert (ours.logits(IDS) - expected).abs().max() < 1e-4 * expected.abs().max()


FIELDS: dict[str, dict[str, Any]] = {
    "class defaults": {},  # pad_token_id and eos_token_id null, no head_dim, MTP announced and absent
    "published settings": {
        **{"attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 2, "routed_scaling_factor": 2.5},
        **{"head_dim": 16, "eos_token_id": [3, 5], "pad_token_id": 3},
    },
    "tied embeddings": {"tie_word_embeddings": True},
    "no MTP": {"num_nextn_predict_layers": 0},
    "MTP by its other name": {"num_mtp_layers": 2},
    "RoPE settings": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.25}},
    "RoPE of the whole head": {"partial_rotary_factor": 1.0},
    "groups": {"n_group": 3, "topk_group": 2, "norm_topk_prob": False},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS.keys())
def test_fields(tmp_path: Path, fields: dict[str, Any]) -> None:
    save(tmp_path, **fields)
    assert_same_logits(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_types(tmp_path: Path, dtype: torch.dtype) -> None:
    save(tmp_path, dtype)
    assert_same_logits(tmp_path)


def test_shards(tmp_path: Path) -> None:
    save(tmp_path)
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path).save_pretrained(tmp_path / "s", max_shard_size="20KB")
    assert len(list((tmp_path / "s").glob("*.safetensors"))) > 2
    assert_same_logits(tmp_path / "s")


def test_packed_experts(tmp_path: Path) -> None:
    save(tmp_path)
    edit_tensors(tmp_path, pack)
    assert_same_logits(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: [c.pop(name) for name in ("attention_bias", "use_qk_norm", "first_k_dense_replace", "n_group")],
        lambda c: [
            c.pop(name) for name in ("rope_parameters", "eos_token_id", "pad_token_id", "num_nextn_predict_layers")
        ],
        lambda c: c.update(rope_theta=5e5, partial_rotary_factor=0.25) or c.pop("rope_parameters"),
    ],
    ids=["no options", "no RoPE settings", "RoPE as in transformers 4"],
)
def test_edited_configurations(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    save(tmp_path)
    edit(tmp_path, change)
    assert_same_logits(tmp_path)


def test_a_tied_head_that_is_stored_all_the_same(tmp_path: Path) -> None:
    save(tmp_path, tie_word_embeddings=True)
    edit_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert_same_logits(tmp_path)


def test_a_tied_head_with_values_of_its_own_is_refused(tmp_path: Path) -> None:
    save(tmp_path, tie_word_embeddings=True)
    edit_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    with pytest.raises(GlmforgeError, match=r"lm_head\.weight differs .* tie_word_embeddings to false"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_exported_means_the_same_to_transformers(tmp_path: Path, tied: bool) -> None:
    save(tmp_path / "a", tie_word_embeddings=tied)
    model = load_pretrained(tmp_path / "a")
    export_hf(model.state_dict(), model.config, tmp_path / "b", dtype=torch.float32)
    written = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (written["eos_token_id"], written["pad_token_id"], written["tie_word_embeddings"]) == (None, None, tied)
    assert_same_logits(tmp_path / "b")
    assert torch.equal(load_pretrained(tmp_path / "b").logits(IDS), model.logits(IDS))


def test_a_new_tied_model_is_exported_whole_with_its_mtp_layer(tmp_path: Path) -> None:
    save(tmp_path / "a", tie_word_embeddings=True)
    config = load_pretrained(tmp_path / "a").config.model_copy(update={"num_nextn_predict_layers": 1})
    model = GlmMoe.create(config)
    export_hf(model.state_dict(), config, tmp_path / "b", dtype=torch.float32, duplicate_mtp_head=True)
    again = load_pretrained(tmp_path / "b")
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert "lm_head.weight" not in model.state_dict()
