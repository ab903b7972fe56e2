"""Tables at any width: no cell is cut, whatever columns there are."""

import io
import random
import shlex
from collections import Counter

import pytest
from rich.console import Console
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.cli.tables import print_facts, print_table, table

WORDS = (
    "yes",
    "hardly: 79.1 GB",
    "model.layers.*.mlp.shared_experts.down_proj.lora_A.weight",
    "",
    "a copy on each node",
)
NUMBERS = ("", "1", "15,437", "109,258,964,736", "+0.006")


def printed(rows, width: int) -> str:
    screen = io.StringIO()
    print_table("", rows, Console(file=screen, width=width, color_system=None))
    return screen.getvalue()


@pytest.mark.parametrize("seed", range(40))
def test_every_cell_is_there_at_every_width(seed: int) -> None:
    """Words folded perhaps, numbers never; in a table no line is wider than the terminal."""
    draw = random.Random(seed)
    words = [f"words {number}" for number in range(draw.randrange(4))]
    numbers = [f"number of {number}" for number in range(1, 1 + draw.randrange(9))]
    columns = [*words, *numbers] or ["words 0"]
    rows = table(*columns, in_words=columns if not numbers else words)
    cells = [draw.choice(WORDS) for _ in columns[: len(words)]] + [draw.choice(NUMBERS) for _ in numbers]
    rows.add_row(*cells[: len(columns)])
    for width in (40, 80, 130):
        lines = printed(rows, width).splitlines()
        assert "…" not in "".join(lines)
        if "─" in "".join(lines):
            assert max(map(len, lines)) <= width
        assert Counter("".join(cells).replace(" ", "")) <= Counter("".join(lines))
        for number in cells[len(words) :]:
            assert number in "\n".join(lines)


def test_a_table_that_is_too_wide_is_printed_row_by_row() -> None:
    rows = table("model", *(f"{name} of all" for name in ("parameters", "gradients", "optimizer")))
    rows.add_row("actor", "109,227,310,848", "436.91", "")
    assert "actor" in printed(rows, 80).splitlines()[3]
    assert printed(rows, 30).split("\n")[1:4] == [
        "model              actor",
        "parameters of all  109,227,310,848",
        "gradients of all   436.91",
    ]


def test_facts_are_never_cut() -> None:
    screen = io.StringIO()
    print_facts([("base", "/a" * 60), ("step", "3")], Console(file=screen, width=80, color_system=None))
    assert screen.getvalue() == f" base  {'/a' * 60}\n step  3\n"


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("configs list", "Two nodes without a scheduler"),
        ("model show glm46_355b --lora rank=16,target=experts", "of the model is trained"),
        ("plan lora_air_2x8h200 --gpus 16 --gpu h200 --network tcp30", "GFLOP/token"),
        ("plan demo --gpus 1 --gpu h200 --serve", "memory"),
        ("plan lora_air_2x8h200 --gpus 16 --gpu h200 --roofline h200", "triton"),
        ("cluster check --list", "network-trip"),
    ],
)
def test_commands_fold_at_80_columns(command: str, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert verdict in result.stdout
    assert "…" not in result.stdout
    lines = result.stdout.splitlines()
    tables = [number for number, line in enumerate(lines) if "───" in line]
    assert tables
    assert max(len(lines[number]) for number in tables) <= 80
