"""Small runs of stage rl, killed at moments of their steps, and what they must have in common with one left alone.

A reward needs nothing but the reply, so that any weights do. This module is imported by the processes that compute
rewards, too: nothing heavy at its top.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glmforge.config.schema import RunConfig
    from helpers.job import Job
    from helpers.tiny_data import TinyData

MOMENTS = ("rollout", "scoring", "step", "saving")
_OF_THE_CLOCK = ("seconds", "per_second", "rss_bytes", "checkpoint_", "world_size")


def distinct(record: Mapping[str, Any], reply: str, options: Mapping[str, Any]) -> float:
    """A reward: the share of the reply's characters that are there once."""
    return len(set(reply)) / max(1, len(reply))


def says_e(record: Mapping[str, Any], reply: str, options: Mapping[str, Any]) -> float:
    return float("e" in reply)


def write_prompts(path: Path, number: int = 40, **fields: Any) -> Path:
    lines = (json.dumps({"prompt": f"what is {one}?", "source": "even" if one % 2 == 0 else "odd"} | fields) + "\n"
             for one in range(number))  # fmt: skip
    path.write_text("".join(lines))
    return path


def rl_config(data: TinyData, output_dir: Path, prompts: Path, steps: int = 6, **sections: Any) -> RunConfig:
    """Four groups of four answers a step, two steps a rollout; some answers go on later; a reference."""
    rollout = {"group_size": 4, "max_new_tokens": 12, "cache_bytes": 1 << 22, "thinking": False}
    rollout |= {"partial": True, "over_sampling": 1.5, "max_sequences": 6}
    rewards = {"terms": [{"kind": "python", "function": "helpers.rl_runs:distinct"}]}
    given: dict[str, Any] = {
        "stage": "rl",
        "data": {"tokenizer": str(data.tokenizer), "sources": [{"name": "sums", "path": str(prompts)}]},
        "phases": [{"name": "rl", "steps": steps, "seq_len": 64, "batch_size": 16}],
        "optim": {"lr": 1e-3, "schedule": "constant", "matrix_optimizer": "adamw"},
        "parallel": {"micro_batch_size": 1},
        "checkpoint": {"every_steps": 1, "keep_last": 3},
        "observe": {"progress": False, "tensorboard": False, "log_every": 1},
        "rl": {"rollout": rollout, "rewards": rewards, "steps_per_rollout": 2, "kl": {"weight": 1e-3}},
    }
    return data.run_config(output_dir, **(given | sections))


def moments_hook(steps: Path) -> Any:
    """Writes down when a rank begins to sample, to score and to step, beside its notes."""
    from glmforge.training.trainer import Hook, Trainer

    os.environ["PYTHONPATH"] = os.pathsep.join(["tests", "src", os.environ.get("PYTHONPATH", "")])
    file = moments_file(steps).open("a")

    def note(moment: str) -> None:
        file.write(f"{moment}\n")
        file.flush()

    class Moments(Hook):
        name = "moments"

        def on_train_start(self, trainer: Trainer) -> None:
            source = trainer.source
            for moment, owner, method in (("rollout", source, "_sample"), ("scoring", source.models, "score")):
                setattr(owner, method, _noting(note, moment, getattr(owner, method)))

        def on_step_start(self, trainer: Trainer) -> None:
            note("step")

    return Moments()


def _noting(note: Any, moment: str, method: Any) -> Any:
    def noting(*arguments: Any) -> Any:
        note(moment)
        return method(*arguments)

    return noting


def moments_file(steps: Path) -> Path:
    return steps.with_suffix(".moments")


def kill(job: Job, moment: str, run_dir: Path, generator: random.Random) -> bool:
    """Kill all ranks somewhat after such a moment, once the launch has saved a step; False if it ended before."""
    before, seen = _saved(run_dir), 0
    file = moments_file(job.steps[0])

    def count() -> int:
        if moment == "saving":
            return len(list((run_dir / "checkpoints").glob("*step-*.partial*")))
        return file.read_text().splitlines().count(moment)

    if not job.wait_until(lambda: bool(_saved(run_dir) - before)):
        return False
    seen = 0 if moment == "saving" else count()
    if not job.wait_until(lambda: count() > seen):
        return False
    time.sleep(generator.random() * {"rollout": 0.3, "scoring": 0.1, "step": 0.2, "saving": 0.02}[moment])
    is_alive = job.is_alive
    job.signal(signal.SIGKILL)
    return is_alive


def _saved(run_dir: Path) -> set[str]:
    """Steps of which a whole checkpoint is there."""
    return {path.name for path in (run_dir / "checkpoints").glob("step-*")}


def began_at(notes: Path) -> list[int]:
    """The step that each launch went on from."""
    firsts = [json.loads(path.read_text().splitlines()[0]) for path in sorted(notes.glob("*-0.jsonl"))]
    return [first["started_at"] for first in firsts]


def records(run_dir: Path) -> list[dict[str, Any]]:
    """What the run recorded of its steps, but for what the clock and the machine say."""
    from glmforge.observe.record_files import read_jsonl

    return [
        {name: value for name, value in record.items() if not any(part in name for part in _OF_THE_CLOCK)}
        for record in read_jsonl(run_dir / "metrics.jsonl")
    ]


def answers(run_dir: Path) -> dict[str, bytes]:
    """The files of answers that the run was trained on."""
    return {path.name: path.read_bytes() for path in sorted((run_dir / "rollouts").iterdir())}


def finish(config: Path, notes: Path, launch: int, world_size: int = 1, stop_after: int | None = None) -> None:
    """A launch that nothing happens to."""
    from helpers.job import start_job

    job = start_job(config, world_size, notes, launch, stop_after=stop_after, hook_of=moments_hook)
    assert job.wait() == [0] * world_size, job.tail()
