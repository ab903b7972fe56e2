"""A model that is not what the table of parameters declares is not built."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from glmforge.config.layout import Layout
from glmforge.config.parameters import COMPLETE, HEAD, Parameter, UndeclaredParameterError, parameter_table
from glmforge.model.transformer import GlmMoe, Section
from glmforge.parallel.build import build_model
from glmforge.parallel.declared import WrongRowError, check_declared
from glmforge.parallel.world import World
from helpers.models import run_config, tiny_config

WORLD = World(0, 1, torch.device("cpu"), Layout())
CONFIG = tiny_config()
SCALE = "model.layers.1.scale"
ROW = Parameter(name=SCALE, shape=(3,), family="vector", initial="ones", tp_dim=None, partial=COMPLETE)


def add_scale(model: GlmMoe) -> None:
    for name, layer in model.model.layers.items():
        if SCALE.startswith(f"model.layers.{name}."):
            layer.scale = nn.Parameter(torch.empty(3))


def test_a_declared_parameter_is_built_and_initialised():
    model = build_model(run_config(), WORLD, table=parameter_table(CONFIG).extended([ROW]), extend=add_scale)
    assert torch.equal(dict(model.named_parameters())[SCALE], torch.ones(3))


def test_a_forgotten_row_is_an_error_that_says_where_it_goes():
    with pytest.raises(UndeclaredParameterError, match=rf"^{SCALE}: .*config/parameters\.py.*extended"):
        build_model(run_config(), WORLD, extend=add_scale)


WRONG = {
    "nothing answers to it": (ROW, lambda model: None, "no such parameter"),
    "another shape": (replace(ROW, shape=(4,)), add_scale, r"shape \(4,\), but the model has \(3,\)"),
    "a buffer": (replace(ROW, trained=False), add_scale, "trained False, but the model has True"),
}


@pytest.mark.parametrize(("row", "extend", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_row_is_an_error_that_says_how(row, extend, message):
    with pytest.raises(WrongRowError, match=rf"^{SCALE}: .*{message}"):
        build_model(run_config(), WORLD, table=parameter_table(CONFIG).extended([row]), extend=extend)


@pytest.mark.parametrize("missing", [HEAD, "model.layers.4.eh_proj.weight", "model.layers.1.input_layernorm.weight"])
def test_a_section_lacks_what_other_sections_hold_and_nothing_else(missing):
    table = parameter_table(CONFIG)
    with torch.device("meta"):
        first = GlmMoe(CONFIG, Section(0, 2, first=True, last=False))
        last = GlmMoe(CONFIG, Section(2, 4, first=False, last=True))
    check_declared(first, table)
    check_declared(last, table)
    module, _, attribute = missing.rpartition(".")
    section = first if missing.startswith("model.layers.1.") else last
    setattr(section.get_submodule(module), attribute, None)
    with pytest.raises(WrongRowError, match=missing):
        check_declared(section, table)
