"""What a user gets wrong, through the real command line: one line that names the thing and the fix, status 1."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glmforge.config import RunConfig, dump_config
from glmforge.data.tokens.bpe import train_tokenizer
from helpers.bad_input import assert_one_line
from helpers.tiny_data import TinyData


@pytest.fixture
def run(tiny_data: TinyData, tmp_path: Path) -> RunConfig:
    phases = [{"name": "main", "steps": 4, "seq_len": 16, "batch_size": 2}]
    return tiny_data.run_config(tmp_path / "run", phases=phases, checkpoint={"every_steps": 2})


def write(config: RunConfig, path: Path) -> Path:
    path.write_text(dump_config(config))
    return path


def test_a_good_run_exits_with_zero(glmforge, run: RunConfig, tmp_path: Path) -> None:
    assert glmforge("train", write(run, tmp_path / "good.yaml"))[0] == 0


def test_wrong_key(glmforge, run: RunConfig, tmp_path: Path) -> None:
    path = write(run, tmp_path / "run.yaml")
    path.write_text(path.read_text().replace("weight_decay:", "weight_decai:"))
    assert_one_line(glmforge("train", path), path, "optim.weight_decai", "weight_decay")


@pytest.mark.parametrize("arguments", [["train"], ["fisher", "shard", "out"], ["plan"]], ids=lambda words: words[0])
def test_a_wrong_configuration_is_refused_before_torch_is_imported(arguments: list[str]) -> None:
    command, *others = arguments
    code = (
        "import sys\n"
        "from glmforge.cli.app import main\n"
        f"sys.argv = {['glmforge', command, 'demo', *others, 'optim.no_such_key=1']}\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    print(ended.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 False\n", done.stderr


def test_wrong_override(glmforge, run: RunConfig, tmp_path: Path) -> None:
    path = write(run, tmp_path / "run.yaml")
    assert_one_line(glmforge("train", path, "optim.lrr=1"), "optim.lrr", "optim.lr")


def test_missing_configuration(glmforge, tmp_path: Path) -> None:
    assert_one_line(glmforge("train", tmp_path / "absent.yaml"), "absent.yaml", "no such file")


def test_a_configuration_with_the_other_suffix_is_suggested(glmforge, run: RunConfig, tmp_path: Path) -> None:
    write(run, tmp_path / "mine.yml")
    assert_one_line(glmforge("train", tmp_path / "mine.yaml"), "mine.yaml", "did you mean", "mine.yml?")


def test_relative_paths_from_another_directory(glmforge, run: RunConfig, tmp_path: Path) -> None:
    path = write(run, tmp_path / "run.yaml")
    for key in ("data.tokenizer", "data.sources.0.path"):
        assert_one_line(glmforge("train", path, f"{key}=data/mine"), key, "data/mine", Path.cwd(), "relative")


@pytest.mark.parametrize("source", ["nothere", "tiny"])
def test_chat_with_what_is_no_model(glmforge, source: str) -> None:
    """A name that is nothing and a preset's get the same advice."""
    assert_one_line(glmforge("chat", source), source, "pass a run, a checkpoint or an export")


def test_an_export_that_is_there_already_says_how_to_replace_it(glmforge, run: RunConfig, tmp_path: Path) -> None:
    assert glmforge("train", write(run, tmp_path / "run.yaml"))[0] == 0
    assert glmforge("export", run.output_dir, tmp_path / "out")[0] == 0
    assert_one_line(glmforge("export", run.output_dir, tmp_path / "out"), tmp_path / "out", "--force")


def test_truncated_shard(glmforge, run: RunConfig, tmp_path: Path) -> None:
    source = run.data.sources[0].path
    for suffix in (".bin", ".idx", ".json"):
        shutil.copy(f"{source}{suffix}", tmp_path / f"short{suffix}")
    with (tmp_path / "short.bin").open("r+b") as file:
        file.truncate(1000)
    path = write(run, tmp_path / "run.yaml")
    outcome = glmforge("train", path, f"data.sources.0.path={tmp_path / 'short'}")
    assert_one_line(outcome, tmp_path / "short.bin", "bytes shorter", "glmforge data tokenize")


