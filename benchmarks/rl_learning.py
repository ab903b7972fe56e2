"""Does reinforcement learning teach what demonstrations do not: against SFT continued for the same processor time.

    python benchmarks/rl_learning.py                  # all arms; what is finished is kept, so a killed run goes on
    python benchmarks/rl_learning.py --seeds 1 --steps 20 --quick

Sums of three digits on three digits, by a model of less than a million parameters (`examples/rl`). A few demonstrations
are learnt until the held-out accuracy rises no more: the checkpoint with the best one is where all arms start:

    rl         Dr. GRPO on sums without demonstrations
    sft        more of the same demonstrations, for as many seconds of the processor; rated at its best checkpoint, too
    shuffled   rl, with the rewards of each group dealt out at random: what comes of training alone

Each arm is a process; its seconds are the processor's, of its verifiers, too. Of held-out sums accuracy of the greedy
and of the sampled answers, and the share with one right in eight (pass@8), with Wilson's intervals at 95 % over sums.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import arguments, json_lines, table
from record import ROOT, write_result

CODE = (
    "examples/rl",
    "src/glmforge/config/rl.py",
    "src/glmforge/generate",
    "src/glmforge/model",
    "src/glmforge/objectives/policy.py",
    "src/glmforge/recipes/rl.py",
    "src/glmforge/rl",
)
SAMPLES, LONGEST = 8, 8
SFT_CHECKPOINTS = 6
CONTINUED = ("optim.lr=1e-3", "optim.min_lr=1e-4")
"""SFT goes on at a rate between the last and the first one of before; the best of its checkpoints counts."""


def main() -> None:
    args = parse_arguments()
    if args.child:
        child(args.child, args.shuffle)
        return
    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args)
    start = best_start(args)
    found = {"start": start}
    for seed in range(1, args.seeds + 1):
        found[f"rl {seed}"] = arm(args, f"rl {seed}", seed, start)
        found[f"sft {seed}"] = arm(args, f"sft {seed}", seed, start, found[f"rl {seed}"]["cpu_s"])
        if seed == 1:
            found["shuffled 1"] = arm(args, "shuffled 1", 1, start)
    print(table(("arm", "CPU-s", "greedy", "sampled", "pass@8"), (line(name, one) for name, one in found.items())))
    if not args.quick:
        content = {"demonstrations": args.few, "steps": args.steps, "start": start, "arms": by_kind(found)}
        content = without_items(content | {"gains": gains(start, content["arms"])})
        write_result("rl_learning", content, code=CODE, out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "rl_learning", help="where runs are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="of reinforcement learning")
    parser.add_argument("--few", type=int, default=FEW, help="demonstrations of long sums")
    parser.add_argument("--quick", action="store_true", help="a trial that writes no result")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--shuffle", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


FEW = 400


# Runs, each in a process of its own.


def child(given: Sequence[str], shuffle: int | None) -> None:
    """`glmforge train` with this configuration and these overrides."""
    from glmforge.config.load import load_config
    from glmforge.recipes.train import train

    if shuffle is not None:
        shuffle_rewards(shuffle)
    train(load_config(given[0], given[1:]))


def shuffle_rewards(seed: int) -> None:
    """From now on the rewards of each group of answers change places at random."""
    from glmforge.rl import scored
    from glmforge.rl.samples import Answer, by_group

    score, draw = scored.AnswerScorer.__call__, random.Random(seed)

    def shuffled(self: scored.AnswerScorer, answers: Sequence[Answer]) -> list[Answer]:
        found = []
        for group in by_group(score(self, answers)).values():
            rewards = [(one.reward, one.terms) for one in group]
            draw.shuffle(rewards)
            found += [
                one.changed(reward=reward, terms=terms) for one, (reward, terms) in zip(group, rewards, strict=True)
            ]
        return found

    scored.AnswerScorer.__call__ = shuffled  # type: ignore[method-assign]


def run(args: argparse.Namespace, name: str, config: str, changes: Sequence[str], shuffle: int | None = None) -> float:
    """Train in `work/name`, from the beginning; seconds of the processor, those of finished children among them."""
    folder = args.work / name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    data = args.work / "data"
    words = [sys.executable, __file__]
    words += [] if shuffle is None else ["--shuffle", str(shuffle)]
    words += ["--child", str(ROOT / "examples" / "rl" / config), f"output_dir={folder}", "observe.tensorboard=false"]
    words += [f"data.tokenizer={data / 'tokenizer'}", *changes]
    process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name}: the run failed with status {process.returncode}; its error is above")
    return usage.ru_utime + usage.ru_stime


def sources(args: argparse.Namespace, *names: str) -> list[str]:
    return [f"data.sources.{place}.path={args.work / 'data' / name}" for place, name in enumerate(names)]


def kept(args: argparse.Namespace, name: str) -> dict[str, Any] | None:
    """What is known of a finished part."""
    file = args.work / f"{name.replace(' ', '-')}.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


def keep(args: argparse.Namespace, name: str, found: dict[str, Any]) -> dict[str, Any]:
    file = args.work / f"{name.replace(' ', '-')}.json"
    file.with_suffix(".part").write_text(json.dumps(found), "utf-8")
    file.with_suffix(".part").replace(file)
    print(name, without_items(found), flush=True)
    return found


def write_json_lines(file: Path, records: Sequence[Any]) -> None:
    file.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")


def prepare(args: argparse.Namespace) -> None:
    """Data, and the model that adds short numbers."""
    if kept(args, "base"):
        return
    sys.path.insert(0, str(ROOT / "examples" / "rl"))
    from make_data import make_data

    make_data(args.work / "data", args.few)
    keep(args, "base", {"cpu_s": run(args, "base", "base.yaml", sources(args, "short.jsonl"))})


def sft(
    args: argparse.Namespace, name: str, start: str, steps: int, changes: Sequence[str]
) -> tuple[float, dict[int, dict[str, Any]]]:
    """SFT from `start`: its seconds, and what each of some checkpoints is worth."""
    every = max(1, steps // SFT_CHECKPOINTS)
    seconds = run(
        args,
        name,
        "sft.yaml",
        [
            *sources(args, "few.jsonl", "short.jsonl"),
            f"init_from={start}",
            "data.held_out=[]",
            "observe.evaluate_every=null",
            f"phases.0.steps={steps}",
            f"checkpoint={{every_steps: {every}, keep_last: {SFT_CHECKPOINTS + 1}}}",
            *changes,
        ],
    )
    folder = args.work / name.replace(" ", "-") / "checkpoints"
    return seconds, {int(one.name.removeprefix("step-")): rate(args, one) for one in sorted(folder.glob("step-*"))}


def best_start(args: argparse.Namespace) -> dict[str, Any]:
    """Where all arms start: the best checkpoint of SFT, which goes on until it is no better than before."""
    if found := kept(args, "start"):
        return found
    steps = 450
    seconds, rated = sft(args, "start", str(args.work / "base"), steps, [])
    best = max(rated, key=lambda step: rated[step]["greedy"]["share"])
    return keep(
        args,
        "start",
        {
            "cpu_s": round(seconds, 1),
            "cpu_s_per_step": seconds / steps,
            "best_step": best,
            "greedy_by_step": {str(step): one["greedy"]["share"] for step, one in rated.items()},
            **rated[best],
        },
    )


def arm(
    args: argparse.Namespace, name: str, seed: int, start: dict[str, Any], cpu_s: float | None = None
) -> dict[str, Any]:
    """Train and rate an arm, unless that is done; `cpu_s`: what SFT may take."""
    if found := kept(args, name):
        return found
    kind = name.partition(" ")[0]
    model = str(args.work / "start" / "checkpoints" / f"step-{start['best_step']:08d}")
    if kind == "sft":
        assert cpu_s is not None, "SFT takes as long as another arm"
        steps = max(SFT_CHECKPOINTS, round(cpu_s / start["cpu_s_per_step"]))
        seconds, rated = sft(args, name, model, steps, [f"seed={seed}", *CONTINUED])
        best = max(rated, key=lambda step: rated[step]["greedy"]["share"])
        extra = {"steps": steps, "best_step": best, "best": rated[best]}
        return keep(args, name, {"cpu_s": round(seconds, 1), **rated[max(rated)], **extra})
    changes = [
        *sources(args, "prompts.jsonl"),
        f"init_from={model}",
        f"seed={seed}",
        "data.held_out=[]",
        "observe.evaluate_every=null",
        f"phases.0.steps={args.steps}",
        "checkpoint.every_steps=1000",
    ]
    seconds = run(args, name, "rl.yaml", changes, seed if kind == "shuffled" else None)
    folder = args.work / name.replace(" ", "-")
    rewards = [one["reward"] for one in json_lines(folder / "metrics.jsonl") if "reward" in one]
    found = {"cpu_s": round(seconds, 1), "steps": args.steps, "reward_first": rewards[0], "reward_last": rewards[-1]}
    (last,) = (folder / "checkpoints").glob("step-*")
    return keep(args, name, found | rate(args, last))


# What a model is worth.


def rate(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Held-out accuracy, greedy and sampled, and pass@8."""
    from glmforge.rl.held_out import wilson

    items: dict[str, list[float]] = {}
    file = args.work / "data" / "prompts-held-out.jsonl"
    for temperature, number in ((0.0, 1), (1.0, SAMPLES)):
        right = [[is_right for _, is_right in group] for group in answered(model, file, temperature, number)]
        if number == 1:
            items["greedy"] = [float(group[0]) for group in right]
        else:
            items["sampled"] = [sum(group) / number for group in right]
            items[f"pass_at_{number}"] = [float(any(group)) for group in right]
    shares = {name: statistics.mean(values) for name, values in items.items()}
    return {"items": items} | {
        name: {"share": share, "low": low, "high": high}
        for name, share in shares.items()
        for low, high in [wilson(share, len(items["greedy"]))]
    }


