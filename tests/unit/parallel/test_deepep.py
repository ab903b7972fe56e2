"""Where DeepEP cannot be used the run is refused, by one line that names the field."""

import sys
from typing import Any

import pytest
import torch

from glmforge.config.schema import RunConfig
from glmforge.dryrun.rank import dry_run_rank
from glmforge.errors import ConfigError
from glmforge.parallel.deepep import check_usable
from helpers import deep_ep
from helpers.models import TINY, run_config

CUDA = torch.device("cuda")


def config_of(ep: int = 2, compute: str = "bf16", **model: Any) -> RunConfig:
    return run_config(
        model=TINY | {"n_routed_experts": 16} | model,
        parallel={"ep": ep, "ep_dispatch": "deepep"},
        precision={"compute": compute},
    )


def refusal(config: RunConfig, device: torch.device = CUDA) -> str:
    with pytest.raises(ConfigError) as refused:
        check_usable(config, device)
    return str(refused.value)


def test_without_the_package_or_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(config_of()) == (
        "parallel.ep_dispatch: 'deepep' needs the package 'deep_ep', which is not installed; "
        "set parallel.ep_dispatch to all_to_all"
    )
    monkeypatch.setitem(sys.modules, "deep_ep", deep_ep.package())
    check_usable(config_of(), CUDA)
    assert refusal(config_of(), torch.device("cpu")) == (
        "parallel.ep_dispatch: 'deepep' needs CUDA devices; this run's, like a dry run's, is cpu; "
        "set parallel.ep_dispatch to all_to_all"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_of(compute="fp32"), "precision.compute: DeepEP supports bf16 only, not fp32; set bf16, or "),
        (config_of(hidden_size=40), "model.hidden_size: 40, but DeepEP needs a multiple of 16 up to 8176 with 2 "),
        (config_of(hidden_size=8192), "model.hidden_size: 8192, but DeepEP needs a multiple of 16 up to 8176 "),
        (config_of(ep=16, hidden_size=128), "model.hidden_size: 128, but DeepEP needs a multiple of 256 up to "),
        (
            config_of(n_routed_experts=64, num_experts_per_tok=33),
            "model.num_experts_per_tok: 33, but DeepEP supports at most 32; lower it, or set ",
        ),
    ],
    ids=["fp32", "width", "too wide", "several nodes", "choices"],
)
def test_models_that_it_does_not_take(config: RunConfig, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deep_ep", deep_ep.package())
    assert refusal(config).startswith(message)
    assert refusal(config).endswith("parallel.ep_dispatch to all_to_all")


def test_a_dry_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="like a dry run's"):
        dry_run_rank(config_of(), 2, 0)
