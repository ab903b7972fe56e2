"""Rollouts ahead of the trainer against rollouts between its steps: time, rewards, and the age of answers.

    python benchmarks/rl_schedules.py                 # all arms; what is finished is kept, so a killed run goes on
    python benchmarks/rl_schedules.py --seeds 1 --steps 10 --quick

The sums of `rl_learning.py`, from the same start, on two cores. Synchronous runs sample with their own engine, on one
and on two threads, or by a server of one thread; the others by the server, while the trainer has a thread of its own:

    own 1, own 2       synchronous; the engine in the run's process, with so many threads for everything
    server             synchronous, by `glmforge serve`
    one step off       rl.schedule.kind: one_step_off
    asynchronous       rl.schedule.kind: asynchronous, two steps ahead
    slow ...           the last three with a server that computes 8 answers at a time instead of 256

Seconds are those of a step behind the first five, in turns: an arm of each kind, then of each again with another seed.
Then a run of the tests' model is killed twenty times, by turns its server and itself, at random moments.
"""

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from harness import arguments, json_lines, table
from record import ROOT, write_result

sys.path.insert(0, str(ROOT / "tests"))
from rl_learning import FEW, best_start, keep, kept, prepare, rate, sources

CODE = ("src/glmforge/config/rl_schedule.py", "src/glmforge/generate", "src/glmforge/rl", "src/glmforge/deploy/serve")
KEY, PORT = "benchmark", 18473
ARMS: dict[str, tuple[int, str | None, int]] = {
    "own 1": (1, None, 256),
    "own 2": (2, None, 256),
    "server": (1, "synchronous", 256),
    "one step off": (1, "one_step_off", 256),
    "asynchronous": (1, "asynchronous", 256),
    "slow server": (1, "synchronous", 8),
    "slow one step off": (1, "one_step_off", 8),
    "slow asynchronous": (1, "asynchronous", 8),
}
"""Threads, the schedule of arms with a server, and the answers that are computed at a time."""
WARM_UP, KILLS, KILLED_STEPS = 5, 20, 400


def main() -> None:
    args = parse_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args)
    start = best_start(args)
    found: dict[str, dict[str, Any]] = {}
    for seed in range(1, args.seeds + 1):
        for name in ARMS:
            found[f"{name}, seed {seed}"] = arm(args, name, seed, start)
    columns = ("arm", "s/step", "answers/s", "waiting s", "reward", "greedy", "sampled", "oldest")
    print(table(columns, (line(name, one) for name, one in found.items())))
    killed = kills(args)
    print(killed)
    if not args.quick:
        content = {"steps": args.steps, "answers_per_step": 512, "start": without_items(start)}
        content |= {"arms": {name: without_items(one) for name, one in found.items()}, "kills": killed}
        write_result("rl_schedules", content, code=CODE, out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "rl_schedules", help="where runs are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--few", type=int, default=FEW, help="demonstrations of long sums")
    parser.add_argument("--quick", action="store_true", help="a trial that writes no result")
    return parser.parse_args()


def line(name: str, one: dict[str, Any]) -> tuple[object, ...]:
    shares = (f"{one[kind]['share']:.3f}" for kind in ("greedy", "sampled"))
    numbers = (f"{one[kind]:.2f}" for kind in ("seconds", "answers_per_second", "wait_seconds"))
    return name, *numbers, f"{one['rewards'][-1]:.3f}", *shares, max(map(int, one["ages"]))


def without_items(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "items"}


def arm(args: argparse.Namespace, name: str, seed: int, start: dict[str, Any]) -> dict[str, Any]:
    """A run, and what is known of its steps, unless that is done."""
    key = f"{name} {seed}"
    if found := kept(args, key):
        return found
    threads, schedule, at_once = ARMS[name]
    folder = args.work / key.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    model = args.work / "start" / "checkpoints" / f"step-{start['best_step']:08d}"
    changes = [f"init_from={model}", f"seed={seed}", "data.held_out=[]", "observe.evaluate_every=null"]
    changes += [f"phases.0.steps={args.steps}", "checkpoint.every_steps=1000", "rl.surrogate.ratio_to=rollout"]
    if schedule is not None:
        changes += ["rl.engine=" + json.dumps(engine(at_once)), f"rl.schedule.kind={schedule}"]
    words = ["train", str(ROOT / "examples" / "rl" / "rl.yaml"), f"output_dir={folder}", "observe.tensorboard=false"]
    words += [f"data.tokenizer={args.work / 'data' / 'tokenizer'}", *sources(args, "prompts.jsonl"), *changes]
    subprocess.run(
        [sys.executable, "-m", "glmforge", *words], env=environment(threads), check=True, stdout=subprocess.DEVNULL
    )
    records = json_lines(folder / "metrics.jsonl")
    seconds = statistics.median(one["step_seconds"] for one in records[WARM_UP:])
    found = {
        "seconds": seconds,
        "answers_per_second": 512 / seconds,
        "rewards": [one["reward"] for one in records],
        "gap_mean": statistics.mean(one["gap_mean"] for one in records[WARM_UP:]),
        "ages": ages(folder),
    }
    for part in ("rollout", "answer_wait", "transfer", "scoring"):
        times = [one.get(f"{part}_seconds", 0.0) for one in records[WARM_UP:]]
        found[f"{part.removeprefix('answer_')}_seconds"] = statistics.median(times)
    (last,) = (folder / "checkpoints").glob("step-*")
    return keep(args, key, found | rate(args, last))


