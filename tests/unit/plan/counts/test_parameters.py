"""The counts of the published models, and of real modules."""

import pytest
import torch

from glmforge.config import ModelConfig, load_model_config
from glmforge.model import GlmMoe
from glmforge.plan.counts.parameters import count_parameters

PUBLISHED = {
    "glm46_355b": {
        "embedding": 775_946_240,
        "head": 775_946_240,
        "expert": 23_592_960,
        "moe_layer": 3_935_625_632,
        "moe_layer_active": 349_495_712,
        "dense_layer": 325_083_392,
        "trunk": 351_245_936_544,
        "mtp": 3_988_069_792,
        "without_mtp": 352_797_829_024,
        "with_mtp": 356_785_898_816,
        "with_mtp_copies": 358_337_791_296,
        "trunk_active": 32_080_373_664,
        "active": 32_856_319_904,
        "trunk_matmul": 32_078_069_760,
        "mtp_matmul": 1_177_845_760,
    },
    "glm45_air_106b": {
        "embedding": 620_756_992,
        "head": 620_756_992,
        "expert": 17_301_504,
        "moe_layer": 2_341_492_864,
        "moe_layer_active": 265_312_384,
        "dense_layer": 243_554_304,
        "trunk": 105_610_737_280,
        "mtp": 2_375_059_584,
        "without_mtp": 106_852_251_264,
        "with_mtp": 109_227_310_848,
        "with_mtp_copies": 110_468_824_832,
        "trunk_active": 12_182_615_680,
        "active": 12_803_372_672,
        "trunk_matmul": 12_181_569_536,
        "mtp_matmul": 919_601_152,
    },
}
PUBLISHED["glm45_355b"] = PUBLISHED["glm46_355b"]


@pytest.mark.parametrize(
    ("model", "part", "expected"),
    [(model, part, count) for model, parts in PUBLISHED.items() for part, count in parts.items()],
)
def test_published_counts(model: str, part: str, expected: int) -> None:
    counted = getattr(count_parameters(load_model_config(model)), part)
    assert (counted if isinstance(counted, int) else counted.total) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_qk_norm": False, "attention_bias": False},
        {"first_k_dense_replace": 0, "n_shared_experts": 2, "num_nextn_predict_layers": 2},
        {"first_k_dense_replace": 3, "num_nextn_predict_layers": 0},
    ],
)
def test_counts_are_those_of_the_real_module(changes: dict[str, object]) -> None:
    config = ModelConfig.model_validate({**load_model_config("tiny").model_dump(), **changes})
    with torch.device("meta"):
        model = GlmMoe(config)
    counts = count_parameters(config)
    parameters = list(model.parameters())
    assert counts.with_mtp.parameters == sum(p.numel() for p in parameters)
    assert counts.with_mtp.matrices == sum(p.numel() for p in parameters if p.ndim >= 2)
    biases = [b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    assert counts.with_mtp.buffers == sum(b.numel() for b in biases)
