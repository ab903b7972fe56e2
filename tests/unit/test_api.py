"""The stable Python interface, and what importing it costs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import glmforge
from helpers.tiny_data import TinyData

HEAVY = {"torch", "transformers", "matplotlib", "pyarrow", "numpy", "tokenizers"}
CONFIGS = Path(__file__).parents[2] / "configs"


def loaded_modules(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "statement", ["import glmforge.config", "import glmforge; glmforge.load_config", "import glmforge.cli"]
)
def test_nothing_heavy_is_imported_early(statement: str) -> None:
    assert not loaded_modules(statement) & HEAVY


@pytest.mark.parametrize(
    "command",
    [["--help"], ["train", "--help"], ["data", "tokenizer", "--help"], ["plan", str(CONFIGS / "small_1b.yaml")]],
)
def test_commands_that_do_not_compute_import_nothing_heavy(command: list[str]) -> None:
    """Which is what lets them answer in well under a second."""
    statement = f"from glmforge.cli.app import app; app({command}, standalone_mode=False)"
    assert not loaded_modules(statement) & HEAVY


def test_the_whole_interface(tiny_data: TinyData, tmp_path) -> None:
    made = tiny_data.run_config(tmp_path / "run", phases=[{"name": "a", "steps": 2, "seq_len": 16, "batch_size": 2}])
    from glmforge.config import dump_config

    config = glmforge.load_config(dump_config(made), ["optim.lr=2e-3", "optim.warmup_steps=1"])
    assert config.optim.lr == 2e-3
    assert glmforge.train(config).step == 2
    model = glmforge.load_pretrained(config.output_dir, dtype=torch.bfloat16)
    ids_BS = torch.tensor([[1, 2, 3]])
    assert model.logits(ids_BS).shape == (1, 3, 512)
    assert model.logits(ids_BS).dtype == torch.bfloat16
    assert glmforge.load_pretrained("tiny").logits(ids_BS).dtype == torch.float32
    tokenizer = glmforge.load_tokenizer(config.output_dir)
    engine = glmforge.Engine.load(config.output_dir, dtype=torch.bfloat16)
    params = glmforge.SamplingParams(max_new_tokens=4)
    ((of_text,), (of_ids,)) = engine.generate(["def main():", tokenizer.encode("def main():")], params)
    assert of_text.text == tokenizer.decode(of_text.tokens)
    assert isinstance(of_ids.text, str)


def test_public_names_are_listed() -> None:
    assert set(glmforge.__all__) < set(dir(glmforge))
    assert not [name for name in dir(glmforge) if name.startswith("_") and not name.startswith("__")]


def test_a_preset_has_no_tokenizer() -> None:
    with pytest.raises(ValueError, match="demo: a preset has random weights and no tokenizer"):
        glmforge.load_tokenizer("demo")


def test_train_is_a_function_and_wrong_names_are_errors() -> None:
    assert callable(glmforge.train)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        glmforge.trian  # noqa: B018
