"""The guides of docs/guides carried out as their readers do: files written, commands run, in order, in a directory.

A fenced block of a guide is one of three things, and any other is an error:

- a file, where the paragraph before ends with its name: "... in `run.yaml`:";
- `console`: commands after `$ `, run by bash in processes of their own (`helpers.prepared` starts them sooner), and
  below each what it shows of its output, where "..." stands for anything in a line, or for any lines. A command whose
  output ends with a line of "glmforge: ..." is refused with status 1; every other one succeeds. `export NAME=VALUE`
  holds for the commands after it;
- `sh`: launches for a cluster, which cannot run here. What the guide says is held to the program all the same: the
  command line is parsed, the configuration loaded with its overrides, and laid out on as many ranks as are launched.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from glmforge.cli.app import app
from glmforge.config.layout import resolve_layout
from glmforge.config.load import load_config
from glmforge.evaluate.result import read_result
from glmforge_ops.dev import DevCluster
from glmforge_ops.monitor.stack import down as end_monitoring
from helpers.dev_cluster import hosts_or_skip, install_slurm_or_skip
from helpers.prepared import programs

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
_FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`(?P<name>[\w.-]+)`:\s*\Z")
_EXPORT = re.compile(r"export (?P<name>[A-Z_]+)=(?P<value>[\w./$-]+)")
_INLINE = re.compile(r"(?<!`)`(glmforge [^`]+)`")
_LIMIT_S = 900  # generous: nothing is to fail because the machine is busy
_RANKS_OF_NODE = 8  # where a script starts them: examples/slurm/pretrain.sbatch, and those of examples/two_nodes


@dataclass(frozen=True)
class File:
    """A file that the reader writes."""

    line: int
    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command that the reader types, and what the guide shows of its output."""

    line: int
    text: str
    shown: str

    @property
    def status(self) -> int:
        return int(self.shown.rpartition("\n")[2].startswith("glmforge: "))


@dataclass(frozen=True)
class Launch:
    """A command line for a cluster."""

    line: int
    text: str


def read_guide(path: Path) -> list[File | Command | Launch]:
    """What there is to do in a guide, in order. Raises ValueError for a block of no known kind."""
    text = path.read_text("utf-8")
    steps: list[File | Command | Launch] = []
    for fence in _FENCE.finditer(text):
        named = _NAMED.search(text[: fence.start()])
        line = text.count("\n", 0, fence.start()) + 1
        if fence["kind"] == "console":
            steps += _commands(fence["body"], line + 1)
        elif fence["kind"] == "sh":
            steps += [Launch(line + 1, text) for text in _unfolded(fence["body"]) if not text.startswith("#")]
        elif named is not None:
            steps.append(File(line, named["name"], fence["body"]))
        else:
            raise ValueError(f"{path.name}:{line}: a block that is neither a file, console nor sh")
    return steps


def carry_out(guide: str, directory: Path) -> None:
    """Do in `directory` what a guide says; a step that does not come out as it says is an AssertionError."""
    for name in ("configs", "examples"):
        if not (directory / name).exists():
            (directory / name).symlink_to(ROOT / name)
    exported: dict[str, str] = {}
    for step in read_guide(GUIDES / guide):
        place = f"{guide}:{step.line}"
        match step:
            case File():
                (directory / step.name).write_text(step.text, "utf-8")
            case Command() if export := _EXPORT.fullmatch(step.text):
                exported[export["name"]] = export["value"].replace("$PWD", str(directory))
            case Command():
                _run(step, directory, place, exported)
            case Launch():
                check_launch(shlex.split(step.text, comments=True), directory, place)


def shows(output: str, shown: str) -> bool:
    """Whether the lines of `shown` follow each other in `output`; "..." alone stands for any number of lines.

    Spaces count as one, since tables are as wide as a terminal, and none at the end of a line.
    """
    lines = [re.escape(line).replace(re.escape("..."), ".*?") for line in _plain(shown).splitlines()]
    pattern = "".join(r"(?:.*\n)*?" if line == ".*?" else f"{line}\n" for line in lines)
    return re.search(f"^{pattern}", _plain(output), re.MULTILINE) is not None


