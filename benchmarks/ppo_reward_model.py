"""Does PPO with a trained reward model raise the score of the true verifier, which it never sees?

    python benchmarks/ppo_reward_model.py             # what is finished is kept, so a killed run goes on
    python benchmarks/ppo_reward_model.py --seeds 1 --steps 20 --quick

The task, the policy that all begins with and the measures are those of `rl_learning.py`. The policy answers training
prompts; a right and a wrong answer to one prompt are a pair. A reward model learns from the pairs, from the policy's
weights, and is rated on pairs of held-out prompts. Then PPO with critic: the reward model's score is the only reward.
"""

import argparse
from pathlib import Path
from typing import Any

from harness import arguments, json_lines, table
from record import ROOT, write_result
from rl_learning import (
    FEW,
    answered,
    best_start,
    difference,
    keep,
    kept,
    line,
    mean_items,
    prepare,
    rate,
    run,
    sources,
    without_items,
    write_json_lines,
)

CODE = (
    "benchmarks/rl_learning.py",
    "examples/rl",
    "src/glmforge/config/rl.py",
    "src/glmforge/objectives/policy.py",
    "src/glmforge/objectives/reward.py",
    "src/glmforge/objectives/value.py",
    "src/glmforge/recipes/rl.py",
    "src/glmforge/rl",
)
SAMPLES, TEMPERATURE = 64, 1.5
"""Of the answers that pairs are made from: hotter than in training, for more wrong ones."""
REWARD = (
    "stage=reward",
    "model.heads={score: 1}",
    "model.lm_head=false",
    "reward={center_weight: 0.01}",
    "phases=[{name: pairs, epochs: 6, seq_len: 256, batch_size: 4}]",
    "parallel.micro_batch_size=4",
    "optim={lr: 3e-3, min_lr: 3e-4, warmup_steps: 10}",
    "observe.evaluate_every=500",
)
PPO = (
    "rl.advantage={kind: gae, lam: 0.95}",
    "rl.critic={warmup_steps: 10, lr_scale: 2}",
    "rl.rewards={terms: [{kind: reward_model}, {kind: verifier, weight: 0}]}",
    "rl.kl={weight: 0.3}",
    "optim.lr=1e-4",
)
"""Of weight 0, the verifier's verdicts are recorded and change nothing."""


def main() -> None:
    args = parse_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args)
    start = best_start(args)
    model = args.work / "start" / "checkpoints" / f"step-{start['best_step']:08d}"
    pairs = make_pairs(args, model)
    judge = reward_model(args, model)
    arms = {f"ppo {seed}": ppo(args, seed, model) for seed in range(1, args.seeds + 1)}
    rows = [line(*one) for one in [("start", start), *arms.items()]]
    print(table(("arm", "CPU-s", "greedy", "sampled", "pass@8"), rows))
    if not args.quick:
        content = {"pairs": pairs, "reward_model": judge, "steps": args.steps, "start": start, "arms": [*arms.values()]}
        content["gains"] = gains(start, [*arms.values()])
        write_result("ppo_reward_model", without_items(content), code=CODE, out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "rl_learning", help="where runs are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="of PPO, of which the first 10 warm up the critic")
    parser.add_argument("--quick", action="store_true", help="a trial that writes no result")
    parser.set_defaults(few=FEW)
    return parser.parse_args()


def make_pairs(args: argparse.Namespace, model: Path) -> dict[str, int]:
    """Files of pairs: each distinct wrong answer against the right one."""
    if found := kept(args, "pairs"):
        return found
    data, numbers = args.work / "data", {}
    for source, name in (("prompts", "pairs"), ("prompts-held-out", "pairs-held-out")):
        file = data / f"{source}.jsonl"
        pairs = [
            {"prompt": record["prompt"], "chosen": right, "rejected": wrong}
            for record, answers in zip(json_lines(file), answered(model, file, TEMPERATURE, SAMPLES), strict=True)
            for right in sorted({text for text, is_right in answers if is_right})[:1]
            for wrong in sorted({text for text, is_right in answers if not is_right and text})
        ]
        write_json_lines(data / f"{name}.jsonl", pairs)
        numbers[name] = len(pairs)
    return keep(args, "pairs", numbers)


def reward_model(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Train it, and what it is worth on pairs of held-out prompts."""
    if found := kept(args, "reward"):
        return found
    held_out = f"data.held_out=[{{name: pairs, path: {args.work / 'data' / 'pairs-held-out.jsonl'}}}]"
    changes = [*sources(args, "pairs.jsonl"), held_out, f"init_from={model}", *REWARD]
    seconds = run(args, "reward", "base.yaml", changes)
    last = json_lines(args.work / "reward" / "evaluation.jsonl")[-1]
    return keep(args, "reward", {"cpu_s": round(seconds, 1), **last})


def ppo(args: argparse.Namespace, seed: int, model: Path) -> dict[str, Any]:
    """An arm: what the policy is worth behind PPO, by the verifier, and by step the reward, and how many answers were
    right."""
    name = f"ppo {seed}"
    if found := kept(args, name):
        return found
    changes = [
        *sources(args, "prompts.jsonl"),
        f"init_from={model}",
        f"seed={seed}",
        "data.held_out=[]",
        "observe.evaluate_every=null",
        f"phases.0.steps={args.steps}",
        "checkpoint.every_steps=1000",
        f"rl.reward_model={args.work / 'reward'}",
        *PPO,
    ]
    seconds = run(args, name, "rl.yaml", changes)
    folder = args.work / name.replace(" ", "-")
    steps = [one for one in json_lines(folder / "metrics.jsonl") if "reward" in one]
    scores = {name: [round(one[name], 4) for one in steps] for name in ("reward", "reference_kl")}
    scores["right"] = [round(one["reward_terms"]["verifier"], 4) for one in steps]
    (last,) = (folder / "checkpoints").glob("step-*")
    return keep(args, name, {"cpu_s": round(seconds, 1), **scores, **rate(args, last)})


def gains(start: dict[str, Any], arms: list[dict[str, Any]]) -> dict[str, Any]:
    """Points of accuracy over the start, an item's being the mean over seeds, with intervals over items at 95 %."""
    from glmforge.evaluate.statistics import compare

    return {
        measure: difference(compare(mean_items([start], measure), mean_items(arms, measure)))
        for measure in ("greedy", "sampled", "pass_at_8")
    }


if __name__ == "__main__":
    main()
