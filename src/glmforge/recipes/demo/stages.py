"""The whole life of a small model on this machine: what `glmforge demo` does, one stage after the other.

Every stage is what a real run does, through the same functions: nothing here knows how to train, save or export.
The training itself is a `glmforge train` process of its own, so that it can be killed with SIGKILL and started again.
"""

import lzma
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from glmforge.config import RunConfig
from glmforge.data.documents.document import Document, split_held_out
from glmforge.data.documents.read import read_documents
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.shards import ShardInfo, TokenShard
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.chat import Conversation, tokenizer_of
from glmforge.deploy.export import compare_with_transformers, export_run
from glmforge.errors import GlmforgeError
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.observe.units import counted, format_bytes, format_count, format_duration
from glmforge.recipes.demo.calling import answer_by_calling
from glmforge.recipes.demo.conversations import write_conversations
from glmforge.recipes.demo.options import DemoOptions
from glmforge.recipes.demo.screen import Screen
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.recipes.demo.timed_training import TimedTraining
from glmforge.report.report import Sample, write_report
from glmforge.runtime.lease import LOCK, Lease

MARKER = ".glmforge-demo"
DEMO_LOCK = ".lock-demo"
"""Held by the whole demo; `LOCK` is held by the training, a process of its own."""
HELD_OUT_FRACTION = 0.02
PROMPTS = ("def main():\n", "class Server:\n    def __init__(self", "import os\n\ndef read_file(path")
QUESTIONS = ("What does os.path.join do?", "What is json.dumps for?")
CALLING_QUESTION = "Which arguments does shutil.copyfile take?"


Documents = Iterable[Document]


@dataclass(frozen=True)
class DemoResult:
    """What came out, for tests and for the last panel."""

    config: RunConfig
    killed_at_step: int
    resumed_from_step: int
    first_loss: float
    last_loss: float
    bits_per_byte: float
    fine_tuned: RunConfig
    logits_difference: float
    report: Path
    export: Path


