"""The table at the end of a part: with rich where it is installed, plain otherwise."""

from typing import Any

from gpu.results import Figure, is_failure

_COLUMNS = ("figure", "status", "result", "of the ceiling")


def status_of(content: Figure) -> str:
    """ "ok", or in a few words what was wrong with a part."""
    failures = [name for name, figure in content["figures"].items() if is_failure(figure)]
    if "error" in content:
        return "the part broke off: " + content["error"].strip().splitlines()[-1]
    if failures:
        return f"{len(failures)} failed: {', '.join(failures[:3])}"
    if all(figure["status"] != "ok" for figure in content["figures"].values()):
        reasons = [figure["reason"] for figure in content["figures"].values() if "reason" in figure]
        return "nothing was measured" + "".join(f": {reason}" for reason in reasons[:1])
    return "ok" if content["complete"] else "cut"


def print_summary(contents: list[Figure], *, short: bool = False) -> None:
    """Every figure, or with `short` every part in a line."""
    if short:
        rows = [_part_row(content) for content in contents]
    else:
        rows = [row for content in contents for row in _figure_rows(content)]
    title = ", ".join(f"{c['part']}{' (dry)' if c['dry'] else ''} on {c['device']['name']}" for c in contents)
    try:
        _print_rich(title, rows)
    except ModuleNotFoundError:
        _print_plain(title, rows)


def _part_row(content: Figure) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for figure in content["figures"].values():
        counts[figure["status"]] = counts.get(figure["status"], 0) + 1
    return content["part"], status_of(content), ", ".join(f"{n} {status}" for status, n in counts.items()), ""


def _figure_rows(content: Figure) -> list[tuple[str, ...]]:
    """All figures; of tests, those that did not pass."""
    if content["part"] != "tests":
        return [_row(name, figure) for name, figure in content["figures"].items()]
    silent = ("ok", "skipped")
    rows = [_row(name, figure) for name, figure in content["figures"].items() if figure["status"] not in silent]
    return [_part_row(content), *rows]


def _row(name: str, figure: Figure) -> tuple[str, ...]:
    timed: dict[str, Any] = figure.get("forward_and_backward", figure.get("forward", figure))
    share = timed.get("roofline", {}).get("share", figure.get("mfu"))
    return name, figure["status"], _result(figure, timed), "" if share is None else f"{share:.1%}"


def _result(figure: Figure, timed: dict[str, Any]) -> str:
    if "reason" in figure:
        return figure["reason"]
    if "summary" in figure:
        return figure["summary"]
    return f"{timed['seconds'] * 1e3:.3f} ms" if "seconds" in timed else ""


def _print_rich(title: str, rows: list[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*_COLUMNS, title=title, box=box.SIMPLE)
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    console = Console()
    (console if console.is_terminal else Console(width=150)).print(table)


def _print_plain(title: str, rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    print(title)
    for row in (_COLUMNS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
