"""Several adapters on one base behind the server: a PEFT directory and the checkpoint of a run; what is refused."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from glmforge.checkpoint.adapter.merge import merge
from glmforge.checkpoint.adapter.peft_config import WEIGHTS_FILE
from glmforge.checkpoint.adapter.to_peft import export_peft
from glmforge.checkpoint.convert import export_hf, hf_model_config
from glmforge.checkpoint.pretrained import load_pretrained
from glmforge.cli.app import app
from glmforge.errors import GlmforgeError
from helpers.command import Commands, commands_in
from helpers.made_adapters import made_adapter, save_adapter
from helpers.serving import NAME, Server, start_server
from helpers.tiny_data import TinyData

PROMPTS = ["def main", "import os\n", "x" * 100]
GREEDY = {"temperature": 0, "max_tokens": 16, "logprobs": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def directories(served_model: Path, tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters as PEFT has them, and as a run leaves them; each one merged."""
    root, model = tmp_path_factory.mktemp("adapters"), hf_model_config(served_model)
    peft = made_adapter(model, 1, "q_proj", "v_proj", "experts.gate_up_proj", "experts.down_proj")
    run = made_adapter(model, 2, "all-linear", rank=3)
    export_peft(save_adapter(root / "one", model, peft, served_model), root / "peft")
    save_adapter(root / "run", model, run, served_model)
    for name, source in (("peft", root / "one"), ("run", root / "run")):
        merge(next(source.glob("step-*")), root / f"merged-{name}")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def adapted(served_model: Path, directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    with commands_in(tmp_path_factory.mktemp("adapted")) as commands:
        options = ("--adapter", f"peft={directories['peft']}", "--adapter", f"ours:run={directories['run']}")
        yield start_server(commands, served_model, *options)


def complete(server: Server, model: str, prompt: str) -> Any:
    answer = server.complete(model=model, prompt=prompt, **GREEDY)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return answer.json()["choices"][0]


def test_models_are_named(adapted: Server) -> None:
    cards = adapted.ask("/v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [(NAME, None), ("peft", NAME), ("ours:run", NAME)]
    assert adapted.ask("/v1/models/ours:run").json()["parent"] == NAME
    refused = adapted.complete(model="run")
    assert refused.status_code == 404
    assert "ours:run" in refused.json()["error"]["message"]


def test_answers_are_those_of_merged_models(
    adapted: Server, server: Server, directories: dict[str, Path], commands: Commands
) -> None:
    """All at the same time; 1e-4 as merging rounds otherwise."""
    merged = {
        "peft": start_server(commands, directories["merged-peft"], "--name", "peft"),
        "ours:run": start_server(commands, directories["merged-run"], "--name", "ours:run"),
        NAME: server,
    }
    asked = [(name, prompt) for prompt in PROMPTS for name in merged]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda one: complete(adapted, *one), asked))
    for (name, prompt), found in zip(asked, together, strict=True):
        expected = complete(merged[name], name, prompt)
        assert found["logprobs"]["tokens"] == expected["logprobs"]["tokens"], (name, prompt)
        assert found["logprobs"]["token_logprobs"] == pytest.approx(expected["logprobs"]["token_logprobs"], abs=1e-4)
    assert len({found["text"] for found in together[:3]}) == 3, "each adapter matters"


@pytest.mark.parametrize(
    ("path", "body", "read"),
    [
        ("/v1/chat/completions", {"max_tokens": 8}, lambda answer: answer["choices"][0]["message"]),
        ("/v1/messages", {"max_tokens": 8}, lambda answer: answer["content"]),
    ],
)
def test_every_api_selects_it(adapted: Server, path: str, body: dict[str, Any], read: Callable[[Any], Any]) -> None:
    messages = [{"role": "user", "content": "def main"}]
    said = [
        read(adapted.ask(path, {"model": name, "messages": messages, "temperature": 0, **body}).json())
        for name in (NAME, "peft", "ours:run", "peft")
    ]
    assert said[1] == said[3]
    assert said[0] != said[1] != said[2]