class Demo:
    """The stages in order; each prints what it does and what came out."""

    def __init__(self, options: DemoOptions, console: Console | None = None) -> None:
        self.options = options
        self.directory, self.data = options.output_dir, options.data
        self._screen = Screen(console or Console())

    def run(self) -> DemoResult:
        """Run all stages. Raises `GlmforgeError` if the directory holds something else or a stage fails."""
        self._refuse_foreign_directory()
        with Lease(self.directory, "glmforge demo", name=DEMO_LOCK):
            self._clear_directory()
            return self._run_stages()

    def _run_stages(self) -> DemoResult:
        train_documents, held_out_documents = self.gather_corpus()
        tokenizer_dir = self.train_tokenizer(train_documents)
        self.write_shards(train_documents, held_out_documents, tokenizer_dir)
        training = TimedTraining(self.options, self._screen)
        config = training.plan()
        config, killed_at, resumed_from = training.run(config)
        bits_per_byte = self.evaluate(config, held_out_documents)
        fine_tuned = training.fine_tune()
        self.show_fine_tuning(fine_tuned)
        export = self.export(fine_tuned)
        difference = self.check_with_transformers(export)
        samples = self.generate_samples(export)
        report = self.report(config, fine_tuned, samples)
        losses = [record["loss"] for record in read_jsonl(RunDirectory(config.output_dir).metrics)]
        self._print_next_commands(fine_tuned, export, report)
        return DemoResult(
            config,
            killed_at,
            resumed_from,
            losses[0],
            losses[-1],
            bits_per_byte,
            fine_tuned,
            difference,
            report,
            export,
        )

    def gather_corpus(self) -> tuple[Documents, Documents]:
        """Training and held-out documents."""
        self._screen.heading("Gather a corpus")
        documents: Documents
        if self.options.corpus is None:
            documents = library = standard_library_documents()
            self._screen.say(f"the source of this Python's standard library: [b]{library.root}[/b]")
        else:
            documents = read_documents(self.options.corpus)
            self._screen.say(f"[b]{self.options.corpus}[/b]")
        train, held_out = split_held_out(documents, HELD_OUT_FRACTION)
        sizes = [_size(part) for part in (train, held_out)]
        for (count, size), what in zip(sizes, ("to train on", "held out, never trained on"), strict=True):
            self._screen.say(f"{counted(count, 'document')}, {format_bytes(size)} {what}")
        if not all(count for count, _ in sizes):
            raise GlmforgeError(
                f"{self.options.corpus}: too few documents for a held-out set; use a corpus of at least a hundred files"
            )
        return train, held_out

    def train_tokenizer(self, documents: Documents) -> Path:
        """A byte-level BPE tokenizer of the size that the model embeds."""
        self._screen.heading("Train a tokenizer")
        out = self.data / "tokenizer"
        vocab_size = self.options.load_config().model.vocab_size
        train_tokenizer((document.text for document in documents), vocab_size, out)
        self._screen.say(f"{vocab_size:,} tokens: byte-level BPE and GLM's 36 control tokens, with the chat template")
        self._screen.say(f"[b]{out}[/b] loads with transformers' AutoTokenizer")
        return out

    def write_shards(self, train: Documents, held_out: Documents, tokenizer_dir: Path) -> None:
        """Token shards of the text and of held-out text; conversations made from docstrings."""
        self._screen.heading("Turn text into token shards, docstrings into conversations")
        workers = min(2, os.cpu_count() or 1)
        for name, documents in (("train", train), ("held_out", held_out)):
            info = tokenize_corpus(documents, tokenizer_dir, self.data / name, num_workers=workers, source=name)
            self._say_shard(name, info)
        self._screen.say(f"Megatron's .bin/.idx format, in [b]{self.data}[/b]")
        parts = split_held_out(standard_library_documents(), HELD_OUT_FRACTION)
        for name, documents in zip(("chat", "chat_held_out"), parts, strict=True):
            count = write_conversations(documents, self.data / f"{name}.jsonl")
            self._screen.say(f"{name}.jsonl: {counted(count, 'conversation')}, a third of them with function calls")

    def evaluate(self, config: RunConfig, held_out: Documents) -> float:
        """Held-out bits per byte beside what a general compressor needs for the same files."""
        self._screen.heading("Evaluate on held-out files")
        evaluations = read_jsonl(RunDirectory(config.output_dir).evaluation)
        for record in evaluations:
            self._screen.say(f"step {record['step']:>5}: {record['bits_per_byte']:.3f} bits per byte")
        text = b"".join(document.text.encode() for document in held_out)
        compressed = 8 * len(lzma.compress(text, preset=9)) / len(text)
        self._screen.say(f"for comparison: xz -9 needs {compressed:.3f} bits per byte for the same files")
        return float(evaluations[-1]["bits_per_byte"])

    def show_fine_tuning(self, config: RunConfig) -> None:
        """What was learned about held-out conversations, and what was forgotten of the text."""
        for record in read_jsonl(RunDirectory(config.output_dir).evaluation):
            if "num_answers" in record:
                line = (
                    f"{record['num_answers']} held-out questions: {record['stopped']:.0%} of the answers stop, "
                    f"{record['well_formed']:.0%} parse"
                )
            elif record["source"] == "chat":
                line = f"held-out answers: {record['nll']:.2f} nats per token, {record['accuracy']:.0%} predicted"
            else:
                change = record["bits_per_byte_change"]
                line = f"held-out text: {record['bits_per_byte']:.3f} bits per byte, {change:+.3f} since pre-training"
            self._screen.say(f"step {record['step']:>5}: {line}")

    def export(self, config: RunConfig) -> Path:
        """The trained model in Hugging Face format."""
        self._screen.heading("Export")
        exported = export_run(config.output_dir, self.directory / "export", dtype="fp32", with_mtp=True)
        size = sum(file.stat().st_size for file in exported.directory.iterdir())
        self._screen.say(f"[b]{exported.directory}[/b], {format_bytes(size)}: safetensors, config and tokenizer")
        return exported.directory

    def check_with_transformers(self, export: Path) -> float:
        """The export's logits in transformers against ours."""
        ids = TokenShard(self.data / "held_out").tokens(0, 128).astype("int64")
        parity = compare_with_transformers(export, torch.from_numpy(ids)[None])
        if not parity.agrees:
            raise GlmforgeError(
                f"{export}: transformers' logits differ by {parity.max_difference:.1e}; this is a bug, please report it"
            )
        self._screen.say(
            f"loaded with transformers; its logits differ from ours by at most {parity.max_difference:.1e}"
        )
        return parity.max_difference

    def generate_samples(self, export: Path) -> list[Sample]:
        """Completions and answers, for the screen and the report."""
        self._screen.heading("Generate text")
        engine, params = Engine.load(export), SamplingParams(max_new_tokens=48, temperature=0.6, seed=0)
        prompts = PROMPTS if self.options.corpus is None else _openings(self.data / "held_out", tokenizer_of(engine))
        samples: list[Sample] = [
            {"prompt": prompt, "completion": answer.text}
            for prompt, (answer,) in zip(prompts, engine.generate(prompts, params), strict=True)
        ]
        for question in QUESTIONS:
            answer = Conversation(engine).reply(question, params)
            samples.append({"prompt": f"{question}\n", "completion": answer})
        samples.append({"prompt": f"{CALLING_QUESTION}\n", "completion": answer_by_calling(engine, CALLING_QUESTION)})
        for sample in samples:
            self._screen.console.print(sample["prompt"], style="bold", end="", markup=False, highlight=False)
            self._screen.console.print(sample["completion"], markup=False, highlight=False)
            self._screen.console.print("─" * 20, style="dim")
        self._screen.say("(a few minutes of training teach format, not knowledge)")
        return samples

    def report(self, config: RunConfig, fine_tuned: RunConfig, samples: list[Sample]) -> Path:
        """The HTML pages of both runs; that of the second one."""
        self._screen.heading("Write the reports")
        path = write_report(config.output_dir)
        self._screen.say(f"[b]{path}[/b]: loss, learning rate, throughput, expert balance, configuration")
        path = write_report(fine_tuned.output_dir, extra={"samples": samples})
        self._screen.say(f"[b]{path}[/b]: the same for the fine-tuning, and answers to held-out questions")
        return path

    def _refuse_foreign_directory(self) -> None:
        if self._contents() and not (self.directory / MARKER).exists():
            raise GlmforgeError(f"{self.directory}: exists and was not made by a demo; choose another --out")

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

    def _say_shard(self, name: str, info: ShardInfo) -> None:
        self._screen.say(
            f"{name}: {counted(info.num_documents, 'document')}, {format_count(info.num_tokens)} tokens, "
            f"{info.bytes_per_token:.2f} bytes per token"
        )

    def _print_next_commands(self, config: RunConfig, export: Path, report: Path) -> None:
        command = _command()
        lines = [
            f"talk to it       {command} serve {export}    and open http://127.0.0.1:8000 in a browser",
            f"  in a terminal  {command} chat {export}",
            f"let it continue  {command} chat {export} --complete -p 'def main():'",
            f"read the report  {report}",
            f"look inside      {command} checkpoint show {config.output_dir}",
            f"train a variant  {command} train {self.options.sft_config_file} output_dir=runs/variant optim.lr=2e-3",
        ]
        elapsed = format_duration(self._screen.elapsed)
        self._screen.console.print()
        self._screen.console.rule(f"[bold]Done in {elapsed}[/bold]", align="left")
        for line in lines:  # whole, regardless of the terminal's width: they are to be copied
            self._screen.console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _command() -> str:
    """How this user can call glmforge: by name, or by path where the environment is not activated."""
    return "glmforge" if shutil.which("glmforge") else os.path.relpath(Path(sys.executable).with_name("glmforge"))


def _size(documents: Documents) -> tuple[int, int]:
    """Number of documents and of UTF-8 bytes."""
    sizes = [len(document.text.encode()) for document in documents]
    return len(sizes), sum(sizes)


def _openings(held_out: Path, tokenizer: Tokenizer) -> list[str]:
    """The first words of some held-out documents, to be continued."""
    shard = TokenShard(held_out)
    documents = [shard.document(i) for i in range(min(len(PROMPTS), shard.num_documents))]
    return [tokenizer.decode(ids[: min(12, len(ids) - 1)].tolist()) for ids in documents]
