"""A stage that is declared once is known everywhere: configurations, plans, the check of memory, help and docs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.load import dump_config
from glmforge.config.model import Strict
from glmforge.config.role import MODEL, Role
from glmforge.config.schema import RunConfig, declare_stage
from glmforge.config.stage import StageDeclaration, stages_markdown
from glmforge.errors import ConfigError
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.stages.stage import TrainingStage
from glmforge.recipes import fit
from glmforge.runtime.launch import LaunchEnvironment
from helpers.stages import declared

RUN = """
name: run
stage: twins
model: tiny
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 4, seq_len: 64, batch_size: 8}]
"""


class TwinsConfig(Strict):
    """Its section."""

    margin: float = 1.0


class GapConfig(Strict):
    """A section that has to be given."""

    gap: float


TWIN = Role("twin", is_trained=False, forwards=1)
TWINS = StageDeclaration(
    name="twins",
    summary="a model against one that stays as it is",
    recipe="nowhere:twins",
    starts_from_weights=False,
    roles=lambda run: (MODEL, TWIN),
    phase_defaults={"mtp_loss_weight": 0.0},
    sections={"twins": TwinsConfig},
)


@pytest.fixture(autouse=True)
def twins() -> Iterator[None]:
    with declared(TWINS):
        yield


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "run.yaml").write_text(RUN)
    return str(tmp_path / "run.yaml")


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return result.stdout


def test_a_configuration_has_its_section_and_defaults() -> None:
    config = load_config(RUN, ["twins.margin=2.0"])
    assert config.stage_settings(TwinsConfig) == TwinsConfig(margin=2.0)
    assert load_config(RUN).stage_settings(TwinsConfig) == TwinsConfig()
    assert config.phases[0].mtp_loss_weight == 0.0
    assert load_config(dump_config(config)) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["twins.margn=2.0"], "twins.margn: unknown key; did you mean 'margin'?"),
        (["stage=pretrain", "twins={}"], "twins: belongs to stage 'twins', but this run's"),
        (
            ["stage=finetune"],
            "stage: should be 'pretrain', 'midtrain', 'sft', 'reward', 'dpo', 'rl' or 'twins', not 'finetune'",
        ),
        (
            ["stage=policy"],
            "stage: should be 'pretrain', 'midtrain', 'sft', 'reward', 'dpo', 'rl' or 'twins', not 'policy'",
        ),
    ],
)
def test_what_is_wrong_is_told_in_its_words(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(RUN, overrides)
    assert message in str(refused.value)


def test_a_section_without_defaults_has_to_be_given() -> None:
    with declared(StageDeclaration(name="gap", starts_from_weights=False, sections={"gap": GapConfig})):
        assert load_config(RUN, ["stage=gap", "gap.gap=0.5"]).stage_settings(GapConfig).gap == 0.5
        with pytest.raises(ConfigError, match=r"gap: stage 'gap' needs this section, with gap"):
            load_config(RUN, ["stage=gap"])


def test_a_section_of_another_kind_keeps_its_name() -> None:
    with pytest.raises(ValueError, match="section 'twins' is already declared; choose another name"):
        declare_stage(StageDeclaration(name="others", sections={"twins": GapConfig}))


def test_a_plan_shows_its_models(path: str) -> None:
    shown = output_of("plan", path)
    assert "Models of stage twins" in shown
    assert "twin " in shown
    result = CliRunner().invoke(app, ["plan", path, "--stage", "triplets"])
    assert "choose one of pretrain, midtrain, sft, reward, dpo, rl, twins, lora" in str(result.exception)
    result = CliRunner().invoke(app, ["plan", path, "--dry-run"])
    assert "--dry-run: runs the step of one model, but" in str(result.exception)


def test_all_its_models_have_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(RUN)
    layout = resolve_layout(config, 1)
    alone = estimate_memory(config, layout).peak
    peak = estimate_memory(config, layout, TrainingStage("both", (MODEL, TWIN))).peak
    assert peak > alone
    for size, fits in ((peak, True), (peak - 1, False)):
        monkeypatch.setattr(fit, "usable_memory", lambda size=size: size)
        if fits:
            fit.check_fit(config, layout, LaunchEnvironment(), torch.device("cpu"), force=False)
        else:
            with pytest.raises(ConfigError, match="does not fit"):
                fit.check_fit(config, layout, LaunchEnvironment(), torch.device("cpu"), force=False)


def test_help_and_docs_name_it() -> None:
    assert "twins: a model against one that stays as it is" in output_of("train", "--help")
    assert "| `twins` | a model against one that stays as it is |" in stages_markdown()


def test_it_is_gone_afterwards() -> None:
    """Of the helper: other tests see the stages that are shipped."""
    with declared(StageDeclaration(name="gap", sections={"gap": GapConfig})):
        assert "gap" in RunConfig.model_fields
    assert "gap" not in RunConfig.model_fields