def answered(model: Path, file: Path, temperature: float, number: int) -> list[list[tuple[str, bool]]]:
    """Text of each prompt's answers, and whether they are right."""
    import torch

    from glmforge.generate.config import EngineConfig
    from glmforge.generate.engine import Engine
    from glmforge.generate.params import SamplingParams
    from glmforge.rl.prompts import make_prompts, read_prompts
    from glmforge.verify.reward import reward

    torch.set_num_threads(1)
    engine = Engine.load(model, EngineConfig(1 << 27, 16, max_sequences=256), dtype=torch.float32)
    words = engine.tokenizer
    assert words is not None, "a run has one"
    prompts = make_prompts(read_prompts([file]), words, thinking=False).prompts
    params = [
        SamplingParams(
            max_new_tokens=LONGEST,
            temperature=temperature,
            seed=place,
            num_samples=number,
            stop_ids=words.stop_ids,
            vocab_size=words.vocab_size,
        )
        for place in range(len(prompts))
    ]
    found = []
    for prompt, samples in zip(prompts, engine.generate([list(one.ids) for one in prompts], params), strict=True):
        texts = [words.decode(sample.tokens[: -1 if sample.finished == "stop" else None]) for sample in samples]
        found.append(
            [
                (text, sample.finished == "stop" and reward(prompt.verifier, text) == 1)
                for text, sample in zip(texts, samples, strict=True)
            ]
        )
    return found


