"""Write `src/glmforge/kernels/measured.toml`, which "auto" goes by, from the kernel benchmark of a GPU.

    python scripts/kernel_choices.py                  from benchmarks/results/gpu_kernels.json
    python scripts/kernel_choices.py FILE

An operation gets an entry if one of its implementations was the fastest at every size, forward and backward together,
by more than two measurements of the plain one differ. What is compared includes the plain one under torch.compile:
where that wins, "plain" stays. Entries of other devices are kept.
"""

import json
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from glmforge.config.kernels import KernelsConfig

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/gpu_kernels.json"
MEASURED = ROOT / "src/glmforge/kernels/measured.toml"


def choices(fastest: dict[str, dict[str, Any]]) -> dict[str, tuple[str, float]]:
    """Operation -> the implementation to take and how many times as fast as the plain one it is, at least.

    `fastest` is by "operation | size", as `benchmarks/gpu/kernels.py` writes it.
    """
    by_operation: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, found in fastest.items():
        by_operation[name.partition(" | ")[0]].append(found)
    chosen = {}
    for operation, sizes in by_operation.items():
        name = sizes[0]["implementation"]
        known = KernelsConfig.implementations(operation) if operation in KernelsConfig.model_fields else ()
        clear = all(size["times_as_fast"] > 1 + size["noise"] for size in sizes)
        everywhere = clear and all(size["implementation"] == name for size in sizes)
        # Attention and experts have no plain one: theirs goes by device and type.
        if "plain" in known and name in known and name != "plain" and everywhere:
            chosen[operation] = name, min(size["times_as_fast"] for size in sizes)
    return chosen


def document(measured: dict[str, dict[str, dict[str, Any]]], comment: str) -> str:
    """The file's text: its first comment, then a table for each device."""
    lines = [comment.rstrip("\n")]
    for device, entries in sorted(measured.items()):
        lines += ["", f"[{json.dumps(device)}]"]
        for operation, entry in sorted(entries.items()):
            lines.append(f"{operation} = {{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in entry.items())} }}")
    return "\n".join(lines) + "\n"


def main(file: Path) -> None:
    content = json.loads(file.read_text("utf-8"))
    if content["dry"]:
        sys.exit(f"{file}: a dry run measures nothing; take the results of scripts/gpu.sh kernels on a GPU")
    text = MEASURED.read_text("utf-8")
    measured = tomllib.loads(text)
    device, torch_version = content["device"]["name"], content["versions"]["torch"]
    measured[device] = {
        operation: {"implementation": name, "speedup": speedup, "torch": torch_version}
        for operation, (name, speedup) in choices(content["fastest"]).items()
    }
    comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    MEASURED.write_text(document(measured, comment), "utf-8")
    print(f"{device}: {', '.join(measured[device]) or 'nothing is faster than the plain implementation'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
