"""What `--price` takes, and what it refuses in one line."""

from pathlib import Path

import pytest

from glmforge.errors import ConfigError
from glmforge.plan.cost.prices import price_of
from glmforge.plan.cost.settings import CostSettings, read_settings
from glmforge.plan.machine.machine import find_machine


def test_a_number_is_the_price_of_a_gpu_hour() -> None:
    assert read_settings("2.5").dollars_per_gpu_hour == 2.5
    assert read_settings(None) == CostSettings()


def test_settings_are_given_by_name_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("dollars_per_gpu_hour: 3.1\npriced_on: 2026-11\nother_dollars: {people: 1e6}\n")
    assert read_settings("3.1, dollars_per_kwh=0.08").dollars_per_kwh == 0.08
    from_file = read_settings(str(file))
    assert (from_file.dollars_per_gpu_hour, from_file.other_dollars) == (3.1, {"people": 1e6})
    assert from_file.model_fields_set == {"dollars_per_gpu_hour", "priced_on", "other_dollars"}


@pytest.mark.parametrize(
    ("price", "message"),
    [
        ("-1", r"--price: .*greater than or equal to 0"),
        ("gpu_hour=3", r"--price: .*unknown key"),
        ("restart_seconds=", r"--price: .*value is missing"),
        ("nowhere.yaml", r"nowhere.yaml: cannot be read"),
    ],
)
def test_what_is_no_price_is_refused_in_one_line(price: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_settings(price)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "a: &a [x, x]\n" + "".join(f"{name}: &{name} [*a, *a]\n" for name in "bc") + "other_dollars: *c",
        "other_dollars: " + "{a: " * 200 + "1" + "}" * 200,
        "gpu_mtbf_hours: .nan",
        "gpu_mtbf_hours: 0",
        "restart_seconds: [600]",
        "other_dollars: {people: -1}",
        "",
    ],
)
def test_a_strangers_file_is_refused_in_a_few_lines(text: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"prices\.yaml") as caught:
        read_settings(str(file))
    assert str(caught.value).count("\n") < 5


def test_a_price_is_the_users_before_that_of_the_table() -> None:
    h100 = find_machine("H100 SXM").accelerator
    known, given = price_of(h100, CostSettings()), price_of(h100, read_settings("1.99,priced_on=2026-11-20"))
    assert known is not None
    assert known.date.startswith("20")
    assert given is not None
    assert (given.dollars_per_gpu_hour, given.date, given.source) == (1.99, "2026-11-20", "given")
    assert price_of(find_machine("L40S").accelerator, CostSettings()) is None
