import pytest

from glmforge.config import load_model_config
from glmforge.errors import ConfigError
from glmforge.plan.stages.lora import ATTENTION, Lora, adapter_parameters, parse_lora

# Of rank 16, by hand: rank x (inputs + outputs) of each map, times the layers that have it.
_ATTENTION = 46 * 16 * ((4096 + 12288) + 2 * (4096 + 1024) + (12288 + 4096))
_EXPERTS = 45 * 128 * 16 * 3 * (4096 + 1408)
_SHARED = 45 * 16 * 3 * (4096 + 1408)
_DENSE = 16 * 3 * (4096 + 10944)


@pytest.mark.parametrize(
    ("targets", "tensors", "elements"),
    [
        ("q_proj+k_proj+v_proj+o_proj", 368, 31_653_888),
        ("self_attn", 368, _ATTENTION),
        ("experts", 270, _EXPERTS),
        ("experts.down_proj", 90, _EXPERTS // 3),
        ("shared_experts", 270, _SHARED),
        ("gate_proj", 2 * (1 + 45 + 45), (_EXPERTS + _SHARED + _DENSE) // 3),
        ("self_attn+mlp", 914, _ATTENTION + _EXPERTS + _SHARED + _DENSE),
    ],
)
def test_adapters_of_air(targets: str, tensors: int, elements: int) -> None:
    rows = adapter_parameters(load_model_config("glm45_air_106b"), parse_lora(f"rank=16,target={targets}"))
    assert (len(rows), sum(row.size for row in rows)) == (tensors, elements)
    assert len({row.name for row in rows}) == tensors


def test_tensor_parallelism_cuts_an_adapter_where_it_cuts_the_map() -> None:
    rows = {
        row.name.removeprefix("model.layers.0.self_attn."): row
        for row in adapter_parameters(load_model_config("glm45_air_106b"), Lora(16))
        if row.layer == 0
    }
    cut = {name: row.shape[row.tp_dim] for name, row in rows.items() if row.tp_dim is not None}
    assert cut == {
        "q_proj.lora_B.weight": 12288,
        "k_proj.lora_B.weight": 1024,
        "v_proj.lora_B.weight": 1024,
        "o_proj.lora_A.weight": 12288,
    }
    whole = [row for row in rows.values() if row.tp_dim is None]
    assert all(row.partial_axes(sequence_parallel=False) == ("tp",) for row in whole)


@pytest.mark.parametrize(
    ("text", "lora"),
    [("rank=8", Lora(8, ATTENTION)), ("target=q_proj+experts+q_proj,rank=4", Lora(4, ("q_proj", "experts")))],
)
def test_parse(text: str, lora: Lora) -> None:
    assert parse_lora(text) == lora


@pytest.mark.parametrize("text", ["", "16", "rank=", "rank=0", "rank=-1", "rank=٣", "rank=99999", "rank=8,alpha=16"])
def test_what_is_no_lora_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--lora"):
        parse_lora(text)


@pytest.mark.parametrize("target", ["", "proj", "gate", "q_proj.weight", "layers", "eh_proj"])
def test_a_target_that_is_no_map_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="known are self_attn, q_proj"):
        adapter_parameters(load_model_config("glm45_air_106b"), Lora(16, ("o_proj", target)))
