"""Every command in an installation without extras: it works, or says in one line which extra to install."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from glmforge.cli.app import app
from glmforge.config import dump_config
from glmforge.extras import extra_of, extras
from helpers import core_only
from helpers.packages import install_or_skip
from helpers.tiny_data import TinyData

# Command -> (its arguments, the extra that it asks for, or None where it must work). They run in this order in one
# process; {run} is a short run, {data} its tokenizer and shards, {text} a file of text, {out} a directory to write to.
COMMANDS: dict[str, tuple[str, str | None]] = {
    "init": ("{out}/new.yaml --tokenizer {data}/tokenizer --data {data}/train --model tiny", None),
    "train": ("{run}.yaml", None),
    "plan": ("{run}.yaml", None),
    "launch": ("{run}.yaml --launcher local --dry-run", None),
    "chat": ("{run} --prompt def --max-new-tokens 2 --complete", None),
    "generate": ("{run} --prompt def --max-new-tokens 2", None),
    "export": ("{run} {out}/export", None),
    "quantize": ("{run} --method int8 --output {out}/int8", None),
    "fisher": ("{run}.yaml {data}/train {out}/fisher init_from={run} --rows 2", None),
    "evaluate benchmarks": ("{run} --benchmark gsm8k --data {out} --out {out}/result", "eval"),
    "evaluate card": ("{out}/none", None),
    "evaluate compare": ("{out}/none {out}/none", None),
    "evaluate contamination": ("{run} --benchmark gsm8k --data {out}", "eval"),
    "evaluate failures": ("{out}/none", None),
    "evaluate safety": ("{run} --data {out} --out {out}/safety", "eval"),
    "evaluate table": ("{out}/none", None),
    "evaluate needles": ("{run} --length 200 --depth 0 --num-examples 1", None),
    "report": ("{run}", "observe"),
    "control": ("{run} save", None),
    "profile train": ("{run}.yaml --steps 1", None),
    "profile memory": ("{run}.yaml", None),
    "profile data": ("{run}.yaml --workers 0 --seconds 0.1", None),
    "watch": ("{run} --once", None),
    "runs": ("{run}", None),
    "compare": ("{run} {out}", "observe"),
    "timeline": ("{run}", None),
    "experts": ("{run}", None),
    "find-nan": ("{run}", None),
    "debug bundle": ("{run} --output {out}/debug.tar.gz", None),
    "data run": ("{out}/pipeline.yaml", "data"),
    "data extract": ("{text} --out {out}/extract", "data"),
    "data clean": ("{text} --out {out}/clean", "data"),
    "data dedup": ("{text} --out {out}/dedup", "data"),
    "data decontaminate": ("{text} --against {text} --out {out}/safe", "data"),
    "data analyze": ("{text} --out {out}/analysis", "data"),
    "data sample": ("{text} --documents 1 --out {out}/sample", "data"),
    "data augment": ("{text} --operation case --out {out}/augmented", "data"),
    "data mix": ("--inputs {data}/train --tokenizer {data}/tokenizer --out {out}/mixture.yaml", None),
    "data train-quality": ("--positive {text} --negative {text} --out {out}/quality.npz", "data"),
    "data train-toxicity": ("--toxic {text} --harmless {text} --out {out}/toxicity.npz", "data"),
    "data problems": ("--count 10 --out {out}/problems", "data"),
    "data generate": ("--endpoint http://127.0.0.1:9 --model m --questions {text} --out {out}/r1", "data"),
    "data tokenizer": ("{text} --vocab-size 300 --out {out}/tokenizer", None),
    "data fertility": ("{text} --tokenizer {data}/tokenizer", None),
    "data tokenize": ("{text} --tokenizer {data}/tokenizer --out {out}/shard", None),
    "data pack": ("{data}/train --seq-len 32", None),
    "data needles": (
        "--tokenizer {data}/tokenizer --length 200 --depth 0 --format conversations --out {out}/chats.jsonl",
        None,
    ),
    "data preferences": ("{out}/pairs.jsonl --tokenizer {data}/tokenizer", None),
    "data chat": ("{out}/chats.jsonl --tokenizer {data}/tokenizer --show 1 --out {out}/chats", None),
    "configs list": ("", None),
    "configs to-megatron": ("{run}.yaml", None),
    "configs from-megatron": ("{out}/none data.tokenizer={data}/tokenizer", None),
    "configs copy": ("small_1b {out}/configurations/small.yaml", None),
    "model show": ("tiny", None),
    "checkpoint show": ("{run}", None),
    "checkpoint verify": ("{run}", None),
    "checkpoint copy": ("{run} --to {out}/second", None),
    "checkpoint consolidate": ("{run}", None),
    "checkpoint reset-optimizer": ("{run} {out}/reset", None),
    "checkpoint diff": ("{run}/checkpoints/step-00000003 {run}/checkpoints/step-00000003", None),
    "checkpoint to-deepspeed": ("{run} {out}/deepspeed", None),
    "checkpoint to-megatron": ("{run} {out}/megatron", None),
    "checkpoint from-megatron": ("{out}/megatron {out}/from-megatron --config {run}", None),
    "checkpoint from-deepspeed": ("{out}/megatron {out}/from-deepspeed --config {run}.yaml", None),
    "adapter show": ("{run}", None),
    "adapter gather": ("{run}", None),
    "adapter merge": ("{run} {out}/adapter", None),
    "adapter convert": ("{run} {out}/adapters --base {run}", None),
    "rl try": ("{run}.yaml", None),
    "rl show": ("{run}", None),
    "rl sample": ("{run} --out {out}/verified.jsonl", None),
    "rl select": ("{run} --out {out}/moderate.jsonl --right 1:7", None),
    "cluster bench": ("--max-bytes 1M", None),
    "cluster init": ("--hosts localhost --out {out}/cluster.yaml", None),
    "cluster setup": ("--type manual --hosts localhost --dry-run --offline --out {out}/cluster", None),
    "cluster check": ("--local --only limits", None),
    "cluster dev up": ("--nodes 0 --directory {out}/dev", None),
    "cluster dev status": ("--directory {out}/dev", None),
    "cluster dev fail": ("node1 --directory {out}/dev", None),
    "cluster dev cut": ("node1 --directory {out}/dev", None),
    "cluster dev heal": ("node1 --directory {out}/dev", None),
    "cluster dev down": ("--directory {out}/dev", None),
    "cluster env": ("--network tcp", None),
    "cluster clean": ("--path {out}/cache --dry-run", None),
    "cluster stage": ("{data}/train --to {out}/cache", None),
    "monitor status": ("--directory {out}/none", None),
    "monitor down": ("--directory {out}/none", None),
    "monitor page": ("--directory {out}/none", None),
    "monitor up": ("{out}/none --directory {out}/monitoring", None),
    "monitor dashboards": ("--output {out}/dashboards", "dashboards"),
    "monitor rules": ("--output {out}/rules", None),
    "monitor targets": ("{run} --output {out}/targets.json", None),
    "jobs list": ("--jobs-dir {out}", None),
    "jobs show": ("none --jobs-dir {out}", None),
    "jobs logs": ("none --jobs-dir {out}", None),
    "jobs follow": ("none --jobs-dir {out}", None),
    "sweep show": ("none --jobs-dir {out}", None),
    "sweep page": ("none --jobs-dir {out} --out {out}/sweep.html", None),
    "sweep resubmit": ("none --jobs-dir {out}", None),
    "sweep cancel": ("none --jobs-dir {out}", None),
    "chain run": ("{run}.yaml --jobs-dir {out}", None),
    "chain show": ("none --jobs-dir {out}", None),
    "chain resume": ("none --jobs-dir {out}", None),
    "chain cancel": ("none --jobs-dir {out}", None),
    "jobs cancel": ("none --jobs-dir {out}", None),
    "jobs resubmit": ("none --jobs-dir {out}", None),
    "jobs allow": ("none node1 --jobs-dir {out}", None),
    "jobs goodput": ("none --jobs-dir {out}", None),
}
ELSEWHERE = {
    "profile inference": "it needs a server; `tests/integration/deploy/test_inference_profile.py` runs it",
    "profile compare": "it needs a profile; the same tests run it",
    "serve": "it goes on until it is ended; `tests/integration/serve/test_ends.py` runs it",
    "monitor gpu": "it needs a GPU's driver; `tests/ops/unit/monitor/test_gpu.py` runs it",
    "supervise": "it goes on until a job is done; `tests/ops/integration/jobs/test_supervise.py` runs it",
    "demo": "minutes long; it is made of the commands above, and of what `test_demo.py` runs",
    "health": "its status is the machine's; `tests/ops/integration/health/test_health.py` runs it",
}
COPIES = ("checkpoint copy", "cluster stage")
REFUSES = {
    "control": "the run has ended",
    "find-nan": "no step is recorded whose loss or gradient is not finite",
    "configs from-megatron": "cannot be read",
    "checkpoint to-deepspeed": "its optimizer keeps momentum",
    "checkpoint from-deepspeed": "is it a DeepSpeed checkpoint?",
    "adapter show": "has no adapters",
    "adapter merge": "has no adapters",
    "adapter convert": "is not a Hugging Face directory",
    "checkpoint consolidate": "sets no checkpoint.local_dir",
    "adapter gather": "sets no checkpoint.local_dir",
    "evaluate card": "has no result.json",
    "evaluate compare": "has no result.json",
    "evaluate failures": "has no result.json",
    "evaluate table": "has no result.json",
    "rl try": "stage: 'pretrain' has no prompts and rewards",
    "rl show": "has no answers; pass a run of stage rl",
    "rl sample": "stage: 'pretrain' has no prompts and rewards",
    "rl select": "stage: 'pretrain' has no prompts and rewards",
    "cluster bench": "one rank cannot communicate",
    "cluster setup": "--nodes",
    "cluster dev up": "nodes 0: must be between 1 and",
    "cluster dev down": "no development cluster there",
    **dict.fromkeys(
        ("jobs show", "jobs logs", "jobs follow", "jobs cancel", "jobs resubmit", "jobs allow", "jobs goodput"),
        "there is no job none",
    ),
    **dict.fromkeys(("sweep show", "sweep page", "sweep resubmit", "sweep cancel"), "no such sweep"),
    **dict.fromkeys(("monitor status", "monitor down", "monitor page"), "no monitoring there"),
    "monitor up": "no such directory",
    "chain run": "output_dir: unknown key",
    **dict.fromkeys(("chain show", "chain resume", "chain cancel"), "no such chain"),
    **dict.fromkeys(
        ("cluster dev status", "cluster dev fail", "cluster dev cut", "cluster dev heal"),
        "no development cluster is up there",
    ),
}
"""Commands that need what no short test has, and how they say so when all that they import is there."""


def commands() -> Iterator[str]:
    """All commands there are, as they are typed."""

    def walk(command: object, words: tuple[str, ...]) -> Iterator[str]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(words)
        for name, child in (inner or {}).items():
            yield from walk(child, (*words, name))

    return walk(typer.main.get_command(app), ())


@pytest.fixture(scope="module")
def outcomes(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Command -> its status and what it wrote to stderr."""
    with suppress(pytest.skip.Exception):
        install_or_skip(["rsync"], ["rsync"])
    out = tmp_path_factory.mktemp("without-extras")
    run = out / "run"
    config = tiny_data.run_config(run, phases=[{"name": "main", "steps": 3, "seq_len": 16, "batch_size": 2}])
    run.with_suffix(".yaml").write_text(dump_config(config))
    text = out / "text.txt"
    text.write_text("def main():\n    return 1\n" * 50)
    stages = [{"extract": {"inputs": [{"source": "a", "path": str(text)}]}}]
    pair = {"prompt": "Which?", "chosen": "This one.", "rejected": "None."}
    (out / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n")
    (out / "pipeline.yaml").write_text(json.dumps({"output": str(out / "corpus"), "stages": stages}))
    places = {"run": run, "data": tiny_data.train.parent, "text": text, "out": out}
    lines = [
        [*name.split(), *(word.format(**places) for word in words.split())] for name, (words, _) in COMMANDS.items()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "helpers.core_only"],
        input=json.dumps(lines),
        env=core_only.environment(out),
        cwd=out,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return dict(zip(COMMANDS, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_no_command_is_forgotten() -> None:
    assert set(commands()) == set(COMMANDS) | set(ELSEWHERE)


@pytest.mark.parametrize("name", COMMANDS)
def test_command(outcomes: dict[str, dict[str, object]], name: str) -> None:
    extra, outcome = COMMANDS[name][1], outcomes[name]
    if name in COPIES and shutil.which("rsync") is None:
        pytest.skip("needs rsync: apt-get install rsync")
    if extra is None:
        assert outcome["status"] == 0 or REFUSES.get(name, "no refusal") in str(outcome["stderr"]), outcome["stderr"]
        return
    assert outcome["status"] == 1, outcome["stderr"]
    lines = str(outcome["stderr"]).strip().splitlines()
    assert len(lines) == 1
    assert re.fullmatch(rf"glmforge: .+ needs the package '\w+', which is not installed: pip install "
                        rf"'glmforge\[{extra}\]'", lines[0])  # fmt: skip


def test_what_is_hidden() -> None:
    """The test would say nothing if it hid too little, or what the core needs."""
    hidden = set(core_only.hidden_modules())
    needed = core_only.reached("glmforge", frozenset())
    owners = importlib.metadata.packages_distributions()
    hidden_packages = {re.sub(r"[-_.]+", "-", owner).lower() for module in hidden for owner in owners[module]}
    installed = {re.sub(r"[-_.]+", "-", owner).lower() for names in owners.values() for owner in names}
    assert {name for name in extras() if name not in needed} & installed <= hidden_packages
    assert {"pyarrow", "numba", "datatrove", "transformers", "matplotlib"} <= hidden
    assert not hidden & {"torch", "numpy", "pydantic", "yaml", "typer", "rich", "tokenizers", "safetensors", "jinja2"}


@pytest.mark.parametrize("module", sorted(extras()))
def test_a_module_of_each_package_names_its_extra(module: str) -> None:
    requirement = next(r for r in importlib.metadata.requires("glmforge") or [] if r.startswith(module))
    assert f'extra == "{extra_of(module.replace("-", "_"))}"' in requirement


def test_a_package_of_no_extra() -> None:
    assert extra_of("no_such_module") is None
    assert extra_of("pytest") is None
    assert Path(core_only.__file__).is_file()
