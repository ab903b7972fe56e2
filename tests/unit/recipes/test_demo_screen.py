"""The demo's lines on a narrow terminal."""

from rich.console import Console

from glmforge.recipes.demo.screen import Screen


def test_a_long_line_is_continued_below_its_beginning() -> None:
    console = Console(record=True, width=40)
    Screen(console).say("the configuration of this run is [b]runs/demo/demo.yaml[/b], all of it")
    assert [line.rstrip() for line in console.export_text().splitlines()] == [
        "  the configuration of this run is",
        "  runs/demo/demo.yaml, all of it",
    ]