def _plain(text: str) -> str:
    return "".join(re.sub(r"[ \t]+", " ", line).rstrip() + "\n" for line in text.splitlines())


def check_launch(words: Sequence[str], directory: Path, place: str) -> None:
    """The command can be parsed; a run's configuration loads and lies on the ranks that are launched."""
    program = next(i for i, word in enumerate(words) if word == "glmforge" or word.endswith((".sbatch", ".sh")))
    arguments = list(words[program + 1 :])
    if words[program] != "glmforge":
        assert (ROOT / words[program]).is_file(), place
        arguments.insert(0, "train")
    parameters = parsed(arguments)
    if "config" not in parameters:  # to a run that is there already
        return
    here = Path.cwd()
    os.chdir(directory)  # what a configuration names is relative to where its run is started
    try:
        config = load_config(parameters["config"], parameters["overrides"] or ())
        resolve_layout(config, _num_ranks(words[:program]) * (2 if "/two_nodes/" in words[program] else 1))
    finally:
        os.chdir(here)


def parsed(arguments: Sequence[str]) -> Mapping[str, Any]:
    """The parameters of a command line of glmforge. Raises a usage error of typer if it has none such."""
    command, rest = _command_of(arguments)
    parameters: Mapping[str, Any] = command.make_context("glmforge", rest).params
    return parameters


def unknown_commands(path: Path) -> list[str]:
    """What a guide's prose calls a command of glmforge and is none."""
    named = [shlex.split(text)[1:] for text in _INLINE.findall(_FENCE.sub("", path.read_text("utf-8")))]
    return [" ".join(words) for words in named if hasattr(_command_of(words)[0], "commands")]


def _command_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that words begin with, and the words after it; a group of commands if they name none of its own."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", ()):
        command = command.commands[rest.pop(0)]
    return command, rest


def _num_ranks(launcher: Sequence[str]) -> int:
    """Of srun, sbatch or torchrun, by their options `--name value`."""
    options = dict(zip(launcher[1::2], launcher[2::2], strict=False))
    nodes = options.get("--nodes") or options.get("--nnodes", "1")
    each = options.get("--ntasks-per-node") or options.get("--nproc-per-node", str(_RANKS_OF_NODE))
    return int(nodes) * int(each)


def _unfolded(body: str) -> list[str]:
    """Lines, those that end in a backslash joined with the next."""
    return [line for line in re.sub(r"\\\n\s*", "", body).splitlines() if line.strip()]


def _commands(body: str, line: int) -> Iterator[Command]:
    for found in re.finditer(r"^\$ (?P<text>(?:.*\\\n)*.*)\n?(?P<shown>(?:(?!\$ ).*\n)*)", body, re.MULTILINE):
        yield Command(line + body.count("\n", 0, found.start()), found["text"], found["shown"].strip("\n"))


