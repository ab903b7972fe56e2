"""What a user gets wrong with conversations, starting weights and Fisher information.

One line, and nothing half-written.
"""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.distributed.checkpoint import FileSystemReader

from glmforge.checkpoint.format.meta import read_meta
from glmforge.checkpoint.load import load_checkpoint
from glmforge.checkpoint.save import save_tensors
from glmforge.config import dump_config, load_config
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.recipes.fisher import write_fisher
from glmforge.recipes.train import train
from helpers.bad_input import assert_one_line
from helpers.tiny_data import TinyData

SEQ_LEN = 64


def record(number: int, **fields: Any) -> dict[str, Any]:
    answer = {"role": "assistant", "content": f"the number {number}."}
    return {"messages": [{"role": "user", "content": f"what is {number}?"}, answer | fields]}


def lines(*records: object) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in records).encode()


GOOD = lines(*map(record, range(12)))
LONG = record(1, content="a number " * 100)


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose weights the others start from."""
    directory = tmp_path_factory.mktemp("base") / "run"
    phases = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]
    train(tiny_data.run_config(directory, phases=phases, checkpoint={"every_steps": 1}))
    return directory


@pytest.fixture
def sft(tiny_data: TinyData, base: Path, tmp_path: Path) -> Callable[..., Path]:
    """A file of a run in stage sft on good conversations, with other sections."""

    def make(**sections: Any) -> Path:
        chat = tmp_path / "chat.jsonl"
        if not chat.exists():
            chat.write_bytes(GOOD)
        config = yaml.safe_load(dump_config(tiny_data.run_config(tmp_path / "run")))
        data = {"tokenizer": str(tiny_data.tokenizer), "sources": [{"name": "chat", "path": str(chat)}]}
        given = {
            **{key: config[key] for key in ("name", "output_dir", "model", "precision", "observe")},
            "optim": {"lr": 3e-3, "warmup_steps": 0},
            "stage": "sft",
            "init_from": str(base),
            "data": data | {"encoded_dir": str(tmp_path / "encoded")},
            "phases": [{"name": "main", "epochs": 1, "seq_len": SEQ_LEN, "batch_size": 2}],
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(given | sections))
        return path

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a small file system: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def files_below(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_a_run_of_epochs_trains_and_goes_on_for_more(glmforge, sft, tmp_path: Path) -> None:
    path = sft()
    assert glmforge("train", path)[0] == 0
    assert (
        glmforge("train", path, "phases.0.epochs=3", "phases.0.batch_ramp={start: 1, increment: 1, tokens: 64}")[0] == 0
    )
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == len(set(steps))
    assert steps[-1] > steps[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("chat.jsonl", b"", "no conversation to write"),
        ("chat.jsonl", GOOD + b'{"messages": [', "chat.jsonl:13:1: not valid JSON"),
        ("chat.jsonl", GOOD + lines(LONG), "chat.jsonl:13: 4"),
        ("chat.jsonl", lines(record(1, weight=0)), "no trainable tokens"),
        ("chat.jsonl", lines(record(1, loss_weight=1e38)), "loss_weight 1e+38 must be 0, or from 0.0001 to 10000"),
        ("chat.jsonl", lines(record(1, loss_weight=1e-44)), "loss_weight 1e-44 must be 0, or from 0.0001 to 10000"),
        ("chat.jsonl.gz", gzip.compress(GOOD * 50, mtime=0)[:-40], "ends in the middle of a gzip member"),
        ("chat.parquet", b"PAR1", "not readable as Parquet"),
    ],
)
def test_files_that_cannot_be_trained_on(glmforge, sft, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert_one_line(glmforge("train", sft(), f"data.sources.0.path={path}"), path, said)
    assert files_below(tmp_path / "encoded") == [".lock"]
    assert "checkpoints" not in [child.name for child in (tmp_path / "run").iterdir()]


def test_a_directory_is_no_source(glmforge, sft, tmp_path: Path) -> None:
    outcome = glmforge("train", sft(), f"data.sources.0.path={tmp_path}")
    assert_one_line(outcome, "data.sources.0.path", f"{tmp_path} is a directory", "glmforge data chat")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["stage=pretrain", "regularization.neftune_alpha=5"], "regularization.neftune_alpha"),
        (["phases.0.fim_rate=0.5"], "phases.0.fim_rate"),
        (["phases.0.steps=3"], "epochs"),
        (["phases.0.epochs=1e9"], "phases.0.epochs"),
        (["model.num_hidden_layers=2"], "num_hidden_layers"),
    ],
)
def test_settings_that_do_not_fit_the_stage(glmforge, sft, changes: list[str], named: str) -> None:
    assert_one_line(glmforge("train", sft(), *changes), named)


def test_what_may_not_change_when_a_run_goes_on(glmforge, sft, tmp_path: Path) -> None:
    path = sft()
    assert glmforge("train", path)[0] == 0
    assert_one_line(glmforge("train", path, "stage=midtrain", "sft=null", "phases.0.epochs=2"), "stage was sft")
    assert_one_line(glmforge("train", path, "--from", 1000), "step 1,000", "available: step-")
    (tmp_path / "chat.jsonl").write_bytes(GOOD + lines(record(99)))
    assert_one_line(glmforge("train", path, "phases.0.epochs=2"), "source 'chat'", "rename the new one in data.sources")


def test_what_is_trained_on_twice_or_held_out_as_well_is_told(glmforge, sft, tmp_path: Path) -> None:
    chat = {"name": "chat", "path": str(tmp_path / "chat.jsonl")}
    given = yaml.safe_load(sft().read_text())
    data = given["data"] | {"sources": [chat, chat | {"name": "again"}], "held_out": [chat | {"name": "mine"}]}
    status, error = glmforge("train", sft(data=data))
    assert status == 0, error
    assert "'chat' and 'again' are the same text" in " ".join(error.split())
    assert "'mine' is also trained on, as source 'chat'" in " ".join(error.split())


@pytest.fixture
def weighted_shard(tiny_data: TinyData, tmp_path: Path) -> Callable[[np.ndarray], Path]:
    """A shard of twelve documents of SEQ_LEN tokens with these weights, [12]."""
    tokenizer = Tokenizer.load(tiny_data.tokenizer)

    def make(weights: np.ndarray) -> Path:
        with ShardWriter(tmp_path / "weighted", tokenizer.vocab_size, overwrite=True, weighted=True) as writer:
            ids = np.random.default_rng(0).integers(0, 200, 12 * SEQ_LEN)
            writer.add(ids, np.full(12, SEQ_LEN), weights.astype(np.float32).repeat(SEQ_LEN))
            writer.finish(tokenizer.fingerprint, "test", 100)
        return tmp_path / "weighted"

    return make


def test_nothing_to_learn_is_said(glmforge, sft, weighted_shard, tmp_path: Path) -> None:
    """Of a whole shard it is refused, of a batch told; its loss is 0, not 0 / 0."""
    path = sft()
    assert_one_line(
        glmforge("train", path, f"data.sources.0.path={weighted_shard(np.zeros(12))}"),
        "weighted.loss",
        "no trainable tokens",
    )
    status, error = glmforge("train", path, f"data.sources.0.path={weighted_shard(np.eye(1, 12)[0])}")
    assert status == 0, error
    assert "the batch has no trainable tokens" in " ".join(error.split())
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 6
    assert sum(loss == 0 for loss in losses) == 5
    assert max(losses) > 1


def test_held_out_rows_without_text_to_predict(glmforge, sft, weighted_shard) -> None:
    held_out = [{"name": "empty", "path": str(weighted_shard(np.eye(1, 12, 6)[0]))}]
    given = yaml.safe_load(sft().read_text())
    observe = given["observe"] | {"evaluate_every": 1, "evaluate_tokens": SEQ_LEN}
    assert_one_line(glmforge("train", sft(data=given["data"] | {"held_out": held_out}, observe=observe)), "'empty'")


def test_encoded_conversations_that_are_damaged_or_incomplete(glmforge, sft, tmp_path: Path) -> None:
    path = sft()
    assert glmforge("train", path)[0] == 0
    (loss,) = (tmp_path / "encoded").glob("*.loss")
    loss.write_bytes(loss.read_bytes()[:-3])
    assert_one_line(glmforge("train", path), loss, f"remove {loss.stem}.* to encode it again")
    loss.unlink()
    assert glmforge("train", path, "phases.0.epochs=2")[0] == 0
    TokenShard(loss.with_suffix("")).verify()


def test_full_disks(glmforge, sft, tiny_data: TinyData, small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_bytes(GOOD * 500)
    path, tokenizer = sft(), tiny_data.tokenizer
    needles = ("data", "needles", "--tokenizer", tokenizer, "--length", 4096, "--num-examples", 20)
    for command in (
        ("train", path, f"data.encoded_dir={small_disk}"),
        ("data", "chat", tmp_path / "chat.jsonl", "--tokenizer", tokenizer, "--out", small_disk / "chat"),
        (
            "fisher",
            path,
            tiny_data.train,
            small_disk / "fisher",
            "--rows",
            1,
            "phases.0.epochs=null",
            "phases.0.steps=1",
        ),
        (*needles, "--out", small_disk / "needles"),
        (*needles, "--out", small_disk / "needles.jsonl", "--format", "questions"),
    ):
        assert_one_line(glmforge(*command), small_disk, "o space left on device")
        assert set(files_below(small_disk)) <= {".lock"}


def spoil(source: Path, out: Path, name: str, change: Callable[[torch.Tensor], object]) -> Path:
    """A whole copy of a checkpoint, or of Fisher information, in which one tensor was changed."""
    shapes = FileSystemReader(source).read_metadata().state_dict_metadata
    wanted = {name: each for name, each in shapes.items() if name.startswith(("model.", "fisher."))}
    tensors = {name: torch.empty(each.size, dtype=each.properties.dtype) for name, each in wanted.items()}
    load_checkpoint(source, tensors, only=set(tensors))
    change(tensors[name])
    save_tensors(out, tensors, read_meta(source))
    return out


def test_values_that_are_not_finite(glmforge, sft, tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    """Whole files of wrong numbers: found when they are read, not in the first step."""
    path, name = sft(), "model.layers.1.self_attn.q_proj.weight"
    newest = base / "checkpoints" / "step-00000002"
    nan = spoil(newest, tmp_path / "nan", f"model.{name}", lambda tensor: tensor[0].fill_(float("nan")))
    assert_one_line(glmforge("train", path, f"init_from={nan}"), nan, name, "not finite")
    write_fisher(load_config(str(path)), tiny_data.train, tmp_path / "fisher", num_rows=1)
    for change in (lambda tensor: tensor[0].fill_(float("inf")), torch.Tensor.neg_):
        wrong = spoil(tmp_path / "fisher", tmp_path / "wrong", f"fisher.{name}", change)
        outcome = glmforge("train", path, f"regularization.ewc.fisher={wrong}")
        assert_one_line(outcome, "regularization.ewc.fisher", name, "not finite or below 0")


def test_fisher_information_that_overflows_is_not_written(
    glmforge, sft, tiny_data: TinyData, base: Path, tmp_path: Path
) -> None:
    newest = base / "checkpoints" / "step-00000002"
    large = spoil(newest, tmp_path / "large", "model.lm_head.weight", lambda tensor: tensor.mul_(1e30))
    command = ("fisher", sft(), tiny_data.train, tmp_path / "fisher", f"init_from={large}", "--rows", 1)
    assert_one_line(glmforge(*command), "Fisher information of", "not finite", "nothing was written")
    assert not (tmp_path / "fisher").exists()


STEERING = "\x1b[31m\x9b1m\x07 \u202e\u2066\u2028\ufeff\U000e0041 [bold] \u3000"


def test_no_text_steers_the_terminal(
    glmforge, tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of records, of file names and in errors, in a narrow terminal as in a pipe."""
    path = tmp_path / f"{STEERING.strip()}.jsonl"
    path.write_bytes(lines(record(1, content=STEERING), record(2, content="a good answer"), {STEERING: 1}))
    command = ("data", "chat", path, "--tokenizer", tiny_data.tokenizer)
    printed: list[str] = []
    monkeypatch.setattr("sys.exit", lambda code: (printed.extend(capfd.readouterr()), exit(code)))
    for columns in ("20", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        for more in (["--show", 5], ["--out", tmp_path / "shard"], ["--out", tmp_path / "\x1b[0m", "--max-wrong", 1]):
            glmforge(*command, *more)
    text = "".join(printed)
    assert "\\u202e" in text
    assert "[bold]" in text
    assert not [character for character in text if not (character.isprintable() or character in "\n\u3000")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("data", "chat", "CHAT", "--tokenizer", "TOKENIZER", "--show", 10**30),
        ("data", "needles", "--tokenizer", "TOKENIZER", "--length", 512, "--num-examples", 10**30, "--out", "OUT"),
    ],
)
def test_numbers_that_no_machine_can_hold(
    glmforge, sft, tiny_data: TinyData, tmp_path: Path, arguments: tuple[object, ...]
) -> None:
    sft()
    names = {"CHAT": tmp_path / "chat.jsonl", "TOKENIZER": tiny_data.tokenizer, "OUT": tmp_path / "out"}
    status, error = glmforge(*(names.get(str(argument), argument) for argument in arguments))
    assert status == 2
    assert "Traceback" not in error


