"""Every point's run: places of its own, and what is refused before anything is written."""

import pytest

from glmforge.errors import ConfigError
from glmforge_ops.jobs.sweep.points import expand
from glmforge_ops.jobs.sweep.runs import check_points

BASE = ["output_dir=out/base"]


def test_each_point_has_a_name_and_places_of_its_own():
    apart = [*BASE, "checkpoint.dir=/fast/ckpt", "observe.tensorboard_dir=/fast/tb"]
    runs = check_points("lr", "demo", apart, expand(["optim.lr=1e-3,2e-3"]))
    assert [run.config.optim.lr for run in runs] == [1e-3, 2e-3]
    assert [run.config.name for run in runs] == ["lr-000", "lr-001"]
    assert [str(run.config.output_dir) for run in runs] == ["out/lr-000", "out/lr-001"]
    assert [str(run.config.checkpoint.dir) for run in runs] == ["/fast/ckpt/lr-000", "/fast/ckpt/lr-001"]
    assert [str(run.config.observe.tensorboard_dir) for run in runs] == ["/fast/tb/lr-000", "/fast/tb/lr-001"]


def test_a_point_is_the_run_that_the_same_overrides_give(tmp_path):
    from glmforge.config import load_config

    model = tmp_path / "other, model.yaml"
    model.write_text("model: {preset: tiny, num_hidden_layers: 4}\n")
    point = check_points("m", "demo", BASE, expand([f"model=tiny,'{model}'"]))[1]
    same = load_config("demo", [f'model="{model}"', "name=m-001", "output_dir=out/m-001"])
    assert point.config == same
    assert point.config.model.num_hidden_layers == 4


def test_places_that_the_sweep_sets_stay():
    runs = check_points("lr", "demo", BASE, expand(["seed=1,2", "name=same"]))
    assert [run.config.name for run in runs] == ["same", "same"]
    file_points = [
        point.__class__(point.task, {**point.settings, "output_dir": f"x{point.task}"})
        for point in expand(["seed=1,2"])
    ]
    runs = check_points("lr", "demo", BASE, file_points)
    assert [str(run.config.output_dir) for run in runs] == ["x0", "x1"]


@pytest.mark.parametrize(
    ("axes", "problem"),
    [
        (["optim.lrr=1e-3,2e-3"], "point 0 (optim.lrr=0.001): override 'optim.lrr=0.001': optim.lrr: unknown key"),
        (["optim.lr=1e-3,x"], "point 1 (optim.lr=x): "),
        (["model=tiny,nope.yaml"], "point 1 (model=nope.yaml): "),
        (["seed=1,2", "output_dir=same"], "points 0 and 1 would both write to same"),
        (["model.num_hidden_layers=4,5", "model=tiny"], "are the same run"),
        (["phases.7.steps=1,2"], "is no item of a list"),
    ],
)
def test_wrong_points_are_named(axes, problem):
    with pytest.raises(ConfigError) as raised:
        check_points("lr", "demo", BASE, expand(axes))
    assert problem in str(raised.value)


def test_a_mistake_of_all_points_is_told_without_a_point():
    with pytest.raises(ConfigError) as raised:
        check_points("lr", "demo", ["optim.lrr=1"], expand(["seed=1,2"]))
    assert "point" not in str(raised.value)


def test_progress_is_told():
    told = []
    check_points("lr", "demo", BASE, expand(["seed=1,2,3"]), told.append)
    assert told == [1, 2, 3]
