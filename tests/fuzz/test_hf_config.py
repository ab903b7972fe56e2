"""`config.json` of a Hugging Face directory, through what `model show` and `plan` make of it."""

import json
from pathlib import Path

from fuzz.format import Format
from fuzz.suite import check
from fuzz.trees import json_mutator
from glmforge.config import load_model_config
from glmforge.plan.counts.summary import summarise

CONFIG = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "vocab_size": 512,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 1,
    "intermediate_size": 80,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "use_qk_norm": True,
    "attention_bias": True,
    "attention_dropout": 0.0,
    "max_position_embeddings": 256,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    "eos_token_id": [476, 483],
    "pad_token_id": 476,
    "bos_token_id": None,
    "dtype": "bfloat16",
    "use_cache": True,
}


def write(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG))


def read(directory: Path) -> object:
    return json.dumps(summarise(load_model_config(directory)))


def bomb(text: str):
    """A bomb in the place of config.json."""
    return lambda directory: (directory / "config.json").write_text(text)


def _with(**changes: object) -> str:
    return json.dumps(CONFIG | changes)


_BOMBS = {
    "layers": _with(num_hidden_layers=2**31),
    "mtp_layers": _with(num_nextn_predict_layers=2**31),
    "everything_large": _with(**{key: 2**62 for key, value in CONFIG.items() if type(value) is int}),
    "largest_allowed": _with(num_hidden_layers=1000, hidden_size=2**24, vocab_size=2**24),
    "nan": json.dumps(CONFIG | {"rope_parameters": {"rope_theta": float("nan")}}),
    "infinity": json.dumps(CONFIG | {"rms_norm_eps": float("inf")}),
    "rope_is_a_list": _with(rope_parameters=[1, 2]),
    "no_end_tokens": _with(eos_token_id=[], pad_token_id=None),
    "end_token_is_an_object": _with(eos_token_id={"a": 1}),
    "many_end_tokens": _with(eos_token_id=[1] * 200_000),
    "few_too_many_end_tokens": _with(eos_token_id=[1] * 10_000),
    "many_keys": json.dumps(CONFIG | {f"key{n}": n for n in range(50_000)}),
    "long_model_type": _with(model_type="x" * 500_000),
    "model_type_is_deep": '{"model_type": ' + "[" * 5_000 + "]" * 5_000 + "}",
    "python": _with(auto_map={"AutoModel": "evil.Model"}, model_type="evil"),
    "digits": json.dumps(CONFIG).replace("512", "9" * 5_000),
    "tiny_theta": _with(rope_parameters={"rope_theta": 1e-320}),
    "nothing": "",
}

FORMAT = Format(
    name="hf_config",
    write=write,
    read=read,
    mutators={"config.json": json_mutator()},
    bombs={name: bomb(text) for name, text in _BOMBS.items()},
)


def test_mutations_and_bombs() -> None:
    check(__name__)