@pytest.mark.parametrize("device", ["quantum", "meta:x"])
def test_a_device_that_is_not_there(glmforge, base: Path, device: str) -> None:
    outcome = glmforge("evaluate", "needles", base, "--length", 200, "--device", device)
    assert_one_line(outcome, f"device '{device}'")


def test_a_tokenizer_that_loses_digits(glmforge, tiny_data: TinyData, tmp_path: Path) -> None:
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    for file in tiny_data.tokenizer.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    content = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["seven"] = vocabulary.pop("7")
    content["model"]["merges"] = [pair for pair in content["model"]["merges"] if "7" not in "".join(pair)]
    (directory / "tokenizer.json").write_text(json.dumps(content))
    outcome = glmforge("data", "needles", "--tokenizer", directory, "--length", 512, "--out", tmp_path / "out")
    assert_one_line(outcome, "does not decode digits")


@pytest.mark.parametrize(("encoding", "output"), [("ascii", "/dev/null"), ("utf-8", "/dev/full")])
def test_an_output_that_cannot_take_it_all(
    sft, tiny_data: TinyData, tmp_path: Path, encoding: str, output: str
) -> None:
    """Characters that it does not have are told as escapes; that it is full is one line."""
    sft()
    (tmp_path / "chat.jsonl").write_bytes(lines(record(1, content="\u4f60\u597d")))
    command = [sys.executable, "-m", "glmforge", "data", "chat", tmp_path / "chat.jsonl", "--show", "1"]
    with Path(output).open("w") as stdout:
        ended = subprocess.run(
            [*command, "--tokenizer", tiny_data.tokenizer],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONIOENCODING": encoding},
        )
    if output == "/dev/null":
        assert (ended.returncode, ended.stderr) == (0, "")
    else:
        assert_one_line((ended.returncode, ended.stderr), "no space left on device")