def engine(at_once: int) -> dict[str, Any]:
    """A server that the run starts, on one thread."""
    serve = ["serve", "{weights}", "--port", "{port}", "--cache-gib", "0.2", "--max-sequences", str(at_once)]
    command = ["env", "OMP_NUM_THREADS=1", sys.executable, "-m", "glmforge", *serve, "--allow-weight-updates"]
    about = {"kind": "glmforge", "urls": [f"http://127.0.0.1:{PORT}"], "api_key_env": "GLMFORGE_API_KEYS"}
    return about | {"command": command, "dtype": "fp32"}


def environment(threads: int) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "GLMFORGE_API_KEYS": KEY}


def answers(run: Path) -> list[dict[str, Any]]:
    """That it was trained on."""
    found: list[dict[str, Any]] = []
    for file in sorted((run / "rollouts").glob("step-*.jsonl.gz")):
        found += map(json.loads, gzip.decompress(file.read_bytes()).decode().splitlines())
    return found


def ages(run: Path) -> dict[str, int]:
    """Age -> how many answers had it."""
    return dict(sorted(Counter(str(one["step"] - 1 - one["begun"]) for one in answers(run)).items()))


# A run that is killed, and servers that are.


def kills(args: argparse.Namespace) -> dict[str, Any]:
    """Prompts that were lost or trained on twice, once a run of many launches has ended."""
    from glmforge.config import dump_config
    from glmforge.config.schema import RunConfig
    from glmforge.recipes.train import train
    from helpers.rl_runs import write_prompts
    from helpers.tiny_data import make_tiny_data

    folder, draw = args.work / "kills", random.Random(0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    data = make_tiny_data(folder / "data")
    phases = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]
    train(data.run_config(folder / "base", phases=phases, checkpoint={"every_steps": 1}))
    config = killed_config(data, folder, write_prompts(folder / "prompts.jsonl"))
    (folder / "run.yaml").write_text(dump_config(RunConfig.model_validate(config)))
    command = [sys.executable, "-m", "glmforge", "train", str(folder / "run.yaml")]
    killed, launches, run = Counter[str](), 0, folder / "run"
    with (folder / "log").open("wb") as log:
        while True:
            launches += 1
            process = subprocess.Popen(command, env=environment(1), stdout=log, stderr=log)
            if sum(killed.values()) < KILLS:
                wait_for_a_step(run, process)
                time.sleep(draw.random())
                victim = "server" if launches % 2 else "run"
                if victim == "server":
                    killed[victim] += kill_server(process)
                    wait_for_a_step(run, process)
                    time.sleep(draw.random())
                process.kill()
                killed["run"] += 1
            if process.wait() == 0:
                break
            if sum(killed.values()) >= KILLS and process.returncode != -signal.SIGKILL:
                raise SystemExit(f"the run failed; see {folder / 'log'}")
    lines = answers(run)
    times = Counter((one["group"], one["sample"]) for one in lines)
    expected = {(group, sample) for group in range(KILLED_STEPS * 4) for sample in range(4)}
    return {
        "kills": dict(killed),
        "launches": launches,
        "answers": len(lines),
        "lost": len(expected - times.keys()),
        "doubled": sum(number > 1 for number in times.values()),
        "ages": ages(run),
    }


def killed_config(data: Any, folder: Path, prompts: Path) -> dict[str, Any]:
    """Four groups of four answers a step, two steps ahead."""
    from helpers.rl_runs import rl_config

    config = rl_config(data, folder / "run", prompts, KILLED_STEPS, init_from=str(folder / "base")).model_dump()
    rollout = config["rl"]["rollout"] | {"partial": False, "over_sampling": 1.0, "drop_equal": False}
    config["rl"] |= {"engine": engine(64), "rollout": rollout, "steps_per_rollout": 1, "kl": None}
    config["rl"] |= {"surrogate": {"ratio_to": "rollout"}, "schedule": {"kind": "asynchronous"}}
    return config


def wait_for_a_step(run: Path, process: "subprocess.Popen[bytes]") -> None:
    """Until another one is saved."""

    def saved() -> set[str]:
        return {one.name for one in (run / "checkpoints").glob("step-*") if "partial" not in one.name}

    before = saved()
    while process.poll() is None and not saved() - before:
        time.sleep(0.02)
    if process.returncode is not None:
        raise SystemExit(f"the run ended with {process.returncode} before it was killed; see {run.parent / 'log'}")


def kill_server(process: "subprocess.Popen[bytes]") -> int:
    for child in psutil.Process(process.pid).children():
        if "serve" in child.cmdline():
            child.kill()
            return 1
    return 0


if __name__ == "__main__":
    main()
