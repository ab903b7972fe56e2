"""`glmforge plan`: layouts in words, refusals in one line, and the configs that the repository ships."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli import app
from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.load import dump_config
from glmforge.errors import ConfigError
from glmforge.plan.layout import select_phase, stages_of
from glmforge.recipes.dry_run.run import dry_run

LAYOUTS = sorted((Path(__file__).parents[3] / "configs" / "layouts").glob("*.yaml"))
TINY = """
name: tiny
model: tiny
data: {tokenizer: nowhere, sources: [{name: text, path: nowhere}]}
phases: [{name: first, steps: 1, seq_len: 64, batch_size: 16}, {name: second, steps: 1, seq_len: 128, batch_size: 16}]
parallel: {pp: 2, micro_batch_size: 1}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_shipped_layouts_are_of_8192_gpus(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    assert load_config(dump_config(config)) == config
    layout = resolve_layout(config, 8192)
    assert config.model.num_hidden_layers == 92
    assert sum(stage.num_dense + stage.num_moe for stage in stages_of(config.model, layout)) == 92
    # What torch's 1F1B needs.
    assert all(layout.num_micro_batches(phase) >= layout.pp for phase in config.phases)


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_the_fullest_rank_of_a_shipped_layout_fits_80_gb(path: Path) -> None:
    found = dry_run(load_config(path), 8192, rank=0)
    assert found.peak < 0.9 * 80e9


def test_the_guides_layout() -> None:
    (path,) = [path for path in LAYOUTS if path.stem == "glm45_355b_guide"]
    config = load_config(path)
    assert config.phases[0].tokens_per_step == 4 * 2**20
    found = json.loads(plan(str(path), "--world-size", "8192", "--json"))
    assert found["axes"] == {"pp": 16, "dp_replicate": 1, "dp_shard": 64, "cp": 1, "tp": 8, "ep": 32}
    assert found["pipeline"][0] == ["embedding + layers 0-6"]
    assert found["pipeline"][-1] == ["layer 91 + MTP + head"]
    assert found["micro_batches"] == 16


def test_a_dry_run_needs_no_data(tiny: str) -> None:
    found = json.loads(plan(tiny, "--world-size", "4", "--dry-run", "--json"))
    assert [(kind["pp_rank"], kind["ranks"]) for kind in found["classes"]] == [(0, 2), (1, 2)]
    for kind in found["classes"]:
        assert kind["peak_bytes"] == sum(kind["at_peak_bytes"].values())
        assert kind["peak_bytes"] > sum(kind["held_bytes"][what] for what in ("weights", "optimizer"))
        assert kind["traffic"]["pp"]["bytes"] > 0


def test_tables_tell_layout_memory_traffic_and_margins(tiny: str) -> None:
    text = plan(tiny, "--world-size", "4", "--dry-run", "--rank", "3", "--gpu-memory", "40")
    for words in ("Pipeline", "What each kind of rank holds", "What lives at the peak", "a GPU of 40 GB", "Not in it"):
        assert words in text


def test_another_phase_can_be_looked_at(tiny: str) -> None:
    assert "phase second" in plan(tiny, "--world-size", "4", "--phase", "second")
    with pytest.raises(ConfigError, match="no phase 'third'; the configuration has first, second"):
        select_phase(load_config(tiny), "third")


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        (["parallel.pp=3"], {}, r"parallel.pp"),
        ([], {"rank": 4}, r"--rank: 4 is no rank of 4; give one from 0 to 3"),
        ([], {"imbalance": 0.5}, r"--imbalance: 0.5 is less than an even share"),
        (["parallel.cpu_offload=true"], {}, r"parallel.cpu_offload: .*set it to false"),
        (["parallel.micro_batch_size=8"], {}, r"1f1b needs at least pp = 2"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    tiny: str, overrides: list[str], options: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        dry_run(load_config(tiny, overrides), 4, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_single_process_is_a_layout_too(tiny: str) -> None:
    text = plan(tiny, "parallel.pp=1", "--world-size", "1", "--dry-run")
    assert "embedding" in text
    assert "Communication" not in text
