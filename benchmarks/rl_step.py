"""A GRPO step against TRL's, on this machine: rollout, rewards, reference and training.

    python benchmarks/rl_step.py --model exports/demo             # about five minutes
    python benchmarks/rl_step.py --model exports/demo --quick --programs "glmforge" "TRL grouped_mm"

Each program does steps of its own trainer (ours: stage `rl`, as `glmforge train` runs it; TRL's: `GRPOTrainer` with
generation by transformers) in a process of its own, and the processes take turns (`harness`). All begin with the same
weights and get the same prompts, as many answers to each, all of the same length (the end of an answer is ignored here,
suppressed there), the same verifiers in the same pool of processes, fp32, AdamW, and one optimizer step to a rollout.
Both minimise the same loss (`tests/integration/rl/test_against_trl.py`), with a divergence from a reference.

TRL's settings are those that were fastest in a trial: no recomputation, four micro-batches, `grouped_mm`, torch's dense
attention. Our rows have the length of four or eight answers. Ours replays the rollout's experts and proves the
engine's weights, which TRL does not do. Seconds are CPU seconds of the program, without those of the pool; `other` is
what remains of a step: data, packing, records.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from harness import Program, alternating, arguments
from record import write_result

from glmforge.config.load import load_config
from glmforge.config.rewards import RewardsConfig, RewardTerm
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.kernels.allocator import keep_large_blocks
from glmforge.recipes.train import train
from glmforge.rl.prompts import Prompts, make_prompts, read_prompts
from glmforge.rl.rewards import Rewards, ScoredText
from glmforge.rl.source import RolloutSource
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

CODE = ("src/glmforge/rl", "src/glmforge/objectives/policy.py", "src/glmforge/generate", "src/glmforge/kernels")
OURS = "glmforge"
EXPERTS = {"TRL eager": "eager", "TRL grouped_mm": "grouped_mm"}
PARTS = ("rollout", "rewards", "reference", "training", "other")
GROUP_SIZE, NUM_GROUPS, NUM_PROMPTS, LONGEST_PROMPT, LONGEST_ROW, KL, LEARNING_RATE = 8, 4, 64, 64, 2048, 1e-3, 1e-5
DIGITS = "rl_reward:digits"
REWARDS = RewardsConfig(
    terms=[RewardTerm(kind="verifier"), RewardTerm(kind="repetition"), RewardTerm(kind="python", function=DIGITS)]
)


def main() -> None:
    args = parse_arguments()
    if args.worker:
        Turns(args).work()
        return
    found = {}
    for length in args.new_tokens:
        found[f"{length} new tokens"] = compare(args, length)
        print(json.dumps(found), flush=True)
    content = {"threads": args.threads, "answers": GROUP_SIZE * NUM_GROUPS, "group_size": GROUP_SIZE, **found}
    if not args.quick:
        write_result("rl_step", content, code=CODE, libraries=("transformers", "trl"), out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__, rounds=4)
    parser.add_argument("--model", type=Path, required=True, help="an export with its tokenizer")
    parser.add_argument("--new-tokens", type=int, nargs="+", default=[128, 384], help="length of every answer")
    parser.add_argument("--programs", nargs="+", choices=(OURS, *EXPERTS), default=[OURS, "TRL grouped_mm"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step of TRL's")
    parser.add_argument("--quick", action="store_true", help="a trial that writes no result")
    for name in ("--worker", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(args: argparse.Namespace, length: int) -> dict[str, Any]:
    """All programs with answers of one length, taking turns of one step; the first turn is a warm-up."""
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in args.programs}
    with tempfile.TemporaryDirectory() as folder:
        write_prompts(Path(folder))
        given = [__file__, "--model", str(args.model), "--new-tokens", str(length), "--threads", str(args.threads)]
        given += ["--micro-batches", str(args.micro_batches), "--folder", folder, "--worker"]
        programs = {name: Program(name, [sys.executable, *given, name], args.threads) for name in turns}
        for program in programs.values():
            program.read()
        for name in alternating(list(programs), args.rounds + 1):
            turns[name].append(programs[name].ask({}))
        for program in programs.values():
            program.close()
    prompt_tokens = {name: [turn.pop("prompt_tokens") for turn in some] for name, some in turns.items()}
    answer_tokens = {name: {turn.pop("answer_tokens") for turn in some} for name, some in turns.items()}
    assert all(some == {length * GROUP_SIZE * NUM_GROUPS} for some in answer_tokens.values()), answer_tokens
    assert len({tuple(some) for some in prompt_tokens.values()}) == 1, f"other prompts: {prompt_tokens}"
    figures: dict[str, Any] = {name: medians(some[1:]) for name, some in turns.items()}
    for name in turns:
        if OURS in turns and name != OURS:
            figures[name]["times_ours"] = ratios(turns[name][1:], turns[OURS][1:])
    mean_prompt = statistics.mean(prompt_tokens[args.programs[0]]) / NUM_GROUPS
    return {"rounds": args.rounds, "prompt_tokens": round(mean_prompt, 1), **figures}


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {part: round(statistics.median(turn[part] for turn in turns), 3) for part in ("step", *PARTS)}


def ratios(theirs: Sequence[Mapping[str, float]], ours: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Of neighbouring turns: of the step median, smallest and largest, of parts the median."""
    pairs = list(zip(theirs, ours, strict=True))
    of_step = sorted(a["step"] / b["step"] for a, b in pairs)
    found = {"step": statistics.median(of_step), "min": of_step[0], "max": of_step[-1]}
    found |= {part: statistics.median(a[part] / b[part] for a, b in pairs) for part in PARTS[:-1]}
    return {name: round(value, 2) for name, value in found.items()}


