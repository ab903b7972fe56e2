"""The demo's model learns real instructions: the answers of Alpaca, and the tool calls of Glaive.

    python benchmarks/sft.py                                  # a quarter of an hour on two quiet cores
    python benchmarks/sft.py --directory runs/sft-benchmark   # kept, and continued if it was interrupted

The demo's model is trained on the sources of Python's standard library, then fine-tuned on the instructions of Alpaca
(questions of one turn) and the conversations of Glaive (tools, several turns), as they come from their files. Every
tenth record of each file is held out. At each evaluation are recorded the loss and accuracy on what the assistant says
in held-out conversations, and what general text has lost; in the end the model answers all held-out prompts itself,
likeliest token after token and drawn at temperature 0.7: how many answers end by themselves and are in form, how many
call a tool, in form and one that is offered, and in how many of the records that call one. Results are in
`results/sft.json`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from record import ROOT, write_result

import glmforge
from glmforge.config.load import load_config
from glmforge.config.schema import RunConfig
from glmforge.data.chat.conversation import Conversation
from glmforge.data.chat.read import read_records
from glmforge.data.chat.records import conversation_of
from glmforge.data.documents.document import split_held_out
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.generate.engine import Engine, Sample
from glmforge.generate.params import SamplingParams
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.recipes.demo.pace import steps_of_phases
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.verify.reply import MalformedReply, Reply, parse_reply

CODE = ["src/glmforge/objectives", "src/glmforge/data/chat", "src/glmforge/evaluate", "src/glmforge/model"]
FILES = ("alpaca_en_demo.json", "glaive_toolcall_en_demo.json")
HELD_OUT_EVERY = 10
BASE_STEPS, STEPS = 800, 800
MAX_NEW_TOKENS = 512
SEQ_LEN = 1024


def make_data(directory: Path, chat: Path) -> None:
    """Tokenizer and shards of the standard library; the records of each file, in two parts."""
    if (directory / "held-out.idx").exists():
        return
    training, held_out = split_held_out(standard_library_documents(), 0.02)
    train_tokenizer((each.text for each in training), 8192, directory / "tokenizer", overwrite=True)
    for name in FILES:
        records = [dict(record.parse()) for record in read_records([chat / name])]
        for part, own in (("train", lambda i: i % HELD_OUT_EVERY), ("held-out", lambda i: not i % HELD_OUT_EVERY)):
            lines = [json.dumps(record) for i, record in enumerate(records) if own(i)]
            (directory / f"{Path(name).stem}-{part}.jsonl").write_text("\n".join(lines) + "\n")
    tokenize_corpus(training, directory / "tokenizer", directory / "train", overwrite=True)
    tokenize_corpus(held_out, directory / "tokenizer", directory / "held-out", overwrite=True)


def chat_files(directory: Path, part: str) -> list[dict[str, Any]]:
    """The sources of one part, for a configuration; what is too long is left out, and counted in the run's log."""
    names = [Path(name).stem for name in FILES]
    return [
        {"name": name.split("_")[0], "path": str(directory / f"{name}-{part}.jsonl"), "chat": {"overlong": "drop"}}
        for name in names
    ]


def train_base(directory: Path, steps: int) -> Path:
    """The demo's first run, of this length."""
    paths = [f"{key}={directory / name}" for key, name in (("output_dir", "base"), ("data.tokenizer", "tokenizer"))]
    shards = [f"data.sources.0.path={directory / 'train'}", f"data.held_out.0.path={directory / 'held-out'}"]
    without_mtp, with_mtp = steps_of_phases(steps)
    lengths = [f"phases.0.steps={without_mtp}", f"phases.1.steps={with_mtp}"]
    glmforge.train(load_config("demo", [*paths, *shards, *lengths, "observe.progress=false"]))
    return directory / "base"