def pickled(adapter: Path) -> None:
    (adapter / WEIGHTS_FILE).rename(adapter / "adapter_model.bin")


def not_finite(adapter: Path) -> None:
    tensors = load_file(adapter / WEIGHTS_FILE)
    next(iter(tensors.values()))[0, 0] = torch.inf
    save_file(tensors, adapter / WEIGHTS_FILE)


def other_shape(adapter: Path) -> None:
    tensors = load_file(adapter / WEIGHTS_FILE)
    name = next(name for name in tensors if "q_proj.lora_A" in name)
    save_file(tensors | {name: tensors[name][:, :-1].contiguous()}, adapter / WEIGHTS_FILE)


def left_over(adapter: Path) -> None:
    tensors = load_file(adapter / WEIGHTS_FILE)
    save_file(tensors | {"base_model.model.\x1b[31m": torch.ones(1)}, adapter / WEIGHTS_FILE)


def huge_header(adapter: Path) -> None:
    (adapter / WEIGHTS_FILE).write_bytes((2**62).to_bytes(8, "little") + b"{}")


def setting(**settings: Any) -> Callable[[Path], None]:
    def change(adapter: Path) -> None:
        file = adapter / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))

    return change


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickle": (pickled, "loading a pickle can run code"),
    "not finite": (not_finite, "non-finite"),
    "other shape": (other_shape, "shape"),
    "left over": (left_over, "not adapted by this run"),
    "huge header": (huge_header, WEIGHTS_FILE),
    "rank": (setting(r=10**9), "is not of a LoRA adapter"),
    "not LoRA": (setting(peft_type="IA3"), "is not of a LoRA adapter"),
    "biases": (setting(bias="all"), "biases"),
    "other arithmetic": (setting(use_qalora=True), "use_qalora"),
    "empty": (lambda adapter: [file.unlink() for file in adapter.iterdir()], "contains neither checkpoints"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_directories(case: str, served_model: Path, directories: dict[str, Path], tmp_path: Path) -> None:
    damage, reason = HOSTILE[case]
    shutil.copytree(directories["peft"], tmp_path / "adapter")
    damage(tmp_path / "adapter")
    refused(GlmforgeError, served_model, "--adapter", f"bad={tmp_path / 'adapter'}", words=("--adapter bad", reason))


def test_adapters_of_other_weights(served_model: Path, directories: dict[str, Path], tmp_path: Path) -> None:
    model = load_pretrained(served_model)
    with torch.no_grad():
        model.model.norm.weight[0] += 1
    export_hf(model.state_dict(), model.config, tmp_path / "other", dtype=torch.float32, tokenizer_dir=served_model)
    adapter = f"ours={directories['run']}"
    words = ("--adapter ours", "holds other or changed weights")
    refused(GlmforgeError, tmp_path / "other", "--adapter", adapter, words=words)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--adapter", "nothing"], "pass NAME=DIR"),
        (["--adapter", "=x"], "pass NAME=DIR"),
        (["--adapter", "a b=x"], "pass NAME=DIR"),
        (["--adapter", "a=x", "--adapter", "a=y"], "two models"),
        (["--adapter", f"{NAME}=x"], "two models"),
        (["--adapter", "a=x", "--engine", "vllm"], "not served by --engine vllm"),
        (["--parallel", "tp=2"], "start several by torchrun"),
        (["--adapter", "a=/nowhere"], "/nowhere"),
    ],
)
def test_options(served_model: Path, options: list[str], reason: str) -> None:
    """Wrong options have another status than wrong directories."""
    refused(GlmforgeError if "/nowhere" in reason else SystemExit, served_model, *options, words=(reason,))


def refused(kind: type[BaseException], model: Path, *options: str, words: tuple[str, ...]) -> None:
    """By one line, which `main` prints of an error, or click's option has printed."""
    result = CliRunner().invoke(app, ["serve", str(model), *options])
    assert isinstance(result.exception, kind), result.output
    text = result.output.strip() if kind is SystemExit else str(result.exception)
    assert len(text.splitlines()) == 1
    assert all(word in text for word in words), text
    assert "\x1b" not in text
