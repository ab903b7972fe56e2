"""A file of prompts answered, bad lines among them, stopped and gone on with."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.answer_file import Answered
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.prompt_file import answer_file
from glmforge.model import GlmMoe
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import TinyData

PARAMS = SamplingParams(max_new_tokens=4)
LINES = [
    {"prompt": "import sys"},
    {"id": "second", "prompt": [5, 6, 7], "max_new_tokens": 2, "num_samples": 2},
    {"messages": [{"role": "user", "content": "hi"}], "temperature": 1.0, "seed": 1, "logit_bias": {"7": 1.5}},
    {"prompt": "def main():"},
]


@pytest.fixture(scope="module")
def engine_of(tiny_data: TinyData) -> Callable[..., Engine]:
    model = GlmMoe(tiny_config())
    randomize_(model)
    tokenizer = Tokenizer.load(tiny_data.tokenizer)

    def engine_of(**limits: int) -> Engine:
        config = EngineConfig(cache_bytes=1 << 22, max_sequences=2, **limits)
        return Engine(model.eval(), config, tokenizer=tokenizer)

    return engine_of


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def answers_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answer(engine: Engine, folder: Path, **options: Any) -> Answered:
    return answer_file(engine, folder / "in.jsonl", folder / "out.jsonl", PARAMS, **({"source": "m"} | options))


def test_every_line_has_its_answer(engine_of: Callable[[], Engine], tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [*LINES[:2], "\n", *LINES[2:]])
    engine = engine_of()
    assert answer(engine, tmp_path) == Answered(4, [])
    found = answers_in(tmp_path / "out.jsonl")
    assert [(one["line"], one.get("id")) for one in found] == [(1, None), (2, "second"), (4, None), (5, None)]
    assert [len(sample["tokens"]) for sample in found[1]["samples"]] == [2, 2]
    (expected,) = engine_of().generate(["import sys"], PARAMS)[0]
    assert found[0]["samples"][0]["tokens"] == expected.tokens
    assert found[0]["samples"][0]["text"] == expected.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{\n", "in.jsonl:2:1: not valid JSON"),
        ("[1]\n", "in.jsonl:2: must contain one JSON object, not [1]"),
        ({"prompt": ""}, "in.jsonl:2: prompt: is empty"),
        ({"prompt": [1, 512]}, "in.jsonl:2: prompt: token 512 is outside the vocabulary of 512"),
        ({"prompt": 7}, "must be text or a list of token ids"),
        ({"prompt": "x", "top_q": 1}, "top_q: unknown key; did you mean 'top_p'?"),
        ({"prompt": "x", "messages": []}, 'set either "prompt"'),
        ({"messages": [7]}, "message 0: 7 is not a message with role and content"),
        ({"messages": [{"role": "user", "content": "x"}], "thinking": "on"}, "thinking: must be true or false"),
        ({"prompt": "x", "tools": []}, 'tools: cannot be combined with "prompt"'),
        ({"messages": [], "control_tokens": True}, 'control_tokens: cannot be combined with "messages"'),
        ({"prompt": [1], "control_tokens": True}, "only applies to text prompts"),
        ({"prompt": "x", "logit_bias": {"x": 1}}, "logit_bias: x is not a token id"),
        ({"prompt": [1] * 300}, "the model has 256"),
        ({"prompt": "x", "grammar": "start: /a+/ b"}, "in.jsonl:2: grammar: at 1(8): unknown name"),
        ({"prompt": "x", "grammar": 'start: "ab" <|user|>'}, "in.jsonl:2: grammar: behind"),
    ],
)
def test_a_bad_line_is_named_and_the_others_go_on(
    engine_of: Callable[[], Engine], tmp_path: Path, line: Any, words: str
) -> None:
    write(tmp_path / "in.jsonl", [LINES[0], line, LINES[3]])
    assert answer(engine_of(), tmp_path) == Answered(2, [2])
    first, bad, last = answers_in(tmp_path / "out.jsonl")
    assert words in bad["error"]
    assert len(first["samples"]) == len(last["samples"]) == 1


def test_what_else_is_asked_for_is_told(engine_of: Callable[[], Engine], tmp_path: Path) -> None:
    line = {"prompt": [5, 6, 7], "logprobs": 2, "prompt_logprobs": True, "experts": True}
    write(tmp_path / "in.jsonl", [line])
    answer(engine_of(), tmp_path)
    (sample,) = answers_in(tmp_path / "out.jsonl")[0]["samples"]
    assert [len(one["top"]) for one in sample["logprobs"]] == [2] * 4
    assert [token for one in sample["logprobs"] for token in one["top"][0][:1]] == sample["tokens"]
    assert len(sample["prompt_logprobs"]) == 2
    assert [len(layers) for layers in sample["experts"]] == [3] * 6  # three MoE layers; the last token is not computed


def test_a_stopped_command_goes_on(engine_of: Callable[[], Engine], tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", LINES)

    def interrupt(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="2 prompts answered; run it again to resume"):
        answer(engine_of(), tmp_path, on_answer=interrupt)
    assert not (tmp_path / "out.jsonl").exists()
    unfinished = tmp_path / "out.jsonl.unfinished"
    unfinished.write_bytes(unfinished.read_bytes() + b'{"line": 4, "sam')  # and the machine stopped
    with pytest.raises(GlmforgeError, match="from another model"):
        answer(engine_of(), tmp_path, source="another")

    engine = engine_of()
    assert answer(engine, tmp_path) == Answered(4, [])
    assert engine.metrics.num_requests == 2
    whole = tmp_path / "whole"
    whole.mkdir()
    write(whole / "in.jsonl", LINES)
    answer(engine_of(), whole)
    assert (whole / "out.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_a_full_queue_is_waited_for(engine_of: Callable[..., Engine], tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", 3 * LINES)
    assert answer(engine_of(max_queued_requests=1), tmp_path) == Answered(12, [])


def test_answers_are_not_overwritten(engine_of: Callable[[], Engine], tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", LINES[:1])
    write(tmp_path / "out.jsonl", ["precious"])
    with pytest.raises(GlmforgeError, match="exists; choose another name, or pass --force"):
        answer(engine_of(), tmp_path)
    assert answer(engine_of(), tmp_path, overwrite=True) == Answered(1, [])
    with pytest.raises(GlmforgeError, match="no such file"):
        answer_file(engine_of(), tmp_path / "none", tmp_path / "out", PARAMS, source="m")


def test_two_processes_do_not_write_the_same_answers(engine_of: Callable[[], Engine], tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", LINES)

    def start_again(done: int) -> None:
        with pytest.raises(GlmforgeError, match="another process is writing here; wait for it, or"):
            answer(engine_of(), tmp_path, overwrite=True)

    assert answer(engine_of(), tmp_path, on_answer=start_again) == Answered(4, [])
    assert len(answers_in(tmp_path / "out.jsonl")) == 4


@pytest.mark.parametrize("content", ["not JSON\n", "[]\n", '{"half a', "\n", "\0" * 4096])
def test_a_file_of_somebody_else_is_not_gone_on_with(
    engine_of: Callable[[], Engine], tmp_path: Path, content: str
) -> None:
    write(tmp_path / "in.jsonl", LINES)
    unfinished = write(tmp_path / "out.jsonl.unfinished", [content])
    with pytest.raises(GlmforgeError, match="has answers to other prompts"):
        answer(engine_of(), tmp_path)
    assert unfinished.read_text() == content
    assert answer(engine_of(), tmp_path, overwrite=True) == Answered(4, [])


def flipped(line: bytes) -> bytes:
    """Other content that is JSON, too."""
    return re.sub(rb'"line": \d', b'"line": 9', line)


def without_samples(line: bytes) -> bytes:
    return line.split(b" ")[0] + b' {"line": 2}\n'


@pytest.mark.parametrize(
    ("place", "damage", "num_kept"),
    [
        (2, flipped, 3),
        (2, without_samples, 3),
        (2, lambda line: b'{"line": 2, "samples": []}\n', 3),
        (2, lambda line: line[:-1], 2),  # one line with the next one
        (4, lambda line: line[: len(line) // 2], 3),
        (4, lambda line: line + b'{"line": 1e999}\n{"line": 77, "samples": []}\n', 4),
        (0, lambda line: b"damaged" + line, 4),
        (0, lambda line: line[:-1], 3),
    ],
)
def test_of_a_damaged_file_whole_answers_are_kept(
    engine_of: Callable[[], Engine], tmp_path: Path, place: int, damage: Callable[[bytes], bytes], num_kept: int
) -> None:
    write(tmp_path / "in.jsonl", LINES)

    def interrupt(done: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(engine_of(), tmp_path, on_answer=interrupt)
    unfinished = tmp_path / "out.jsonl.unfinished"
    lines = unfinished.read_bytes().splitlines(keepends=True)
    lines[place] = damage(lines[place])
    unfinished.write_bytes(b"".join(lines))
    engine = engine_of()
    assert answer(engine, tmp_path) == Answered(4, [])
    assert engine.metrics.num_requests == 4 - num_kept
    found = answers_in(tmp_path / "out.jsonl")
    assert [one["line"] for one in found] == [1, 2, 3, 4]
    assert [len(one["samples"]) for one in found] == [1, 2, 1, 1]


def test_a_first_line_that_was_not_written_whole(engine_of: Callable[[], Engine], tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", LINES[:1])
    unfinished = tmp_path / "out.jsonl.unfinished"

    def cut_off(done: int) -> None:
        unfinished.write_bytes(unfinished.read_bytes()[:50])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(engine_of(), tmp_path, on_answer=cut_off)
    assert answer(engine_of(), tmp_path) == Answered(1, [])


def test_settings_that_cannot_be_written_as_utf8(engine_of: Callable[[], Engine], tmp_path: Path) -> None:
    """A name of a file is not always text."""
    write(tmp_path / "in.jsonl", [LINES[0], '{"prompt": "\\ud800"}\n'])
    assert answer(engine_of(), tmp_path, source="caf\udce9") == Answered(1, [2])
    assert "half of a surrogate pair" in answers_in(tmp_path / "out.jsonl")[1]["error"]
