"""The table of parameters is the model's, whatever its shape."""

import pytest
import torch

from glmforge.config.parameters import COMPLETE, OWN_SHARE, Parameter, UndeclaredParameterError, parameter_table
from glmforge.errors import GlmforgeError
from glmforge.model import GlmMoe
from helpers.models import tiny_config

SHAPES = {
    "as it is": {},
    "no biases, no norms of queries and keys": {"attention_bias": False, "use_qk_norm": False},
    "two MTP layers, two shared experts": {"num_nextn_predict_layers": 2, "n_shared_experts": 2},
    "no dense layer, no MTP": {"first_k_dense_replace": 0, "num_nextn_predict_layers": 0},
    "dense layers only": {"first_k_dense_replace": 4},
    "tied": {"tie_word_embeddings": True},
    "other heads": {"heads": {"score": 1, "value": 2}},
    "no language-model head": {"heads": {"score": 1}, "lm_head": False, "num_nextn_predict_layers": 0},
}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_names_and_shapes_are_the_models(changes):
    config = tiny_config(**changes)
    with torch.device("meta"):
        model = GlmMoe(config)
    table = parameter_table(config)
    parameters = {name: tuple(p.shape) for name, p in model.named_parameters()}
    buffers = {name: tuple(b.shape) for name, b in model.named_buffers()}
    assert {name: row.shape for name, row in table.trained().items()} == parameters
    assert table.shapes() == parameters | buffers


def row(name: str, **changes: object) -> Parameter:
    fields = {"shape": (4, 4), "family": "matrix", "initial": "normal", "tp_dim": None, "partial": COMPLETE}
    return Parameter(name=name, **(fields | changes))


def test_an_undeclared_name_is_an_error_that_says_where_to_declare_it():
    table = parameter_table(tiny_config())
    assert "score.weight" not in table
    with pytest.raises(GlmforgeError, match=r"score\.weight.*config/parameters\.py.*extended"):
        table["score.weight"]
    with pytest.raises(UndeclaredParameterError):
        table["model.layers.99.mlp.gate.weight"]


def test_an_extended_table_has_both():
    table = parameter_table(tiny_config())
    longer = table.extended([row("score.weight")])
    assert list(longer) == [*table, "score.weight"]
    assert "score.weight" not in table
    with pytest.raises(ValueError, match="already declared"):
        longer.extended([row("score.weight")])


@pytest.mark.parametrize("cut", [{"tp_dim": 0, "partial": OWN_SHARE}, {"expert": True, "partial": {"ep": "always"}}])
def test_what_is_cut_over_an_axis_is_not_partial_over_it(cut):
    with pytest.raises(ValueError, match="is sharded over"):
        row("a.weight", **cut)


def test_only_matrices_are_drawn():
    with pytest.raises(ValueError, match=r"\(4,\) cannot be drawn"):
        row("a.bias", shape=(4,), family="vector")