def test_tokenizer_with_another_vocabulary(glmforge, run: RunConfig, tmp_path: Path) -> None:
    train_tokenizer(["some quite different text " * 50], 300, tmp_path / "other")
    path = write(run, tmp_path / "run.yaml")
    outcome = glmforge("train", path, f"data.tokenizer={tmp_path / 'other'}")
    assert_one_line(outcome, run.data.sources[0].path, "another tokenizer")


def test_model_with_too_small_a_vocabulary(glmforge, run: RunConfig, tmp_path: Path) -> None:
    path = write(run, tmp_path / "run.yaml")
    changes = ("model.vocab_size=256", "model.eos_token_id=[0]", "model.pad_token_id=0")
    assert_one_line(glmforge("train", path, *changes), "model.vocab_size", "256", "512")


def test_corrupted_checkpoint_gives_way_to_the_older_one(glmforge, run: RunConfig, tmp_path: Path) -> None:
    path = write(run, tmp_path / "run.yaml")
    assert glmforge("train", path)[0] == 0
    shard = next((run.output_dir / "checkpoints" / "step-00000004").glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)

    assert_one_line(glmforge("export", run.output_dir / "checkpoints" / "step-00000004", tmp_path / "out"), shard.name)
    assert not (tmp_path / "out").exists()
    status, error = glmforge("train", path)
    assert status == 0, error
    assert shard.name in error  # named in a warning
    events = (run.output_dir / "events.jsonl").read_text().splitlines()
    (resumed,) = (event for event in events if '"resumed"' in event)
    assert '"step": 2' in resumed


def test_disk_full_while_saving(glmforge, run: RunConfig, tmp_path: Path) -> None:
    """A small file system that is filled up after the first checkpoint; the first one stays loadable."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a small file system: {mounted.stderr.strip()}")
    try:
        output_dir = disk / "run"
        path = write(run, tmp_path / "run.yaml")
        outcome = glmforge("train", path, f"output_dir={output_dir}", "checkpoint.every_steps=1")
        # What hits the end of the disk first, a checkpoint's file or the line of metrics beside it, is not determined.
        assert_one_line(outcome, "o space left on device", "free space", disk)
        whole = sorted(child.name for child in (output_dir / "checkpoints").glob("step-*"))
        assert whole
        assert glmforge("export", output_dir, tmp_path / "out")[0] == 0
    finally:
        subprocess.run(["umount", disk], check=True)


def test_empty_corpus(glmforge, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    outcome = glmforge("data", "tokenizer", tmp_path / "empty", "--vocab-size", 512, "--out", tmp_path / "tokenizer")
    assert_one_line(outcome, tmp_path / "empty")
    assert not (tmp_path / "tokenizer").exists()


def test_invalid_utf8(glmforge, tiny_data: TinyData, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good text, then \xff\xfe nonsense")
    arguments = ("data", "tokenize", tmp_path / "bad.txt", "--tokenizer", tiny_data.tokenizer, "--out", tmp_path / "s")
    assert_one_line(glmforge(*arguments), tmp_path / "bad.txt", "16")
    assert not list(tmp_path.glob("s*.bin"))


@pytest.mark.parametrize("command", ["chat", "export", "report", "checkpoint"])
def test_missing_directories(glmforge, tmp_path: Path, command: str) -> None:
    absent = tmp_path / "absent"
    arguments = {
        "chat": ("chat", absent, "-p", "hello"),
        "export": ("export", absent, tmp_path / "out"),
        "report": ("report", absent),
        "checkpoint": ("checkpoint", "show", absent),
    }[command]
    assert_one_line(glmforge(*arguments), absent)


def test_a_diverged_run_stops_with_a_reason(glmforge, run: RunConfig, tmp_path: Path) -> None:
    path = write(run, tmp_path / "run.yaml")
    outcome = glmforge("train", path, "optim.lr=1e30", "optim.warmup_steps=0", "optim.grad_clip=null")
    assert_one_line(outcome, "not finite", "optim.lr")
