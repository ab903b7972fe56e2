"""Run the suite, or replay one case, from the command line.

PYTHONPATH=tests python -m fuzz --cases 100000 --workers 2          # all formats together
PYTHONPATH=tests python -m fuzz hf_config --cases 5000 --seed 7
PYTHONPATH=tests python -m fuzz hf_config --case 4711 --keep /tmp/damaged     # one case, with its traceback
PYTHONPATH=tests python -m fuzz run_yaml --case alias_bomb                    # a bomb by its name
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from fuzz.cases import Original
from fuzz.run import Failure, ProgressLines, Tally, format_modules, load_format, run_cases, share
from glmforge.errors import GlmforgeError


def main() -> int:
    arguments = _parse()
    modules = [m for m in format_modules() if arguments.format in (None, m.removeprefix("fuzz.test_"))]
    if not modules:
        sys.exit(f"no format {arguments.format!r}; there are {', '.join(m[10:] for m in format_modules())}")
    if arguments.case is not None:
        return replay(modules[0], arguments.case, arguments.seed, arguments.keep)
    tallies = run_all(modules, arguments.cases, seed=arguments.seed, workers=arguments.workers)
    print_tallies(tallies)
    return 1 if any(tally.failures for tally in tallies.values()) else 0


def run_all(modules: list[str], cases: int, *, seed: int, workers: int) -> dict[str, Tally]:
    """Bombs and mutations of all formats, `cases` mutations in all; format -> what came of them."""
    tallies = {}
    for part, module in enumerate(modules):
        numbers = list(map(str, range(share(cases, len(modules), part))))
        everything = [*load_format(module).bombs, *numbers]
        name = module.removeprefix("fuzz.test_")
        tallies[name] = run_cases(
            module, everything, seed=seed, workers=workers, report=ProgressLines(name, len(everything))
        )
    return tallies


def print_tallies(tallies: dict[str, Tally]) -> None:
    """Counts by outcome, and the failures by kind with an example of each."""
    for name, tally in tallies.items():
        print(f"{name}: {dict(tally.outcomes)}, slowest {tally.slowest_s:.2f} s, {tally.cpu_s:.0f} s in all")
        kinds: dict[str, list[Failure]] = {}
        for failure in tally.failures:
            kinds.setdefault(f"{failure.outcome}: {failure.detail[:150]}", []).append(failure)
        for kind, number in Counter({kind: len(same) for kind, same in kinds.items()}).most_common():
            print(f"  {number:5} x {kind}  (case {kinds[kind][0].case})")


def replay(module: str, case: str, seed: int, keep: Path | None) -> int:
    """Read one case in this process, without limits; what it raises keeps its traceback."""
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
    form = load_format(module)
    original = Original(form, scratch / "case")
    original.damage(case, seed)
    if keep is not None:
        shutil.copytree(original.directory, keep, symlinks=True)
    try:
        print("accepted:", repr(form.read(original.directory))[:200])
    except GlmforgeError as error:
        print(f"refused: {error}")
    finally:
        shutil.rmtree(scratch)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description="Damaged files from outside, read under limits.")
    parser.add_argument("format", nargs="?", help="one format; all if left out")
    parser.add_argument("--cases", type=int, default=1000, help="mutations of all formats together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--case", help="replay this case: a number or a bomb's name")
    parser.add_argument("--keep", type=Path, help="with --case: keep the damaged files in this new directory")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