def write_prompts(folder: Path) -> None:
    """Sums of ten numbers."""
    rng = random.Random(0)
    with (folder / "prompts.jsonl").open("w") as file:
        for _ in range(NUM_PROMPTS):
            numbers = [rng.randrange(10, 1000) for _ in range(10)]
            verifier = {"kind": "number", "answer": str(sum(numbers))}
            question = f"What is {' + '.join(map(str, numbers))}? Add one number after the other."
            print(json.dumps({"prompt": question, "verifier": verifier, "source": "sums"}), file=file)


class Turns:
    """A worker: takes a step whenever it is asked for one, and answers with the seconds of its parts."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.folder, (self.length,) = args, Path(args.folder), args.new_tokens
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.facts: dict[str, int] = {}
        self.started = 0.0
        self.answers: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what trainers print is no answer

    def work(self) -> None:
        torch.set_num_threads(self.args.threads)
        keep_large_blocks()
        ours(self) if self.args.worker == OURS else trl(self, EXPERTS[self.args.worker])

    def await_question(self) -> bool:
        """Whether there is one more step to take; its clock runs from here."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        asked = bool(sys.stdin.readline())
        self.started = time.process_time()
        return asked

    def answer(self, found: Mapping[str, Any]) -> None:
        print(json.dumps(found), file=self.answers, flush=True)

    def end_step(self) -> None:
        seconds = time.process_time() - self.started
        self.seconds["other"] = seconds - sum(self.seconds.values())
        self.answer({"step": seconds, **self.seconds, **self.facts})

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **names: Any) -> Any:
            start = time.process_time()
            found = function(*args, **names)
            self.seconds[part] += time.process_time() - start
            return found

        return run

    def count(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
        self.facts = {"prompt_tokens": sum(map(len, prompts)), "answer_tokens": sum(map(len, answers))}


# Ours.


def ours(turns: Turns) -> None:
    file = turns.folder / "rl.yaml"
    file.write_text(json.dumps(configuration(turns)))
    train(load_config(file), [OurTurns(turns)])


def configuration(turns: Turns) -> dict[str, Any]:
    longest = LONGEST_PROMPT + turns.length
    phase = {
        "name": "rl",
        "steps": 1000,
        "seq_len": min(8, LONGEST_ROW // longest) * longest,
        "batch_size": GROUP_SIZE * NUM_GROUPS,
    }
    phase |= {"router_bias_rate": 0.0, "aux_loss_weight": 0.0}
    rollout = {"group_size": GROUP_SIZE, "max_new_tokens": turns.length, "thinking": False, "drop_equal": False}
    rollout["max_prompt_tokens"] = LONGEST_PROMPT
    return {
        "name": "rl-step",
        "stage": "rl",
        "output_dir": str(turns.folder / "run"),
        "init_from": str(turns.args.model.resolve()),
        "data": {
            "tokenizer": str(turns.args.model.resolve()),
            "sources": [{"name": "sums", "path": str(turns.folder / "prompts.jsonl")}],
        },
        "phases": [phase],
        "optim": {
            "lr": LEARNING_RATE,
            "min_lr": 0.0,
            "matrix_optimizer": "adamw",
            "schedule": "constant",
            "weight_decay": 0.0,
        },
        "precision": {"compute": "fp32"},
        "parallel": {"micro_batch_size": 1},
        "rl": {"rollout": rollout, "rewards": REWARDS.model_dump(exclude_none=True), "kl": {"weight": KL}},
    }


class OurTurns(Hook):
    name = "turns"

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_train_start(self, trainer: Trainer) -> None:
        source, turns = trainer.source, self.turns
        assert isinstance(source, RolloutSource)
        source.sampler._stop_ids = ()
        source.sampler.sample = turns.timed("rollout", source.sampler.sample)  # type: ignore[method-assign]
        source._score = turns.timed("rewards", source._score)
        source.models.score = turns.timed("reference", source.models.score)  # type: ignore[method-assign]
        source._write = self.count
        turns.answer({})
        turns.await_question()

    def count(self, step: int, answers: Sequence[Any]) -> None:
        self.turns.count([one.prompt_P for one in answers if one.sample == 0], [one.tokens_N for one in answers])

    def on_step_start(self, trainer: Trainer) -> None:
        self.began = time.process_time()

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.turns.seconds["training"] = time.process_time() - self.began
        self.turns.end_step()
        if not self.turns.await_question():
            trainer.vote("stop")


# TRL's.


def trl(turns: Turns, experts: str) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(turns.args.model)
    prompts = prompts_of(turns)
    texts = [tokenizer.decode(one.ids) for one in prompts.prompts]
    assert [tokenizer(text)["input_ids"] for text in texts] == [list(one.ids) for one in prompts.prompts]
    number_of = {text: number for number, text in enumerate(texts)}
    order = [prompts.prompts.index(prompts.at(number, 0)) for number in range(NUM_PROMPTS)]
    rewards = Rewards(REWARDS)

    def reward(prompts_A: list[str], replies_A: list[str]) -> list[float | None]:
        samples = [
            ScoredText(prompts.prompts[number_of[prompt]], reply, turns.length, True, turns.length)
            for prompt, reply in zip(prompts_A, replies_A, strict=True)
        ]
        return [verdict.total for verdict in rewards.score(samples)]

    class Timed(GRPOTrainer):
        def _generate(self, given: list[str]) -> Any:
            found = turns.timed("rollout", super()._generate)(given)
            turns.count(found[0][::GROUP_SIZE], found[1])
            return found

        def _calculate_rewards(self, *args: Any) -> Any:
            return turns.timed("rewards", super()._calculate_rewards)(*args)

        def _get_per_token_logps_and_entropies(self, *args: Any, **names: Any) -> Any:
            function = super()._get_per_token_logps_and_entropies
            return (function if torch.is_grad_enabled() else turns.timed("reference", function))(*args, **names)

        def _prepare_inputs(self, given: Any) -> Any:
            """In it are rollout, rewards and reference; what it does besides is `other`."""
            start, before = time.process_time(), sum(turns.seconds.values())
            found = super()._prepare_inputs(given)
            known = sum(turns.seconds.values()) - before
            turns.seconds["other"] += time.process_time() - start - known
            return found

    class TheirTurns(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            turns.answer({})

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not turns.await_question()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            turns.seconds["training"] = time.process_time() - turns.started - sum(turns.seconds.values())
            turns.end_step()

    num_answers = GROUP_SIZE * NUM_GROUPS
    model = AutoModelForCausalLM.from_pretrained(
        turns.args.model, dtype=torch.float32, attn_implementation="sdpa", experts_implementation=experts
    )
    config = GRPOConfig(
        output_dir=str(turns.folder / "trl"),
        per_device_train_batch_size=num_answers // turns.args.micro_batches,
        gradient_accumulation_steps=turns.args.micro_batches,
        num_generations=GROUP_SIZE,
        max_completion_length=turns.length,
        generation_kwargs={"min_new_tokens": turns.length},
        shuffle_dataset=False,
        beta=KL,
        scale_rewards="none",
        loss_type="dapo",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_steps=1000,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    given = Dataset.from_list([{"prompt": texts[place]} for place in order])
    Timed(
        model,
        lambda prompts, completions, **_: reward(prompts, completions),
        config,
        given,
        processing_class=tokenizer,
        callbacks=[TheirTurns()],
    ).train()


def prompts_of(turns: Turns) -> Prompts:
    tokenizer = Tokenizer.load(turns.args.model)
    records = read_prompts([turns.folder / "prompts.jsonl"])
    return make_prompts(records, tokenizer, thinking=False, max_tokens=LONGEST_PROMPT)


if __name__ == "__main__":
    main()
