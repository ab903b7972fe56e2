"""`glmforge plan`: phases and layouts in words, pictures of schedules, refusals in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config import load_config
from glmforge.dryrun.run import dry_run
from glmforge.errors import ConfigError

GUIDE = Path(__file__).parents[3] / "configs" / "pretrain_glm45_355b_guide.yaml"
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


def test_the_guides_layout() -> None:
    found = json.loads(plan(str(GUIDE), "--world-size", "8192", "--json"))
    assert found["axes"] == {"pp": 16, "dp_replicate": 1, "dp_shard": 64, "cp": 1, "tp": 8, "ep": 32}
    assert found["pipeline"][0] == ["embedding + layers 0-2", "layers 47-49"]
    assert found["pipeline"][-1] == ["layers 44-46", "MTP + head"]
    assert found["micro_batches"] == 16


def test_phases_are_told_before_the_layout(tiny: str) -> None:
    text = plan(tiny, "--world-size", "4")
    assert text.index("tokens in 2 steps") < text.index("4 ranks on axes")
    for cell in ("first", "second", "1.02k", "2.05k", "truncate", "1e-3"):
        assert cell in text


@pytest.mark.parametrize("suffix", ["html", "svg", "png"])
def test_a_schedule_needs_neither_data_nor_a_world_size(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / "new" / f"schedule.{suffix}"
    text = plan(str(GUIDE), "--schedule", str(out))
    assert str(out) in text.replace("\n", "")
    assert out.stat().st_size > 10_000
    assert "ranks on axes" not in text  # which 1 process would be refused for


def test_a_schedule_is_refused_where_its_file_has_no_known_kind(tiny: str) -> None:
    result = CliRunner().invoke(app, ["plan", tiny, "--schedule", "schedule.pdf"])
    assert isinstance(result.exception, ConfigError)
    assert "--schedule: schedule.pdf: must end in one of .html, .png, .svg" in str(result.exception)


def test_a_dry_run_needs_no_data(tiny: str) -> None:
    found = json.loads(plan(tiny, "--world-size", "4", "--dry-run", "--json"))
    assert [(kind["pp_rank"], kind["ranks"]) for kind in found["classes"]] == [(0, 2), (1, 2)]
    for kind in found["classes"]:
        assert kind["peak_bytes"] == sum(kind["at_peak_bytes"].values())
        assert kind["peak_bytes"] > sum(kind["held_bytes"][what] for what in ("weights", "optimizer"))
        assert kind["traffic"]["pp"]["bytes"] > 0


def test_tables_tell_layout_memory_traffic_and_margins(tiny: str) -> None:
    text = plan(tiny, "--world-size", "4", "--dry-run", "--rank", "3", "--gpu-memory", "40")
    for words in (
        "Pipeline",
        "Memory and peak of each kind of rank",
        "Memory at the peak",
        "a GPU of 40 GB",
        "Not included",
    ):
        assert words in text


def test_a_named_phase_alone_must_be_served(tiny: str) -> None:
    """The first phase's 64 tokens do not divide by 2 x cp = 128, the second's do; both are told apart by name."""
    arguments = ["plan", tiny, "parallel.cp=64", "phases.0.seq_len=64", "--world-size", "128", "--json"]
    served = CliRunner().invoke(app, [*arguments, "--phase", "second"], catch_exceptions=False)
    assert served.exit_code == 0
    assert json.loads(served.stdout)["axes"]["cp"] == 64
    assert "phase first needs another layout: phases.0.seq_len: 64 tokens do not divide" in served.stderr
    with pytest.raises(ConfigError, match=r"phases\.0\.seq_len: 64 tokens do not divide"):
        CliRunner().invoke(app, [*arguments, "--phase", "first"], catch_exceptions=False)
    with pytest.raises(ConfigError, match=r"phases\.0\.seq_len: 64 tokens do not divide"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        (["parallel.pp=3"], {}, r"parallel.pp"),
        ([], {"rank": 4}, r"--rank: 4 is not a rank of 4; give one from 0 to 3"),
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


def test_a_kind_of_gpu_gets_answers(tiny: str, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    output = plan(tiny, "--gpus", "2", "--gpu", "H100 SXM", "--page", str(page))
    assert "How fast?" in output
    assert "2 x H100 SXM, one node" in output
    assert "<h2>What if</h2>" in page.read_text()


def test_two_plans_are_compared(tiny: str) -> None:
    found = json.loads(
        plan(tiny, "--gpus", "2", "--gpu", "H100 SXM", "--compare", f"{tiny} parallel.recompute=full", "--json")
    )
    assert found["settings"] == {"parallel.recompute": ["none", "full"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--page", "plan.html"], "--page: needs the GPU; add --gpu"),
        (["--gpu", "H100 SXM", "--compare", "'"], "--compare: "),
        (
            ["--gpu", "H100 SXM", "--roofline", "H100 SXM", "--page", "plan.html"],
            "--roofline: cannot be combined with --page",
        ),
        (["--gpu", "H100 SXM", "--search", "--compare", "demo"], "--search: finds one layout"),
    ],
)
def test_refuses_options_that_lack_something(tiny: str, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["plan", tiny, *arguments])
    assert str(result.exception).startswith(message)
