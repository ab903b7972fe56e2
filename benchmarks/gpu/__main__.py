"""`python -m gpu all|PART ...`: what `scripts/gpu.sh` calls once it has found a Python that can."""

import argparse
import json
import os
import sys
from pathlib import Path

from gpu import PARTS
from gpu.keep import keep
from gpu.runner import PartRun, run_part
from gpu.summary import print_summary, status_of

MINUTES = 8.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu.sh", description="Test and measure glmforge on one GPU.")
    parser.add_argument("part", choices=("all", "keep", *PARTS), help="keep: take the results in --out over")
    parser.add_argument("--dry", action="store_true", help="the same code on the CPU, in small sizes")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", "gpu-results")), help="folder of results"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for each part (default {MINUTES:g})")
    args = parser.parse_args()
    if args.part == "keep":
        return keep(args.out)
    parts = PARTS if args.part == "all" else (args.part,)
    contents = []
    for part in parts:
        run = PartRun(part, args.out.resolve(), args.dry, args.minutes * 60)
        contents.append(run_part(run))
        print_summary(contents[-1:])
    if len(contents) > 1:
        print_summary(contents, short=True)
    print(json.dumps({content["part"]: status_of(content) for content in contents}))
    return max(status_of(content) != "ok" for content in contents)


if __name__ == "__main__":
    sys.exit(main())
