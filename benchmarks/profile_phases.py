"""Profiles of small runs: whether phases add up to the step, what profiling costs, whether the first advice is right.

A tiny model on one process and on two gloo ranks, without a fault and with each of `tests/helpers/profile_faults.py`.

    PYTHONPATH=src:tests python benchmarks/profile_phases.py --rounds 5
"""

import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import alternating, arguments
from record import ROOT, write_result

sys.path.insert(0, str(ROOT / "tests"))

from glmforge.doctor.profile.advice import advise
from glmforge.doctor.profile.train import TrainProfile
from helpers.distributed import run_ranks
from helpers.profile_faults import FAULTS, profiled, run_of
from helpers.tiny_data import make_tiny_data

CODE = ["src/glmforge/doctor/profile", "src/glmforge/parallel/communication.py", "tests/helpers/profile_faults.py"]


def main() -> None:
    given = arguments(__doc__, rounds=5).parse_args()
    found: dict[str, list[TrainProfile]] = {name: [] for name in FAULTS}
    with tempfile.TemporaryDirectory() as folder:
        data = make_tiny_data(Path(folder) / "data")
        for name in alternating(list(FAULTS), given.rounds):
            ranks, _, settings = FAULTS[name]
            config = run_of(data, Path(folder), **settings)
            found[name].append(run_ranks(profiled, ranks, config, name, init_group=False)[0])
            print(f"{name}: {[one.rule for one in advise(found[name][-1])]}", flush=True)
    content = {name: _row(name, profiles) for name, profiles in found.items()}
    print(write_result("profile_phases", {"runs": content}, code=CODE, out=given.out))


def _row(name: str, profiles: list[TrainProfile]) -> dict[str, Any]:
    last = profiles[-1]
    phases = {
        phase: round(1e3 * last.mean(lambda parts, p=phase: parts.of(p)), 2) for phase in last.ranks[0].parts.phases
    }
    firsts = [next((asdict(one) for one in advise(profile)), {"rule": None}) for profile in profiles]
    return {
        "ranks": len(last.ranks),
        "rounds": len(profiles),
        "step_ms": round(1e3 * statistics.median(profile.step_s for profile in profiles), 2),
        "profiled_over_step": round(statistics.median(p.profiled_s / p.step_s for p in profiles), 3),
        "worst_accounted": max((p.accounted for p in profiles), key=lambda share: abs(share - 1)),
        "first_advice": [first["rule"] for first in firsts],
        "right": None if name.startswith("none") else sum(first["rule"] == name for first in firsts),
        "lost": [round(first["lost"], 3) for first in firsts if first["rule"]],
        "last_phases_ms": phases,
        "last_exposed_ms": {axis: round(1e3 * s, 2) for axis, s in last.ranks[0].parts.exposed.items()},
        "last_hidden_ms": {axis: round(1e3 * s, 2) for axis, s in last.ranks[0].parts.hidden.items()},
    }


if __name__ == "__main__":
    main()