def by_kind(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Kind of arm -> its seeds' results."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for name, one in found.items():
        if name != "start":
            kinds.setdefault(name.partition(" ")[0], []).append(one)
    return kinds


def gains(start: dict[str, Any], arms: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Differences of accuracy, an item's being the mean over seeds, with intervals over items at 95 %."""
    from glmforge.evaluate.statistics import compare

    best = [one["best"] for one in arms["sft"]]
    pairs = {
        "rl": ([start], arms["rl"]),
        "sft": ([start], arms["sft"]),
        "sft_best": ([start], best),
        "shuffled": ([start], arms["shuffled"]),
        "rl_over_sft": (arms["sft"], arms["rl"]),
        "rl_over_sft_best": (best, arms["rl"]),
    }
    return {
        name: {
            measure: difference(compare(mean_items(old, measure), mean_items(new, measure)))
            for measure in ("greedy", "sampled", "pass_at_8")
        }
        for name, (old, new) in pairs.items()
    }


def mean_items(runs: Sequence[dict[str, Any]], measure: str) -> list[float]:
    return [statistics.mean(values) for values in zip(*(one["items"][measure] for one in runs), strict=True)]


def difference(found: Any) -> dict[str, float]:
    of = found.difference
    return {"mean": of.mean, "low": of.low, "high": of.high}


def without_items(found: Any) -> Any:
    """What is said of single sums is left out."""
    if isinstance(found, dict):
        return {name: without_items(one) for name, one in found.items() if name != "items"}
    return [without_items(one) for one in found] if isinstance(found, list) else found


def line(name: str, one: dict[str, Any]) -> list[str]:
    shares = [one[key] for key in ("greedy", "sampled", "pass_at_8")]
    return [
        name,
        f"{one['cpu_s']:.0f}",
        *(f"{some['share']:.3f} ({some['low']:.3f} to {some['high']:.3f})" for some in shares),
    ]


if __name__ == "__main__":
    main()
