"""Draw the floor plan of the packages from the code: docs/pictures/floor_plan.svg.

    python scripts/floor_plan.py            # write the picture
    python scripts/floor_plan.py --check    # exit with 1 if the code has another plan than the picture

The floors are those that import-linter holds (pyproject.toml), a room's subject is the first sentence of its
docstring, and what it uses are the rooms that its modules import.
"""

import argparse
import ast
import re
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/pictures/floor_plan.svg"
PACKAGE = "glmforge"
OTHERS = ("glmforge_ops", "glmforge_corpus")

WIDTH, MARGIN, GAP, LINE = 1080, 16, 10, 15
STYLE = """
  svg { --ink: #1c2126; --muted: #626b75; --rule: #c8ced4; --fill: #f6f8fa; --other: #eef5ee; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e4e7ea; --muted: #98a2ad; --rule: #4a525b; --fill: #1b2026; --other: #1c261e; }
  }
  rect { fill: var(--fill); stroke: var(--rule); }
  .other { fill: var(--other); }
  text { fill: var(--ink); font: 11.5px sans-serif; }
  .name { font-weight: bold; font-size: 14px; }
  .uses { fill: var(--muted); font-size: 10.5px; }
"""

Room = tuple[str, str, list[str]]
"""Name, subject, names of the rooms that it uses."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the picture instead of writing it")
    picture = draw()
    if not parser.parse_args().check:
        PICTURE.write_text(picture)
        return 0
    if PICTURE.read_text() == picture:
        return 0
    print(
        f"{PICTURE.relative_to(ROOT)}: shows another plan than the code has: run scripts/floor_plan.py", file=sys.stderr
    )
    return 1


def draw() -> str:
    """The picture as SVG: rooms side by side on their floors, the highest on top; below them the other packages."""
    graph = grimp.build_graph(PACKAGE, *OTHERS)
    top, boxes = MARGIN, []
    for floor in floors():
        rooms = [room(graph, f"{PACKAGE}.{name}", PACKAGE) for name in floor]
        width = (WIDTH - 2 * MARGIN - GAP * (len(rooms) - 1)) / len(rooms)
        height = max(_height(one, width) for one in rooms)
        boxes += [_box(one, MARGIN + i * (width + GAP), top, width, height) for i, one in enumerate(rooms)]
        top += height + GAP
    for package in OTHERS:
        top += GAP
        boxes.append(f'<text class="name" x="{MARGIN}" y="{top + LINE}">{package}</text>')
        boxes.append(f'<text x="{MARGIN + 125}" y="{top + LINE}">{escape(_subject(package))}</text>')
        top += LINE + GAP
        rooms = [room(graph, f"{package}.{name}", package) for name in rooms_of(package)]
        for start in range(0, len(rooms), 3):
            row = rooms[start : start + 3]
            width = (WIDTH - 2 * MARGIN - 2 * GAP) / 3
            height = max(_height(one, width) for one in row)
            boxes += [_box(one, MARGIN + i * (width + GAP), top, width, height, "other") for i, one in enumerate(row)]
            top += height + GAP
    size = f'viewBox="0 0 {WIDTH} {top + MARGIN - GAP}" width="{WIDTH}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}</style>\n' + "\n".join(boxes) + "\n</svg>\n"
    )


def floors() -> list[list[str]]:
    """The rooms of each floor that exist, from the top down."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = next(c["layers"] for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    named = [re.findall(rf"{PACKAGE}\.(\w+)", layer) for layer in layers]
    existing = [[name for name in names if _path(f"{PACKAGE}.{name}").exists()] for names in named]
    return [names for names in existing if names]


def rooms_of(package: str) -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "src" / package).glob("*/__init__.py"))


def room(graph: grimp.ImportGraph, module: str, package: str) -> Room:
    """A room, and the other rooms that its modules import; those of another package with its name before them."""
    members = {module, *graph.find_descendants(module)}
    imported = {found for member in members for found in graph.find_modules_directly_imported_by(member)} - members
    uses = {".".join(name.split(".")[:2]) for name in imported if "." in name}
    return module.split(".")[1], _subject(module), sorted(name.removeprefix(f"{package}.") for name in uses)


def _path(module: str) -> Path:
    base = ROOT / "src" / module.replace(".", "/")
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def _subject(module: str) -> str:
    text = ast.get_docstring(ast.parse(_path(module).read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def _lines(one: Room, width: float) -> tuple[list[str], list[str]]:
    characters = int((width - 20) / 5.7)
    uses = textwrap.wrap("uses " + ", ".join(one[2]), int(characters * 1.08)) if one[2] else []
    return textwrap.wrap(one[1], characters), uses


def _height(one: Room, width: float) -> int:
    subject, uses = _lines(one, width)
    return 28 + LINE * (len(subject) + len(uses))


def _box(one: Room, x: float, y: float, width: float, height: float, kind: str = "room") -> str:
    subject, uses = _lines(one, width)
    texts = [("name", one[0]), *(("", line) for line in subject), *(("uses", line) for line in uses)]
    lines = [
        f'<text class="{style}" x="{x + 10:g}" y="{y + 18 + i * LINE:g}">{escape(line)}</text>'
        for i, (style, line) in enumerate(texts)
    ]
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>' + "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
