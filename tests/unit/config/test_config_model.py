import pytest
from pydantic import ValidationError

from glmforge.config import ModelConfig, load_model_config, preset_names

SHAPE = load_model_config("tiny").model_dump()


def changed(**fields: object) -> ModelConfig:
    return ModelConfig.model_validate({**SHAPE, **fields})


def test_published_models_are_as_published() -> None:
    glm45, air, glm46 = map(load_model_config, ("glm45_355b", "glm45_air_106b", "glm46_355b"))
    assert glm45.model_dump() == {
        "vocab_size": 151552,
        "hidden_size": 5120,
        "num_hidden_layers": 92,
        "first_k_dense_replace": 3,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "n_routed_experts": 160,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": [151329, 151336, 151338],
        "pad_token_id": 151329,
    }
    assert glm46 == glm45.model_copy(update={"max_position_embeddings": 202752})
    assert air == glm45.model_copy(
        update={
            "hidden_size": 4096,
            "num_hidden_layers": 46,
            "first_k_dense_replace": 1,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "use_qk_norm": False,
            "n_routed_experts": 128,
            "routed_scaling_factor": 1.0,
        }
    )


@pytest.mark.parametrize("name", ["tiny", "demo", "small_1b"])
def test_small_presets_have_every_part_of_the_architecture(name: str) -> None:
    config = load_model_config(name)
    assert 0 < config.first_k_dense_replace < config.num_hidden_layers
    assert config.num_key_value_heads < config.num_attention_heads
    assert config.num_attention_heads * config.head_dim != config.hidden_size
    assert config.use_qk_norm
    assert config.attention_bias
    assert config.n_shared_experts
    assert config.num_nextn_predict_layers == 1
    assert config.vocab_size % 128 == 0
    # <|endoftext|>, <|user|> and <|observation|>: numbers 0, 7 and 9 of the 36 special tokens.
    first = config.vocab_size - 36
    assert config.eos_token_id == [first, first + 7, first + 9]
    assert config.pad_token_id == first


def test_preset_names() -> None:
    names = ["demo", "glm45_355b", "glm45_air_106b", "glm46_355b", "glm_scaled_down", "small_1b", "tiny"]
    assert preset_names() == names
    large = ["lora_355b_2x8h200", "lora_355b_4x8h100", "lora_air_2x8h200", "lora_air_8x80gb", "sft_air_8x8h100"]
    after = ["dpo_air", "reward_air", "ppo_air", "grpo_air_64gpu", "grpo_355b"]
    assert preset_names("run") == sorted(["demo", "demo_sft", "lora", *large, *after])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_key_value_heads": 3}, "3 does not divide num_attention_heads = 4"),
        ({"head_dim": 6}, "rotates 3 of head_dim = 6 dims"),
        ({"first_k_dense_replace": 4}, "4 is more than num_hidden_layers = 3"),
        ({"n_group": 3}, "3 does not divide n_routed_experts = 8"),
        ({"n_group": 8}, "leaves 1 expert per group"),
        ({"n_group": 2, "topk_group": 3}, "3 is more than n_group = 2"),
        ({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "3 is more than the 2 experts"),
        ({"pad_token_id": 512}, "512 is outside the vocabulary; vocab_size = 512"),
        ({"eos_token_id": [0, -1]}, "-1 is outside the vocabulary; vocab_size = 512"),
        ({"hidden_act": "gelu"}, "should be 'silu'"),
        ({"num_hidden_layers": 2**31}, "less than or equal to 1000"),
        ({"hidden_size": 2**24, "n_routed_experts": 2**24}, "makes a matrix of .* elements"),
        ({"rope_theta": float("inf")}, "finite number"),
        ({"hidden_sizes": 64}, "not permitted"),
        ({"heads": {"lm_head": 1}}, "'lm_head' is not a valid head name; use"),
        ({"heads": {"a.b": 1}}, "'a.b' is not a valid head name; use"),
        ({"heads": {"score": 0}}, "greater than 0"),
        ({"lm_head": False}, "without lm_head the model has no output"),
        ({"lm_head": False, "heads": {"score": 1}, "num_nextn_predict_layers": 1}, "MTP needs lm_head: set it to 0"),
    ],
)
def test_impossible_models_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        changed(**fields)


def test_heads_are_in_files_only_if_there_are_any() -> None:
    assert not {"heads", "lm_head"} & changed().model_dump().keys()
    assert changed(heads={"score": 1}).model_dump()["heads"] == {"score": 1}


def test_sizes_have_no_default() -> None:
    with pytest.raises(ValidationError) as caught:
        ModelConfig.model_validate({})
    missing = {error["loc"][0] for error in caught.value.errors()}
    assert {"hidden_size", "num_hidden_layers", "n_routed_experts", "use_qk_norm", "rope_theta"} <= missing


def test_derived_sizes() -> None:
    config = changed(head_dim=24, n_group=4)
    assert (config.rotary_dim, config.experts_per_group, config.num_moe_layers) == (12, 2, 2)
