"""The process that measures one part: `python -m gpu.worker PART FOLDER SECONDS [--dry] [--resume]`."""

import argparse
import importlib
import os
import shlex
import sys
import traceback
from pathlib import Path

import torch

from gpu import PARTS
from gpu.bench import Bench
from gpu.device import clocks, describe
from gpu.keep import source_digest
from gpu.results import LostContextError, Results, not_installed
from gpu.runner import LOST_CONTEXT


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    if args.dry:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before any kernel is imported: they run on the CPU
    bench = open_bench(args)
    try:
        run_part(args.part, bench)
    except LostContextError as error:
        print(f"{args.part}: {error}; goes on in a new process", flush=True)
        return LOST_CONTEXT
    except Exception:  # noqa: BLE001 - the part itself is broken: said in its file, and by the exit status
        bench.results.content["error"] = traceback.format_exc()[-4000:]
        bench.results.write()
        traceback.print_exc()
        return 1
    bench.results.content |= {"complete": True, "clocks_at_end": clocks(), "peak_clocks": bench.ceilings.clocks}
    bench.results.write()
    return 0


def run_part(part: str, bench: Bench) -> None:
    try:
        module = importlib.import_module(f"gpu.{part}")
    except ModuleNotFoundError as error:
        bench.results.set(f"part {part}", status="missing", reason=not_installed(error.name))
    else:
        module.run(bench)


def open_bench(args: argparse.Namespace) -> Bench:
    device = torch.device("cpu" if args.dry else "cuda:0")
    header = {
        "part": args.part,
        "dry": args.dry,
        "budget_s": args.seconds,
        "command": shlex.join(["scripts/gpu.sh", args.part, *["--dry"] * args.dry]),
        "source": source_digest(),
        **describe(device),
        "clocks_at_start": clocks(),
    }
    args.folder.mkdir(parents=True, exist_ok=True)
    results = Results(args.folder / f"gpu_{args.part}.json", header, resume=args.resume)
    bench = Bench(device, args.dry, args.folder, results, args.seconds)
    results.content["ceilings"] = {
        "bytes_per_s": bench.ceilings.bandwidth,
        "bf16_flops_per_s": bench.ceilings.matmul_flops,
        "noise": bench.ceilings.noise,
    }
    return bench


if __name__ == "__main__":
    sys.exit(main())
