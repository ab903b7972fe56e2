"""The whole life of a small model on this machine: what `glmforge demo` does, one stage after the other.

Every stage is what a real run does, through the same functions: nothing here knows how to train, save or export.
The training itself is a `glmforge train` process of its own, so that it can be killed with SIGKILL and started again.
"""

import lzma
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.panel import Panel

from glmforge.checkpoint import latest_checkpoint, read_meta
from glmforge.cluster.cores import busy_cores, usable_cores
from glmforge.cluster.lease import LOCK, Lease
from glmforge.config import RunConfig, dump_config, load_config
from glmforge.data.chat.shard import tokenize_conversations
from glmforge.data.documents.document import Document, split_held_out
from glmforge.data.documents.read import read_documents
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.shards import ShardInfo, TokenShard
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.chat import ChatModel, Conversation
from glmforge.deploy.export import compare_with_transformers, export_run
from glmforge.errors import GlmforgeError
from glmforge.observe.metrics import Record
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory, record_event, write_text
from glmforge.observe.units import counted, format_bytes, format_count, format_duration
from glmforge.plan.parameters import count_parameters
from glmforge.recipes.demo import pace
from glmforge.recipes.demo.docstrings import docstring_conversations
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.recipes.demo.training import Watched, train_and_kill, train_to_the_end
from glmforge.recipes.pretrain import measure_step_seconds
from glmforge.report.report import Sample, write_report

MARKER = ".glmforge-demo"
DEMO_LOCK = ".lock-demo"
"""Held by the whole demo; `LOCK` is held by the training, a process of its own."""
HELD_OUT_FRACTION = 0.02
PRECISIONS = ("fp32", "bf16")
MEASURED_STEPS = 3
SECONDS_PER_MEASUREMENT = 5.0
"""At which a measurement ends with the step it is at, and one step more."""
MAX_STOPS = 2
"""How often a run that is late is stopped and planned anew: each time a start is paid for."""
PROMPTS = ("def main():\n", "class Server:\n    def __init__(self", "import os\n\ndef read_file(path")
QUESTIONS = ("What does os.path.join do?", "What is json.dumps for?")


Documents = Iterable[Document]


@dataclass(frozen=True)
class DemoOptions:
    """What the user may choose."""

    output_dir: Path
    corpus: Path | None = None
    minutes: float = 5.0
    overrides: Sequence[str] = ()


class Setting(NamedTuple):
    """Arithmetic and threads, in the order of the speed they gave."""

    step_seconds: float
    precision: str
    num_threads: int


@dataclass(frozen=True)
class DemoResult:
    """What came out, for tests and for the last panel."""

    config: RunConfig
    killed_at_step: int
    resumed_from_step: int
    first_loss: float
    last_loss: float
    bits_per_byte: float
    logits_difference: float
    report: Path
    export: Path