def fine_tune(directory: Path, base: Path, steps: int) -> RunConfig:
    """A tenth of the tokens is general text."""
    given = load_config(str(base)).model_dump(mode="json")
    config = RunConfig.model_validate(
        {
            "name": "sft",
            "stage": "sft",
            "output_dir": str(directory / "sft"),
            "init_from": str(base),
            "model": given["model"],
            "data": {
                "tokenizer": str(directory / "tokenizer"),
                "sources": [*chat_files(directory, "train"), {"name": "text", "path": str(directory / "train")}],
                "held_out": [*chat_files(directory, "held-out"), {"name": "text", "path": str(directory / "held-out")}],
            },
            "phases": [
                {
                    "name": "sft",
                    "steps": steps,
                    "seq_len": SEQ_LEN,
                    "batch_size": 2,
                    "sources": {"alpaca": 0.5, "glaive": 0.4, "text": 0.1},
                }
            ],
            "optim": {"lr": 5e-3, "min_lr": 1e-4, "warmup_steps": 10},
            "precision": given["precision"],
            "observe": {"evaluate_every": max(1, steps // 4), "progress": False},
        }
    )
    glmforge.train(config)
    return config


def held_out_prompts(directory: Path) -> list[Conversation]:
    """The conversations of both files, up to the first answer that is asked for."""
    paths = [Path(source["path"]) for source in chat_files(directory, "held-out")]
    return [conversation_of(record.parse()) for record in read_records(paths)]


def answers(engine: Engine, conversations: Sequence[Conversation], temperature: float) -> dict[str, Any]:
    """What the model makes of the questions: shares of answers that end, are in form, and call what is offered."""
    assert engine.tokenizer is not None, "a run has its tokenizer"
    prompts = []
    for each in conversations:
        first = next(i for i, message in enumerate(each.messages) if message["role"] == "assistant")
        prompts.append(
            engine.tokenizer.apply_chat_template(
                each.messages[:first], each.tools, add_generation_prompt=True, thinking=False
            )
        )
    fits = [len(prompt) + MAX_NEW_TOKENS <= engine.runner.config.max_position_embeddings for prompt in prompts]
    kept = [each for each, fit in zip(conversations, fits, strict=True) if fit]
    params = SamplingParams(
        max_new_tokens=MAX_NEW_TOKENS, temperature=temperature, seed=1, stop_ids=tuple(engine.tokenizer.stop_ids)
    )
    written = engine.generate([prompt for prompt, fit in zip(prompts, fits, strict=True) if fit], params)
    replies = [_reply(engine, sample) for (sample,) in written]
    calling = [i for i, (sample,) in enumerate(written) if "<tool_call>" in engine.tokenizer.decode(sample.tokens)]
    asked_to_call = [i for i, each in enumerate(kept) if _first_answer(each).get("tool_calls")]
    offered = {i for i, reply in enumerate(replies) if reply is not None and _calls_offered(reply, kept[i])}
    return {
        "prompts": len(kept),
        "too_long": len(fits) - len(kept),
        "stopped": sum(sample.finished == "stop" for (sample,) in written),
        "in_form": sum(reply is not None for reply in replies),
        "calls": len(calling),
        "calls_of_an_offered_function": len(offered),
        "records_that_call": len(asked_to_call),
        "called_there": len(offered.intersection(asked_to_call)),
        "examples": [sample.text for (sample,) in written[:: max(1, len(written) // 6)]],
    }


def _first_answer(conversation: Conversation) -> dict[str, Any]:
    return next(message for message in conversation.messages if message["role"] == "assistant")


def _reply(engine: Engine, sample: Sample) -> Reply | None:
    """The answer taken apart; None if it does not end or is not in form."""
    assert engine.tokenizer is not None, "a run has its tokenizer"
    if sample.finished != "stop":
        return None
    try:
        return parse_reply(engine.tokenizer.decode(sample.tokens[:-1]))
    except MalformedReply:
        return None


def _calls_offered(reply: Reply, conversation: Conversation) -> bool:
    offered = {tool.get("function", tool).get("name") for tool in conversation.tools or ()}
    return bool(reply.tool_calls) and all(call.name in offered for call in reply.tool_calls)


def parse_options(doc: str, name: str, steps: int) -> argparse.Namespace:
    """Of a benchmark on these data, with what it says of itself, its name and number of steps."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data", help="has chat/")
    parser.add_argument("--directory", type=Path, help="for the runs; a temporary one if not given")
    parser.add_argument("--base-steps", type=int, default=BASE_STEPS)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--out", type=Path, help=f"of the results, if not benchmarks/results/{name}.json")
    return parser.parse_args()


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Path]:
    """The directory for the runs, with the data in it."""
    with tempfile.TemporaryDirectory() as temporary:
        directory: Path = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        make_data(directory, options.data / "chat")
        yield directory


def main() -> None:
    options = parse_options(__doc__, "sft", STEPS)
    started = time.monotonic()
    with prepared(options) as directory:
        config = fine_tune(directory, train_base(directory, options.base_steps), options.steps)
        engine, conversations = Engine.load(config.output_dir), held_out_prompts(directory)
        content = {
            "base_steps": options.base_steps,
            "steps": options.steps,
            "tokens_per_step": 2 * SEQ_LEN,
            "evaluations": read_jsonl(RunDirectory(config.output_dir).evaluation),
            "greedy": answers(engine, conversations, 0.0),
            "temperature 0.7": answers(engine, conversations, 0.7),
            "minutes": (time.monotonic() - started) / 60,
        }
    print(json.dumps(content, indent=1))
    print(f"{write_result('sft', content, code=CODE, out=options.out)}: written")


if __name__ == "__main__":
    main()
