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
            for moment, method in (("rollout", "_sample"), ("scoring", "_scored")):
                setattr(trainer.source, method, _noting(note, moment, getattr(trainer.source, method)))

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


def kill(job: Job, moment: str, after: int, run_dir: Path, generator: random.Random) -> bool:
    """Kill all ranks somewhat after the `after`-th such moment of the launch; False if it ended before."""
    saved = set(_steps_saved(run_dir))

    def reached() -> bool:
        if moment == "saving":
            return len(set(_steps_saved(run_dir)) - saved) >= after
        file = moments_file(job.steps[0])
        return file.exists() and file.read_text().splitlines().count(moment) >= after

    if not job.wait_until(reached):
        return False
    time.sleep(generator.random() * {"rollout": 0.3, "scoring": 0.1, "step": 0.2, "saving": 0.02}[moment])
    is_alive = job.is_alive
    job.signal(signal.SIGKILL)
    return is_alive


def _steps_saved(run_dir: Path) -> list[str]:
    """Steps that are saved or being saved."""
    root = run_dir / "checkpoints"
    return [path.name for path in root.glob("*step-*")] if root.exists() else []


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
