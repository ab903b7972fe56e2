"""Print the unit tests of the rooms that differ from a branch, uncommitted changes included.

    python scripts/changed_tests.py [BRANCH]        # main by default

A room is a folder of a package: src/glmforge/plan belongs to tests/unit/plan, src/glmforge_ops/jobs to
tests/ops/unit/jobs. Of changed tests only those are printed that are unit tests.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = {"glmforge": "tests/unit", "glmforge_ops": "tests/ops/unit", "glmforge_corpus": "tests/corpus/unit"}


def main() -> None:
    branch = sys.argv[1] if len(sys.argv) > 1 else "main"
    base = _git("merge-base", "HEAD", branch)[0]
    changed = [*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")]
    places = {place for path in changed if (place := _tests_of(Path(path))) is not None}
    print(*sorted(place for place in places if (ROOT / place).exists() and not _is_below_another(place, places)))


def _tests_of(path: Path) -> str | None:
    match path.parts:
        case ("src", package, room, *below) if package in TESTS:
            return f"{TESTS[package]}/{room}" if below else TESTS[package]
        case ("tests", *_) if "unit" in path.parts and path.name.startswith("test_"):
            return str(path)
        case ("docs" | "README.md" | "CHANGELOG.md", *_):
            return "tests/unit/docs"
    return None


def _is_below_another(place: str, places: set[str]) -> bool:
    return any(Path(other) in Path(place).parents for other in places)


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


if __name__ == "__main__":
    main()
