"""Text files of conversations, read, checked and encoded as `glmforge data chat` does."""

import json
from pathlib import Path

from fuzz.format import Format
from fuzz.mutate import byte_mutator
from fuzz.suite import check
from fuzz.trees import json_mutator
from glmforge.config.chat import ChatConfig
from glmforge.data.chat.tokenize import tokenize_chat
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.shards import TokenShard

_CALL = {"function": {"name": "f", "arguments": '{"a": [1, "x"]}'}}
_RECORDS = [
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "What is it like there?"}]},
            {"role": "assistant", "reasoning_content": "I ask.", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "content": "snow"},
            {"role": "assistant", "content": "<think>snow</think>It snows.", "loss_weight": 0.5},
        ],
        "tools": [{"name": "f", "parameters": {"type": "object"}}],
    },
    {
        "conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
            {"from": "observation", "value": "T"},
            {"from": "gpt", "value": "Hello"},
        ],
        "tools": '[{"name": "f"}]',
    },
    {"instruction": "Add", "input": "1 1", "output": "2", "history": [["q", "a"]], "system": "S"},
    {"prompt": "Hi", "completion": "Hello"},
]
_TOKENS = tuple(
    token.encode()
    for token in ("<|user|>", "<|assistant|>", "</think>", "[", "{", "\n", "\\ud800", "1e999", "null", '"loss_weight":')
)


def write(directory: Path) -> None:
    train_tokenizer(["What is it like there? It snows, and the forge is hot."] * 3, 300, directory / "tokenizer")
    (directory / "lines.jsonl").write_text("".join(json.dumps(record) + "\n" for record in _RECORDS))
    (directory / "array.json").write_text(json.dumps(_RECORDS, indent=1))


def read(directory: Path) -> int:
    files = [directory / name for name in ("lines.jsonl", "array.json")]
    config = ChatConfig(max_tokens=1500, overlong="cut")
    tokenize_chat(files, directory / "tokenizer", directory / "out", config, overwrite=True)
    shard = TokenShard(directory / "out")
    shard.verify()
    return shard.num_tokens


FORMAT = Format(
    name="conversations",
    write=write,
    read=read,
    mutators={"array.json": json_mutator(), "lines.jsonl": byte_mutator(_TOKENS)},
    bombs={
        "deep": lambda directory: (directory / "array.json").write_bytes(b"[" * 200_000),
        "deep_record": lambda directory: (directory / "lines.jsonl").write_bytes(b'{"messages":' + b"[" * 100_000),
        "long_number": lambda directory: (directory / "lines.jsonl").write_bytes(b'{"messages":' + b"9" * 10**6 + b"}"),
        "many_fields": lambda directory: (directory / "lines.jsonl").write_text(
            json.dumps({f"message{number}": 0 for number in range(200_000)})
        ),
    },
    events=frozenset({"exec", "compile"}),  # Jinja compiles a template to Python code
)


def test_mutations_and_bombs() -> None:
    check(__name__)