class Demo:
    """The stages in order; `run` tells the story as it goes."""

    def __init__(self, options: DemoOptions, console: Console | None = None) -> None:
        self.options = options
        self.console = console or Console()
        self.directory = options.output_dir
        self.data = options.output_dir / "data"
        self.started = time.monotonic()
        self.num_stages = 0
        self._precision, self._num_threads = PRECISIONS[0], 1
        self._deadline = math.inf
        self._intervals: list[str] = []

    def run(self) -> DemoResult:
        """Run all stages. Raises `GlmforgeError` if the directory holds something else or a stage fails."""
        self._refuse_foreign_directory()
        with Lease(self.directory, "glmforge demo", name=DEMO_LOCK):
            self._clear_directory()
            return self._tell()

    def _tell(self) -> DemoResult:
        train_documents, held_out_documents = self.gather_corpus()
        tokenizer_dir = self.train_tokenizer(train_documents)
        self.write_shards(train_documents, held_out_documents, tokenizer_dir)
        config = self.plan_training()
        config, killed_at, resumed_from = self.train_kill_and_resume(config)
        bits_per_byte = self.evaluate(config, held_out_documents)
        export = self.export(config)
        difference = self.check_with_transformers(export)
        samples = self.speak(export)
        report = self.report(config, samples)
        losses = [record["loss"] for record in read_jsonl(RunDirectory(config.output_dir).metrics)]
        self._say_goodbye(config, export, report)
        return DemoResult(
            config, killed_at, resumed_from, losses[0], losses[-1], bits_per_byte, difference, report, export
        )

    def gather_corpus(self) -> tuple[Documents, Documents]:
        """Training and held-out documents."""
        self._heading("Gather a corpus")
        documents: Documents
        if self.options.corpus is None:
            documents = library = standard_library_documents()
            self._say(f"the sources of this Python's own standard library: [b]{library.root}[/b]")
        else:
            documents = read_documents(self.options.corpus)
            self._say(f"[b]{self.options.corpus}[/b]")
        train, held_out = split_held_out(documents, HELD_OUT_FRACTION)
        sizes = [_size(part) for part in (train, held_out)]
        for (count, size), what in zip(sizes, ("to train on", "held out, never trained on"), strict=True):
            self._say(f"{counted(count, 'document')}, {format_bytes(size)} {what}")
        if not all(count for count, _ in sizes):
            raise GlmforgeError(
                f"{self.options.corpus}: too few documents to hold some out; give a corpus of a hundred files or more"
            )
        return train, held_out

    def train_tokenizer(self, documents: Documents) -> Path:
        """A byte-level BPE tokenizer of the size that the model embeds."""
        self._heading("Train a tokenizer")
        out = self.data / "tokenizer"
        vocab_size = self._load_config().model.vocab_size
        train_tokenizer((document.text for document in documents), vocab_size, out)
        self._say(f"{vocab_size:,} tokens: byte-level BPE and GLM's 36 control tokens, with the chat template")
        self._say(f"[b]{out}[/b] loads with transformers' AutoTokenizer")
        return out

    def write_shards(self, train: Documents, held_out: Documents, tokenizer_dir: Path) -> None:
        """Token shards of the text, of held-out text, and of dialogues made from docstrings."""
        self._heading("Turn text into token shards")
        workers = min(2, os.cpu_count() or 1)
        for name, documents in (("train", train), ("held_out", held_out)):
            info = tokenize_corpus(documents, tokenizer_dir, self.data / name, num_workers=workers, source=name)
            self._say_shard(name, info)
        conversations = docstring_conversations(_docstring_sources(self.options.corpus, train))
        info = tokenize_conversations(conversations, tokenizer_dir, self.data / "dialogue", source="docstrings")
        self._say_shard("dialogue", info)
        self._say(f"Megatron's .bin/.idx format, in [b]{self.data}[/b]; dialogues are docstrings asked for by name")

    def plan_training(self) -> RunConfig:
        """Measure steps on this machine and fill the time that is left with steps."""
        before = time.monotonic() - self.started
        self._heading("Plan the training")
        config = self._load_config()
        counts = f"{format_count(count_parameters(config.model).with_mtp.total)} parameters"
        self._say(f"GLM-4.6 in small: {counts}, {config.model.n_routed_experts} experts per layer, MTP, Muon")
        setting = self._fastest_setting()
        self._precision, self._num_threads = setting.precision, setting.num_threads
        total = self.options.minutes * 60
        seconds = pace.training_seconds(total, before, time.monotonic() - self.started)
        self._deadline = time.monotonic() + seconds
        num_steps = pace.steps_within(seconds, setting.step_seconds)
        self._intervals = pace.intervals(num_steps)
        config = self._write_config(pace.first_plan(num_steps))
        speed = format_count(config.num_tokens / config.num_steps / setting.step_seconds)
        expected = config.num_steps * setting.step_seconds / pace.SHARE_OF_STEPS
        self._say(f"[b]{config.precision.compute}, {self._num_threads} thread(s)[/b]: {speed} tokens/s")
        self._say(
            f"{config.num_steps} steps, {format_count(config.num_tokens)} tokens, about {format_duration(expected)}, "
            "in two phases: text, then text and dialogues"
        )
        if config.num_steps < pace.USEFUL_STEPS:
            enough = total - seconds + pace.USEFUL_STEPS * setting.step_seconds / pace.SHARE_OF_STEPS
            self._say(
                f"[yellow]too few to learn much: this machine is slow, or busy (load {busy_cores():.1f} on "
                f"{usable_cores():g} cores); --minutes {math.ceil(enough / 60)} would give {pace.USEFUL_STEPS}[/yellow]"
            )
        self._say(f"the configuration is [b]{self.directory / 'demo.yaml'}[/b]")
        return config

    def train_kill_and_resume(self, config: RunConfig) -> tuple[RunConfig, int, int]:
        """Train in a process of its own; kill it part-way; start it again, planned again from the pace it had.

        Returns the configuration that it ended with, and the steps it was killed at and resumed from.
        """
        self._heading("Pre-train, with an accident on the way")
        run = RunDirectory(config.output_dir)
        kill_at = max((config.checkpoint.every_steps or 1) + 1, int(config.num_steps * pace.KILL_AT_SHARE))
        watched = Watched(config, self.directory / "demo.yaml", self._num_threads)
        train_and_kill(watched, kill_at, (self._deadline - time.monotonic()) * pace.KILL_AT_SHARE)
        killed_at = watched.step
        record_event(run.root, "killed", step=killed_at, detail="SIGKILL by the demo")
        checkpoint = latest_checkpoint(run.checkpoints)
        if checkpoint is None:
            raise GlmforgeError(f"{run.checkpoints}: the killed run left no checkpoint; give it more --minutes")
        resumed_from = read_meta(checkpoint).step
        self._say(f"[red]killed with SIGKILL after step {killed_at}[/red]; the same command again takes up")
        self._say(f"[b]{checkpoint}[/b] and trains the steps after {resumed_from} again, exactly as before")
        config = self._plan_anew(watched, resumed_from)
        for may_stop in (not self._steps_are_given,) * MAX_STOPS + (False,):
            watched = Watched(config, self.directory / "demo.yaml", self._num_threads)
            if train_to_the_end(watched, self._deadline, may_stop=may_stop):
                break
            self._say(f"[yellow]slower than planned: told to stop after step {watched.step}[/yellow]")
            config = self._plan_anew(watched, watched.step)
        self._say_how_it_went(read_jsonl(run.metrics))
        return config, killed_at, resumed_from

    @property
    def _steps_are_given(self) -> bool:
        """Whether the user has said how many: then there is nothing to plan again."""
        return any(override.startswith("phases.") and ".steps=" in override for override in self.options.overrides)

    def _fastest_setting(self) -> "Setting":
        """The fastest arithmetic with all threads, then also with one: on busy cores that may be faster."""
        all_threads = torch.get_num_threads()
        found = [self._measure(precision, all_threads) for precision in PRECISIONS]
        best = min(found)
        if all_threads > 1:
            best = min(best, self._measure(best.precision, 1))
        torch.set_num_threads(all_threads)
        return best

    def _measure(self, precision: str, num_threads: int) -> "Setting":
        torch.set_num_threads(num_threads)
        config = self._load_config([f"precision.compute={precision}"])
        seconds = measure_step_seconds(config, MEASURED_STEPS, max_seconds=SECONDS_PER_MEASUREMENT)
        self._say(f"{precision} with {num_threads} thread(s): {seconds:.2f} s a step")
        return Setting(seconds, precision, num_threads)

    def _plan_anew(self, watched: Watched, done: int) -> RunConfig:
        """What is left of the time, at the pace the run had, in steps."""
        config = watched.config
        if watched.step_seconds is None or self._steps_are_given:
            return config
        left = self._deadline - time.monotonic()
        phases = pace.next_plan(done, left, watched.step_seconds, pace.Phases(*(p.num_steps for p in config.phases)))
        planned = self._write_config(phases)
        speed = format_count(config.num_tokens / config.num_steps / watched.step_seconds)
        self._say(
            f"at {speed} tokens/s there is time for {planned.num_steps} steps in all (planned: {config.num_steps}), "
            f"{format_duration((planned.num_steps - done) * watched.step_seconds)} more"
        )
        return planned

    def _write_config(self, phases: pace.Phases) -> RunConfig:
        precision = f"precision.compute={self._precision}"
        config = self._load_config([precision, *phases.overrides, *self._intervals])
        write_text(self.directory / "demo.yaml", dump_config(config))
        return config

    def _say_how_it_went(self, records: list[Record]) -> None:
        self._say(f"loss {records[0]['loss']:.2f} -> [b]{records[-1]['loss']:.2f}[/b] nats per token")
        speed = sorted(record["tokens_per_second"] for record in records)[len(records) // 2]
        violation = records[-1].get("max_violation_mean", math.nan)
        self._say(f"{format_count(speed)} tokens/s; at the end the busiest expert of a layer has {violation:.0%} more")
        self._say("than an even share of the tokens (mean of the layers)")

    def evaluate(self, config: RunConfig, held_out: Documents) -> float:
        """Held-out bits per byte beside what a general compressor needs for the same files."""
        self._heading("Evaluate on held-out files")
        evaluations = read_jsonl(RunDirectory(config.output_dir).evaluation)
        for record in evaluations:
            self._say(f"step {record['step']:>5}: {record['bits_per_byte']:.3f} bits per byte")
        text = b"".join(document.text.encode() for document in held_out)
        compressed = 8 * len(lzma.compress(text, preset=9)) / len(text)
        self._say(f"for comparison: xz -9 needs {compressed:.3f} bits per byte for the same files")
        return float(evaluations[-1]["bits_per_byte"])

    def export(self, config: RunConfig) -> Path:
        """The trained model in Hugging Face format."""
        self._heading("Export")
        exported = export_run(config.output_dir, self.directory / "export", dtype="fp32", with_mtp=True)
        size = sum(file.stat().st_size for file in exported.directory.iterdir())
        self._say(f"[b]{exported.directory}[/b], {format_bytes(size)}: safetensors, config and tokenizer")
        return exported.directory

    def check_with_transformers(self, export: Path) -> float:
        """The export's logits in transformers against ours."""
        ids = TokenShard(self.data / "held_out").tokens(0, 128).astype("int64")
        parity = compare_with_transformers(export, torch.from_numpy(ids)[None])
        if not parity.agrees:
            raise GlmforgeError(
                f"{export}: transformers' logits differ by {parity.max_difference:.1e}: a defect, please report it"
            )
        self._say(f"transformers loads it; largest difference between its logits and ours {parity.max_difference:.1e}")
        return parity.max_difference

    def speak(self, export: Path) -> list[Sample]:
        """Completions and answers, for the screen and the report."""
        self._heading("Let it speak")
        chat = ChatModel.load(export)
        samples: list[Sample] = []
        for prompt in PROMPTS if self.options.corpus is None else _openings(self.data / "held_out", chat.tokenizer):
            completion = chat.continue_text(prompt, max_new_tokens=48, temperature=0.6, seed=0)
            samples.append({"prompt": prompt, "completion": completion})
        for question in QUESTIONS:
            answer = Conversation(chat).reply(question, max_new_tokens=48, temperature=0.6, seed=0)
            samples.append({"prompt": f"{question}\n", "completion": answer})
        for sample in samples:
            self.console.print(sample["prompt"], style="bold", end="", markup=False, highlight=False)
            self.console.print(sample["completion"], markup=False, highlight=False)
            self.console.print("─" * 20, style="dim")
        self._say("(a few minutes of training teach form, not knowledge)")
        return samples

    def report(self, config: RunConfig, samples: list[Sample]) -> Path:
        """The HTML page."""
        self._heading("Write the report")
        path = write_report(config.output_dir, extra={"samples": samples})
        self._say(f"[b]{path}[/b]: loss, learning rate, throughput, expert balance, configuration")
        return path

    def _refuse_foreign_directory(self) -> None:
        if self._contents() and not (self.directory / MARKER).exists():
            raise GlmforgeError(f"{self.directory}: exists and is not an earlier demo; choose another --out")

    def _clear_directory(self) -> None:
        """Replace an earlier demo, and nothing else: not one whose training still runs."""
        self._refuse_foreign_directory()
        with Lease(self.directory, "glmforge demo"):
            (self.directory / MARKER).write_text("made by 'glmforge demo', which may replace this directory\n")
            for path in self._contents():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            self.data.mkdir()

    def _contents(self) -> list[Path]:
        """What lies in the directory but what says whose it is."""
        own = {MARKER, DEMO_LOCK, LOCK}
        return [path for path in self.directory.iterdir() if path.name not in own] if self.directory.exists() else []

    def _load_config(self, overrides: Sequence[str] = ()) -> RunConfig:
        data = self.data
        paths = [
            f"output_dir={self.directory}",
            f"data.tokenizer={data / 'tokenizer'}",
            *(f"data.sources.{i}.path={data / name}" for i, name in enumerate(("train", "dialogue"))),
            f"data.held_out.0.path={data / 'held_out'}",
        ]
        return load_config("demo", [*paths, *overrides, *self.options.overrides])

    def _heading(self, title: str) -> None:
        self.num_stages += 1
        elapsed = format_duration(time.monotonic() - self.started)
        self.console.print()
        self.console.rule(f"[bold]{self.num_stages}. {title}[/bold]  [dim]{elapsed}[/dim]", align="left")

    def _say(self, line: str) -> None:
        self.console.print(f"  {line}", highlight=False)

    def _say_shard(self, name: str, info: ShardInfo) -> None:
        self._say(
            f"{name}: {counted(info.num_documents, 'document')}, {format_count(info.num_tokens)} tokens, "
            f"{info.bytes_per_token:.2f} bytes per token"
        )

    def _say_goodbye(self, config: RunConfig, export: Path, report: Path) -> None:
        command = _command()
        lines = [
            f"talk to it       {command} chat {export}",
            f"let it continue  {command} chat {export} --complete -p 'def main():'",
            f"read the report  {report}",
            f"look inside      {command} checkpoint show {config.output_dir}",
            f"train a variant  {command} train {self.directory / 'demo.yaml'} output_dir=runs/variant optim.lr=5e-3",
        ]
        elapsed = format_duration(time.monotonic() - self.started)
        self.console.print()
        self.console.print(Panel("\n".join(lines), title=f"Done in {elapsed}", title_align="left", expand=False))


def _command() -> str:
    """How this user can call glmforge: by name, or by path where the environment is not activated."""
    return "glmforge" if shutil.which("glmforge") else os.path.relpath(Path(sys.executable).with_name("glmforge"))


def _size(documents: Documents) -> tuple[int, int]:
    """Number of documents and of UTF-8 bytes."""
    sizes = [len(document.text.encode()) for document in documents]
    return len(sizes), sum(sizes)


def _docstring_sources(corpus: Path | None, train: Documents) -> Documents:
    """Where the docstrings come from: the training documents, which another corpus may not have."""
    return train if corpus is None else standard_library_documents()


def _openings(held_out: Path, tokenizer: Tokenizer) -> list[str]:
    """The first words of some held-out documents, to be continued."""
    shard = TokenShard(held_out)
    documents = [shard.document(i) for i in range(min(len(PROMPTS), shard.num_documents))]
    return [tokenizer.decode(ids[: min(12, len(ids) - 1)].tolist()) for ids in documents]
