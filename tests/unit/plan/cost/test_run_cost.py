"""Days, GPU-hours, energy and dollars by hand; what failures and settings do to them."""

import json

import pytest
from typer.testing import CliRunner

from glmforge import load_config
from glmforge.cli.app import app
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.cost.phase_time import phases_at
from glmforge.plan.cost.run_cost import RunCost, run_cost
from glmforge.plan.cost.settings import read_settings
from glmforge.plan.machine.machine import find_machine

MACHINE = find_machine("H100 SXM")
SCALED = "configs/scaled_down_64gpu.yaml"


def cost_of(config: RunConfig, price: str = "2.0", num_gpus: int = 64, mfu: float = 0.3) -> RunCost:
    return run_cost(config, num_gpus, MACHINE, phases_at(config, num_gpus, MACHINE, mfu), read_settings(price))


def test_dollars_are_gpus_times_hours_times_their_price() -> None:
    cost = cost_of(load_config(SCALED), "2.0,gpu_mtbf_hours=1e12,seconds_per_save=0,storage_bytes_per_second=1e15")
    undisturbed = sum(phase.time.seconds or 0.0 for phase in cost.phases)
    assert cost.utilisation == pytest.approx(0.3)
    assert cost.goodput == pytest.approx(1.0, abs=1e-4)
    assert cost.gpu_hours == pytest.approx(64 * undisturbed / 3600, rel=1e-4)
    assert cost.dollars == {"GPUs": pytest.approx(2 * cost.gpu_hours)}
    for phase in cost.phases:
        assert phase.gpu_dollars == pytest.approx(2 * phase.gpu_hours)
    # 700 W x 1.82 x 1.25 for every GPU-hour
    assert cost.kilowatt_hours == pytest.approx(1.5925 * cost.gpu_hours)


def test_energy_storage_and_lump_sums_are_paid_beside() -> None:
    cost = cost_of(load_config(SCALED), "2,dollars_per_kwh=0.1,dollars_per_tb_month=20,other_dollars={people: 1000}")
    terabytes = (cost.storage.shared_peak + cost.storage.token_shards) / 1e12
    assert cost.kilowatt_hours is not None
    assert cost.dollars == {
        "people": 1000,
        "GPUs": pytest.approx(2 * cost.gpu_hours),
        "energy": pytest.approx(0.1 * cost.kilowatt_hours),
        "storage": pytest.approx(20 * terabytes * cost.seconds / (30 * 86400)),
    }


def test_more_gpus_fail_more_often() -> None:
    config = load_config(SCALED)
    few, many = cost_of(config, num_gpus=64), cost_of(config, num_gpus=640)
    assert few.failures.mtbf_seconds == pytest.approx(10 * many.failures.mtbf_seconds)
    assert few.failures.mtbf_seconds == pytest.approx(50_700 * 3600 / 64)


def test_lost_work_follows_the_checkpoints_that_outlive_a_node() -> None:
    """The file has permanent ones every 500 steps, ephemeral ones every 100 on the nodes' own disks."""
    config = load_config(SCALED)
    rare = cost_of(config, "2,gpu_mtbf_hours=1000")
    often = cost_of(load_config(SCALED, ["checkpoint.local_dir=null"]), "2,gpu_mtbf_hours=1000")
    assert (rare.interval_steps, often.interval_steps) == (500, 100)
    assert rare.goodput < often.goodput < 1
    for phase in rare.phases:
        assert phase.best_goodput >= phase.goodput
        assert phase.seconds == pytest.approx((phase.time.seconds or 0) / phase.goodput)


def test_saves_that_training_waits_for_take_as_long_as_the_storage() -> None:
    config = load_config(SCALED, ["checkpoint.background=false"])
    cost = cost_of(config, "2,storage_bytes_per_second=1e9,seconds_per_save=0")
    assert cost.failures.save_seconds == pytest.approx(cost.storage.checkpoint / 8 / 1e9)  # over 8 nodes
    assert cost.failures.write_seconds == 0


def test_a_phase_that_never_ends_is_left_out() -> None:
    cost = cost_of(load_config(SCALED), "2,gpu_mtbf_hours=1")
    assert cost.gpu_hours == 0
    for phase in cost.phases:
        assert phase.seconds is None
        assert phase.time.problem is not None
        assert "too often" in phase.time.problem


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_command_says_all_of_it() -> None:
    text = plan(SCALED, "--gpus", "64", "--gpu", "H100 SXM", "--cost", "--price", "2.5,priced_on=2026-11-20")
    for words in ("general", "code_and_reasoning", "long_context", "goodput", "$2.50 per GPU-hour (2026-11-20, given)"):
        assert words in text
    for words in (
        *("MWh", "A failure about every", "optimizer states", "token shards", "Assumed"),
        *("gpu_mtbf_hours 50700", "In four of five cases $"),
    ):
        assert words in text
    found = json.loads(plan(SCALED, "--gpus", "64", "--gpu", "H100 SXM", "--cost", "--price", "2.5", "--json"))
    assert found["given"] == ["dollars_per_gpu_hour"]
    assert found["provenance"] in ("calibrated", "assumed")
    assert found["dollars"]["all"] == pytest.approx(2.5 * found["gpu_hours"])
    assert [phase["name"] for phase in found["phases"]] == ["general", "code_and_reasoning", "long_context"]


def test_checkpoints_that_have_no_room_are_told() -> None:
    text = plan(SCALED, "--gpus", "64", "--gpu", "H100 SXM", "--cost", "--price", "2,disk_bytes=100e9")
    assert "100.00 GB are given (disk_bytes): NOT enough" in " ".join(text.split())


def test_the_command_prints_the_guides_sheet() -> None:
    text = plan("configs/pretrain_glm45_355b_guide.yaml", "--sheet", "guide")
    for words in ("24,969,216", "62,423,040", "65,923,040", "82 days of training", "9.6%", "our prediction"):
        assert words in text
    found = json.loads(plan("configs/scaled_down_64gpu.yaml", "--sheet", "guide-64", "--json"))
    assert found["sheet"]["gpu_hours"] == 46_080
    small = plan("configs/scaled_down_64gpu.yaml", "--sheet", "guide-64")
    assert "138,240" in small
    assert "At $2.50 the same hours are $115,200" in small
    assert found["problems"] == []


def test_an_unknown_sheet_is_refused() -> None:
    with pytest.raises(ConfigError, match="--sheet: unknown sheet 'mine'; choose one of guide"):
        plan(SCALED, "--sheet", "mine")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cost"], "--cost: .*--gpu"),
        (["--cost", "--gpu", "H100 SXM", "--mfu", "2"], "--mfu: 2 must be between 0 and 1, such"),
        (["--cost", "--gpu", "H100 SXM", "--price", "much"], "--price: "),
        (["--cost", "--gpu", "H100 SXM", "parallel.cp=3"], "--mfu, which needs no layout"),
        (["--price", "2"], "--price: needs the GPU; add --gpu, such as"),
        (["--mfu", "0.3"], "--mfu: .*--cost"),
        (["--sheet", "guide-64"], "--sheet: brings its own GPUs and prices; remove --gpus"),
        (["--cost", "--gpu", "H100 SXM", "--dry-run"], "--cost: cannot be combined; remove --dry-run"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        CliRunner().invoke(app, ["plan", SCALED, "--gpus", "64", *options], catch_exceptions=False)
    assert "\n" not in str(caught.value)
