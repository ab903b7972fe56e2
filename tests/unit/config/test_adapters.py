from pathlib import Path

import pytest
from pydantic import ValidationError

from glmforge.config import load_model_config
from glmforge.config.adapters import adapter_rows, is_adapter, table_with
from glmforge.config.lora import ATTENTION, LoraConfig, parse_lora
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import Parameter
from glmforge.errors import ConfigError
from helpers.models import run_config, tiny_config

# Of rank 16, by hand: rank x (inputs + outputs) of each map, times the layers that have it.
_ATTENTION = 46 * 16 * ((4096 + 12288) + 2 * (4096 + 1024) + (12288 + 4096))
_EXPERTS = 45 * 128 * 16 * 3 * (4096 + 1408)
_PACKED = 45 * 128 * 16 * (4096 + 2 * 1408 + 1408 + 4096)
_SHARED = 45 * 16 * 3 * (4096 + 1408)
_DENSE = 16 * 3 * (4096 + 10944)
_ROUTERS = 45 * 16 * (4096 + 128)
_VOCABULARY = 16 * (4096 + 151552)


@pytest.fixture(scope="module")
def air() -> ModelConfig:
    return load_model_config("glm45_air_106b")


@pytest.mark.parametrize(
    ("targets", "tensors", "elements"),
    [
        ("self_attn", 368, _ATTENTION),
        ("q_proj+k_proj+v_proj+o_proj+experts", 638, 1_553_399_808),
        ("experts", 270, _EXPERTS),
        ("experts.gate_up_proj+experts.down_proj", 180, _PACKED),
        ("shared_experts", 270, _SHARED),
        ("gate_proj", 2 * (1 + 45 + 45), (_EXPERTS + _SHARED + _DENSE) // 3),
        ("all-linear", 914, _ATTENTION + _EXPERTS + _SHARED + _DENSE),
        ("gate", 90, _ROUTERS),
        ("embed_tokens+lm_head", 4, 2 * _VOCABULARY),
        ("model.layers.1*.self_attn.q_proj", 2 * 11, 11 * 16 * (4096 + 12288)),
        ("model.layers.0.self_attn.q_proj.weight", 2, 16 * (4096 + 12288)),
    ],
)
def test_adapters_of_air(air: ModelConfig, targets: str, tensors: int, elements: int) -> None:
    rows = adapter_rows(air, parse_lora(f"rank=16,target={targets}"))
    assert (len(rows), sum(row.size for row in rows)) == (tensors, elements)
    assert len({row.name for row in rows}) == tensors


def _layer(air: ModelConfig, lora: LoraConfig, layer: int | None = 1) -> dict[str, Parameter]:
    return {
        row.name.removeprefix(f"model.layers.{layer}."): row for row in adapter_rows(air, lora) if row.layer == layer
    }


def test_tensor_parallelism_cuts_an_adapter_where_it_cuts_the_map(air: ModelConfig) -> None:
    rows = _layer(air, LoraConfig(targets=["self_attn", "shared_experts", "gate", "experts"]))
    cut = {name: (row.tp_dim, row.shape[row.tp_dim]) for name, row in rows.items() if row.tp_dim is not None}
    assert cut == {
        "self_attn.q_proj.lora_B.weight": (0, 12288),
        "self_attn.k_proj.lora_B.weight": (0, 1024),
        "self_attn.v_proj.lora_B.weight": (0, 1024),
        "self_attn.o_proj.lora_A.weight": (1, 12288),
        "mlp.shared_experts.gate_proj.lora_B.weight": (0, 1408),
        "mlp.shared_experts.up_proj.lora_B.weight": (0, 1408),
        "mlp.shared_experts.down_proj.lora_A.weight": (1, 1408),
    }
    experts = {name: row for name, row in rows.items() if row.expert}
    assert [row.shape for row in experts.values()] == [(128, 16, 4096), (128, 1408, 16)] * 2 + [
        (128, 16, 1408),
        (128, 4096, 16),
    ]
    assert all(row.partial_axes(sequence_parallel=True) == () for row in experts.values())
    whole = [row for name, row in rows.items() if name not in cut and name not in experts]
    assert all(row.partial_axes(sequence_parallel=False) == ("tp",) for row in whole)


def test_the_vocabulary_is_cut_where_the_weight_is(air: ModelConfig) -> None:
    rows = _layer(air, LoraConfig(targets=["embed_tokens", "lm_head"]), None)
    assert {name: (row.shape, row.tp_dim, row.initial) for name, row in rows.items()} == {
        "model.embed_tokens.lora_embedding_A.weight": ((16, 151552), 1, "zeros"),
        "model.embed_tokens.lora_embedding_B.weight": ((4096, 16), None, "fan_in"),
        "lm_head.lora_A.weight": ((16, 4096), None, "fan_in"),
        "lm_head.lora_B.weight": ((151552, 16), 0, "zeros"),
    }


def test_all_but_adapters_heads_and_what_is_saved_is_frozen() -> None:
    model = tiny_config(heads={"score": 1})
    table = table_with(
        model, LoraConfig(rank=4, lr_ratio=16, modules_to_save=["norm", "model.layers.*.mlp.gate.weight"])
    )
    scales = {row.name: row.lr_scale for row in table.trained().values() if row.lr_scale}
    trained_whole = {name for name in scales if ".lora_" not in name}
    routers = {name for name in table if name.endswith("mlp.gate.weight")}
    assert routers < trained_whole
    assert trained_whole - routers == {"score.weight", "model.norm.weight", "model.layers.4.shared_head.norm.weight"}
    assert {row.lr_scale for row in table.values() if is_adapter(row) and ".lora_B." in row.name} == {16.0}
    assert {row.lr_scale for row in table.values() if is_adapter(row) and ".lora_A." in row.name} == {1.0}


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [({}, 2.0), ({"alpha": 8}, 0.5), ({"alpha": 8, "rslora": True}, 2.0), ({"rank": 4, "alpha": 16}, 4.0)],
)
def test_scaling(settings: dict[str, object], scaling: float) -> None:
    assert LoraConfig.model_validate(settings).scaling == scaling


