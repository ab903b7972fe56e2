"""Damaged files from outside, in numbers: 100,000 mutations and all bombs, what came of each; `make test-fuzz`.

    python benchmarks/fuzz.py                       # writes benchmarks/results/fuzz.json
    python benchmarks/fuzz.py --cases 2000 --seed 1 --out /tmp/fuzz.json

Every case must be accepted or refused in one line, within a second of CPU time and 500 MB, without running code
(see `tests/fuzz`). Exit status 1, and each failure with the command that replays it, if one is not.
"""

import argparse
import sys
from typing import Any

from harness import arguments
from record import ROOT, write_result

sys.path.insert(0, str(ROOT / "tests"))

from fuzz.__main__ import print_tallies, run_all
from fuzz.run import GOOD, Tally, format_modules
from fuzz.worker import MAX_CPU_S, MAX_MEMORY

CODE = [
    "src/glmforge/files.py",
    "src/glmforge/config",
    "src/glmforge/checkpoint",
    "src/glmforge/data/tokens",
    "src/glmforge/data/chat",
    "tests/fuzz",
]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="mutations of all formats together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    tallies = run_all(format_modules(), args.cases, seed=args.seed, workers=args.workers)
    print_tallies(tallies)
    print("written to", write_result("fuzz", content(tallies, args), code=CODE, out=args.out))
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    for failure in failures[:50]:
        print(f"PYTHONPATH=tests python -m fuzz {failure.form} --seed {args.seed} --case {failure.case}")
    return 1 if failures else 0


def content(tallies: dict[str, Tally], args: argparse.Namespace) -> dict[str, Any]:
    """What is written: counts by format and outcome, and the same over all formats."""
    total = Tally()
    for tally in tallies.values():
        total = total.merge(tally)
    return {
        "seed": args.seed,
        "mutations": args.cases,
        "limits": {"cpu_s": MAX_CPU_S, "memory_bytes": MAX_MEMORY},
        "all": _figures(total),
        "formats": {name: _figures(tally) for name, tally in tallies.items()},
    }


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "cases": sum(tally.outcomes.values()),
        "accepted": tally.outcomes["accepted"],
        "refused": tally.outcomes["refused"],
        "failures": len(tally.failures),
        "failures_by_kind": {name: n for name, n in tally.outcomes.items() if name not in GOOD},
        "slowest_cpu_s": round(tally.slowest_s, 3),
        "cpu_s": round(tally.cpu_s, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