def _run(command: Command, directory: Path, place: str, exported: Mapping[str, str]) -> None:
    path = os.pathsep.join([str(programs()), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"PATH": path, "COLUMNS": "120", "OMP_NUM_THREADS": "1"} | exported
    if "SLURM_CONF" not in exported:  # else ranks are on several hosts
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=directory,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    told = f"{place}: $ {command.text}\n{done.stdout[-3000:]}"
    assert done.returncode == command.status, f"status {done.returncode}: {told}"
    assert shows(done.stdout, command.shown), f"{told}\ninstead of\n{command.shown}"


BASE = "pre-training.md"
ADAPTING = (
    pytest.param("mid-training.md", marks=pytest.mark.guides),
    pytest.param("lora.md", marks=pytest.mark.guides),
    pytest.param("evaluation.md", marks=pytest.mark.guides),
    pytest.param("deployment.md", marks=pytest.mark.guides),
    pytest.param("monitoring.md", marks=pytest.mark.guides),
    pytest.param("deepspeed-and-megatron.md", marks=pytest.mark.guides),
    "fine-tuning.md",
)
ALONE = "post-training.md"
SAFETY = "safety.md"
SERVERS = "servers-and-agents.md"
ON_HOSTS = "infrastructure.md"
ON_SLURM = ("slurm.md", "recovery.md")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader is who has made a base model."""
    directory = tmp_path_factory.mktemp("base")
    carry_out(BASE, directory)
    return directory


@pytest.mark.parametrize("guide", ADAPTING)
def test_a_guide_does_what_it_says(guide: str, base: Path, tmp_path: Path) -> None:
    if guide == "lora.md":
        pytest.importorskip("peft")  # loads the adapter
    if guide == "evaluation.md":
        pytest.importorskip("lm_eval")
    if guide == "deployment.md":
        pytest.importorskip("openai")  # asks the server
    if guide == "monitoring.md":
        pytest.importorskip("prometheus_client")
        pytest.importorskip("grafana_foundation_sdk")
        for program in ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter", "curl"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not installed")
    shutil.copytree(base, tmp_path, symlinks=True, dirs_exist_ok=True)
    try:
        carry_out(guide, tmp_path)
    finally:
        if (tmp_path / "monitoring/state.json").exists():
            end_monitoring(tmp_path / "monitoring")
        if (pid := tmp_path / "server.pid").exists():
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.guides
def test_the_guide_to_post_training_does_what_it_says(tmp_path: Path) -> None:
    carry_out(ALONE, tmp_path)

    def reached(file: str, key: str, **named: str) -> list[float]:
        records = map(json.loads, (tmp_path / "runs" / file).read_text("utf-8").splitlines())
        return [one[key] for one in records if one.items() >= named.items()]

    for run, least in (("sums_reward", 0.95), ("sums_dpo", 0.95)):
        assert reached(f"{run}/evaluation.jsonl", "held_out_pair_accuracy", source="pairs/form")[-1] >= least
    assert reached("sums_reward/evaluation.jsonl", "held_out_pair_accuracy", source="pairs/sum")[-1] < 0.65
    first, *_, last = reached("sums_rl/benchmarks.jsonl", "benchmark_score", benchmark="sums sampled")
    assert 0.2 < first < last - 0.02


@pytest.mark.guides
def test_the_guide_to_safety_does_what_it_says(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    carry_out(SAFETY, tmp_path)
    result = read_result(tmp_path / "runs/polite_rl/safety")
    assert all(one.score is not None and one.score > 0.9 for one in result.scores)
    before = [one.score for one in read_result(tmp_path / "runs/polite_rl/safety/before").scores]
    assert min(before) < 0.7, "one of both rates was bad"


@pytest.mark.guides
def test_the_guide_to_servers_and_agents_does_what_it_says(tmp_path: Path) -> None:
    pytest.importorskip("openai")  # the agent's client
    carry_out(SERVERS, tmp_path)

    def recorded(run: str, file: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "runs" / run / file).read_text("utf-8").splitlines()]

    scores = [
        one["benchmark_score"]
        for one in recorded("products_agent", "benchmarks.jsonl")
        if one["benchmark"] == "products sampled"
    ]
    assert scores[-1] > scores[0] + 0.15
    assert [one["failed_answers"] for one in recorded("products_program", "metrics.jsonl")] == [0, 0]
    served, alone = (recorded(run, "metrics.jsonl") for run in ("sums_servers", "sums_alone"))
    for one, other in zip(served, alone, strict=True):  # the same answers, so the same bits
        assert [one[name] for name in ("reward", "policy", "grad_norm")] == [
            other[name] for name in ("reward", "policy", "grad_norm")
        ]
        assert one["transfer_seconds"] > 0
    assert 0 < max(one["age_max"] for one in recorded("sums_ahead", "metrics.jsonl")) <= 3


@pytest.mark.guides
def test_the_guide_to_infrastructure_does_what_it_says(short_path: Path) -> None:
    hosts_or_skip()
    try:
        carry_out(ON_HOSTS, short_path)
    finally:
        if (short_path / "lab").exists():
            DevCluster.end(short_path / "lab")


@pytest.mark.guides
@pytest.mark.parametrize("guide", ON_SLURM)
def test_a_guide_to_jobs_does_what_it_says(guide: str, base: Path, short_path: Path) -> None:
    hosts_or_skip()
    install_slurm_or_skip()
    shutil.copytree(base, short_path, symlinks=True, dirs_exist_ok=True)
    try:
        carry_out(guide, short_path)
    finally:
        if (short_path / "lab").exists():
            DevCluster.end(short_path / "lab")


def test_every_guide_is_followed() -> None:
    assert {path.name for path in GUIDES.glob("*.md")} == {
        BASE,
        ALONE,
        SAFETY,
        SERVERS,
        "mid-training.md",
        "fine-tuning.md",
        "lora.md",
        "evaluation.md",
        "deployment.md",
        "monitoring.md",
        "deepspeed-and-megatron.md",
        ON_HOSTS,
        *ON_SLURM,
    }


@pytest.mark.parametrize("path", sorted(GUIDES.glob("*.md")), ids=lambda path: path.stem)
def test_commands_named_in_passing_exist(path: Path) -> None:
    assert unknown_commands(path) == []


def test_what_is_read_from_a_guide(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text(
        "# A guide\n\nA file, `a.yaml`:\n\n```yaml\nx: 1\n```\n\n```console\n$ one \\\n    --two\nshown\n$ three\n"
        "...\nglmforge: refused\n```\n\n```sh\n# on 16 nodes\nsrun --nodes 16 \\\n    glmforge train a.yaml\n```\n"
        "`glmforge train`, `glmforge data chat F`, `glmforge trian`\n",
        "utf-8",
    )
    steps = [
        File(5, "a.yaml", "x: 1\n"),
        Command(10, "one \\\n    --two", "shown"),
        Command(13, "three", "...\nglmforge: refused"),
        Launch(19, "srun --nodes 16 glmforge train a.yaml"),
    ]
    assert read_guide(guide) == steps
    assert [step.status for step in steps if isinstance(step, Command)] == [0, 1]
    assert unknown_commands(guide) == ["trian"]
    guide.write_text("```python\nprint()\n```\n", "utf-8")
    with pytest.raises(ValueError, match=r"guide\.md:1: a block"):
        read_guide(guide)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("...\nglmforge: refused", "status 0"),
        ("another text", "instead of"),
        ("", ""),
        ("a ... text", ""),
    ],
)
def test_a_command_is_held_to_what_is_shown(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides = tmp_path / "guides"
    guides.mkdir()
    (guides / "one.md").write_text(f"```console\n$ echo a long text\n{text}\n```\n", "utf-8")
    monkeypatch.setattr(sys.modules[__name__], "GUIDES", guides)
    if problem:
        with pytest.raises(AssertionError, match=problem):
            carry_out("one.md", tmp_path)
    else:
        carry_out("one.md", tmp_path)


def test_a_launch_is_held_to_the_program(tmp_path: Path) -> None:
    words = ["--nodes", "16", "--ntasks-per-node", "8", "glmforge", "train"]
    shipped = Path(__file__).parents[2] / "configs" / "midtrain_code.yaml"
    check_launch(["srun", *words, str(shipped)], tmp_path, "here")
    with pytest.raises(Exception, match="no_such_key"):
        check_launch(["srun", *words, str(shipped), "optim.no_such_key=1"], tmp_path, "here")
    with pytest.raises(Exception, match="does not divide the 24 processes"):
        check_launch(["srun", "--nodes", "3", *words[2:], str(shipped)], tmp_path, "here")
    with pytest.raises(Exception, match="No such option: --no-such-option"):
        parsed(["train", "a.yaml", "--no-such-option"])