@pytest.mark.parametrize(
    ("text", "lora"),
    [
        ("rank=8", LoraConfig(rank=8, targets=list(ATTENTION))),
        ("target=q_proj+experts+q_proj,rank=4", LoraConfig(rank=4, targets=["q_proj", "experts"])),
    ],
)
def test_parse(text: str, lora: LoraConfig) -> None:
    assert parse_lora(text) == lora


@pytest.mark.parametrize(
    "text", ["", "16", "rank=", "rank=0", "rank=-1", "rank=٣", "rank=99999", "rank=8,alpha=16", "rank=8,target="]
)
def test_what_is_no_lora_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--lora"):
        parse_lora(text)


@pytest.mark.parametrize(
    ("target", "nearest"),
    [
        ("expert", "'experts'"),
        ("mlp.gat", "'mlp.gate'"),
        ("layers", "nearest"),
        ("eh_proj", "nearest"),
    ],
)
def test_a_target_that_is_no_map_is_refused(air: ModelConfig, target: str, nearest: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^lora\.targets: '.*' matches no module of the model; nearest: .*{nearest}|{nearest}"
    ):
        adapter_rows(air, LoraConfig(targets=["o_proj", target]))


@pytest.mark.parametrize(
    ("settings", "field", "error"),
    [
        (
            {"targets": ["experts"], "dora": True},
            "lora.dora",
            r"targets name "
            r"model\.layers\.1\.mlp\.experts\.gate_proj: the norms "
            "of its adapted",
        ),
        (
            {"targets": ["q_proj", "lm_head"], "dropout": 0.1},
            "lora.dropout",
            "targets name lm_head, whose tokens carry no numbers",
        ),
        ({"targets": ["gate_proj", "experts.gate_up_proj"]}, "lora.targets", "'gate_up_proj' holds both gate and up"),
        ({"modules_to_save": ["q_proj"]}, "lora.modules_to_save", "has an adapter"),
        (
            {"modules_to_save": ["nrom"]},
            "lora.modules_to_save",
            "'nrom' matches no module of the model; nearest: 'norm'",
        ),
        ({"targets": ["q_proj", "q_proj"]}, "targets", "used 2 times"),
    ],
)
def test_what_cannot_be_adapted_is_refused(settings: dict[str, object], field: str, error: str) -> None:
    with pytest.raises(ValidationError, match=error) as refused:
        run_config(lora=settings, init_from=Path("somewhere"))
    assert refused.value.errors()[0]["ctx"]["field"] == field


def test_defaults_of_a_run_with_adapters() -> None:
    run = run_config(lora={}, init_from=Path("somewhere"), precision={"compute": "bf16"})
    assert run.precision.frozen == "bf16"
    assert run.optim.matrix_optimizer == "adamw"
    assert run.phases[0].router_bias_rate == 0
    assert run_config(lora={}, init_from=Path("somewhere"), precision={"compute": "fp32"}).precision.frozen == "fp32"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "adapters need base weights; set init_from, or"),
        (
            {"init_from": Path("x"), "regularization": {"ewc": {"fisher": Path("y")}}},
            "penalises changes to weights that lora",
        ),
    ],
)
def test_a_run_that_cannot_have_adapters_is_refused(settings: dict[str, object], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        run_config(lora={}, **settings)
