"""What `--sweep` options and files of sweeps mean."""

from pathlib import Path

import pytest

from glmforge.errors import ConfigError
from glmforge_ops.jobs.sweep.points import MAX_POINTS, expand, overrides_of, parse_axis, settings_words


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("optim.lr=1e-4,3e-4", [1e-4, 3e-4]),
        ("optim.lr=5e-4", [5e-4]),
        ("optim.lr=log(1e-4,1e-2,3)", [1e-4, 1e-3, 1e-2]),
        ("optim.lr=linear( 0, 1, 5 )", [0, 0.25, 0.5, 0.75, 1]),
        ("phases.0.steps=linear(100,400,4)", [100, 200, 300, 400]),
        ("model=tiny.yaml,demo", ["tiny.yaml", "demo"]),
        ("name='a,b',\"c\"", ["a,b", "c"]),
        ("a=[1, 2],{x: 1, y: 'u,v'}", [[1, 2], {"x": 1, "y": "u,v"}]),
        ("a=true,null,no", [True, None, "no"]),
        ("path=glm:air,a=b", ["glm:air", "a=b"]),
        ("a=1,'1',{x: 1},{x: '1'}", [1, "1", {"x": 1}, {"x": "1"}]),
        ("a=linear(0.123456789,1,2)", [0.123456789, 1]),
    ],
)
def test_values_of_an_option(text, values):
    assert parse_axis(text) == (text.split("=")[0], values)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("optim.lr", "has no values"),
        ("=1", "expected a dotted key"),
        ("optim.lr=", "has no values"),
        ("optim.lr=1,", "missing after the last comma"),
        ("optim.lr=1,,2", "not valid YAML"),
        ("optim.lr=1],[2", "not valid YAML"),
        ("optim.lr=log(1e-4,1e-2)", "has the form log(low, high, count)"),
        ("optim.lr=log(0,1,3)", "0 < low < high"),
        ("optim.lr=linear(2,1,3)", "low < high"),
        ("optim.lr=linear(1,2,1)", "from 2 to"),
        ("optim.lr=linear(true,2,3)", "all numbers"),
        ("seed=\x1b[31m", "not valid YAML"),
    ],
)
def test_wrong_options_are_one_line(text, problem):
    with pytest.raises(ConfigError) as raised:
        parse_axis(text)
    assert problem in str(raised.value)
    assert str(raised.value).isprintable()


def test_several_keys_make_their_product_the_last_fastest():
    points = expand(["optim.lr=1,2", "seed=5,6,7"])
    assert [list(point.values()) for point in points] == [[1, 5], [1, 6], [1, 7], [2, 5], [2, 6], [2, 7]]


def test_overrides_read_back_as_the_same_values():
    values = [1e-5, True, None, "no", "1", "a,b: {c}", "ünï \U0001f600 'q' \"d\"", [1, [2]], {"a": "x"}]
    settings = {f"k{number}": value for number, value in enumerate(values)}
    for text, value in zip(overrides_of(settings), values, strict=True):
        assert parse_axis(text)[1] == [value]


def test_a_file_and_options_multiply(tmp_path):
    file = written(tmp_path, "points: [{optim.lr: 1e-4, seed: 1}, {optim.lr: 3e-4, seed: 2}]")
    points = expand(["model=tiny,demo"], file)
    assert len(points) == 2 * 2
    assert points[0] == {"optim.lr": 1e-4, "seed": 1, "model": "tiny"}


def test_numbers_too_large_for_an_integer_that_is_exact_stay_as_they_are():
    assert [type(value) for value in parse_axis("a=linear(1,1e300,2)")[1]] == [int, float]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("points: []", "points"),
        ("points: [{'a b': 1}]", "expected a dotted key"),
        ("points: [{seed: 1}]\ngrid: {seed: [1]}", "grid: unknown key"),
        ("[1]", "expected a mapping"),
    ],
)
def test_wrong_files_are_one_line(tmp_path, text, problem):
    with pytest.raises(ConfigError) as raised:
        expand([], written(tmp_path, text))
    assert problem in str(raised.value)
    assert str(raised.value).isprintable()


def test_the_number_of_points_is_bounded_before_they_are_made():
    numbers = ",".join(map(str, range(101)))
    with pytest.raises(ConfigError, match=f"10,201 points, more than {MAX_POINTS:,}"):
        expand([f"seed={numbers}", f"phases.0.steps={numbers}"])
    with pytest.raises(ConfigError, match="1,061,520,150,601 points"):
        expand([f"k{axis}={numbers}" for axis in range(6)])
    hundred = ",".join(map(str, range(100)))
    assert len(expand([f"seed={hundred}", f"phases.0.steps={hundred}"])) == MAX_POINTS


def test_no_settings():
    with pytest.raises(ConfigError, match="no settings"):
        expand()


def test_a_point_in_words():
    (settings,) = expand(["optim.lr=1e-4", "model={preset: demo}"])
    assert settings_words(settings) == 'optim.lr=0.0001 model={"preset": "demo"}'


def written(tmp_path, text) -> Path:
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    return file
