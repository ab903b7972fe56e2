"""Random requests, most of them wrong: each is answered in the API's form, none with 500, and the server serves on."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import httpx2
import pytest

from helpers.serving import NAME, Server

PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/generate", "/tokenize", "/detokenize", "/abort",
)  # fmt: skip
FIELDS = (
    "model", "messages", "prompt", "input", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "stream",
    "temperature", "top_p", "top_k", "min_p", "stop", "stop_sequences", "seed", "logprobs", "top_logprobs", "echo",
    "tools", "tool_choice", "response_format", "logit_bias", "thinking", "reasoning", "reasoning_effort", "system",
    "instructions", "stream_options", "priority", "timeout", "tokens", "text", "id", "min_tokens", "frequency_penalty",
    "repetition_penalty", "ignore_eos", "stop_token_ids", "chat_template_kwargs", "request_id", "add_special_tokens",
)  # fmt: skip
WORDS = (
    "", "user", "assistant", "tool", "auto", "none", "required", "text", "json_object", "function", "<think>",
    "</think>", "<tool_call>", "<|user|>", NAME, "enabled",
)  # fmt: skip
STATUSES = {200, 400, 401, 403, 404, 408, 413, 422, 429, 503, 504}


def value(source: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say."""
    kinds = ["number", "text", "word", "flag", "none"] + (["list", "object", "message"] if depth < 4 else [])
    match source.choice(kinds):
        case "number":
            return source.choice([0, 1, -1, 3, 2**31, 2**63, -(2**70), 0.5, -0.1, 1e308, 10**400, source.random()])
        case "text":
            return "".join(chr(source.choice([0, 10, 34, 92, 127, 233, 0x3042, 0xD800, 0x1F600, 97])) for _ in range(9))
        case "word":
            return source.choice(WORDS)
        case "flag":
            return source.choice([True, False])
        case "none":
            return None
        case "list":
            return [value(source, depth + 1) for _ in range(source.randrange(4))]
        case "message":
            return {
                "role": source.choice(["user", "system", "assistant", "tool", 1]),
                "content": value(source, depth + 1),
            }
    names = (*FIELDS, "role", "content", "type", "name", "function", "parameters", "json_schema", "schema")
    return {source.choice(names): value(source, depth + 1) for _ in range(source.randrange(4))}


def body(source: random.Random) -> dict[str, Any]:
    """A request that would do, with some of its fields exchanged."""
    messages = [{"role": "user", "content": "x"}]
    sane = {"model": NAME, "max_tokens": 2, "max_output_tokens": 2, "prompt": "x", "input": "x", "messages": messages}
    sane |= {"tokens": [1, 2], "text": "x", "stream": source.random() < 0.3}
    return sane | {source.choice(FIELDS): value(source) for _ in range(source.randrange(4))}


def raw(source: random.Random) -> bytes:
    """JSON of a body, now and then with some bytes of it exchanged."""
    sent = bytearray(json.dumps(body(source)).encode())
    if source.random() < 0.2:
        for _ in range(source.randrange(1, 5)):
            sent[source.randrange(len(sent))] = source.randrange(256)
    return bytes(sent)


async def ask_all(server: Server, number: int, seed: int) -> Counter[tuple[str, int]]:
    """So many requests, eight at a time; how they were answered."""
    source, seen = random.Random(seed), Counter[tuple[str, int]]()
    left = [(source.choice(PATHS), raw(source)) for _ in range(number)]

    async def ask(client: httpx2.AsyncClient) -> None:
        while left:
            path, content = left.pop()
            answer = await client.post(path, content=content)
            seen[path, answer.status_code] += 1
            assert answer.status_code in STATUSES, (path, content, answer.text)
            if answer.headers["content-type"].startswith("application/json"):
                assert answer.status_code == 200 or "error" in answer.json(), (path, content)
            else:
                assert answer.text.endswith("\n\n"), (path, content)
                assert "the server has failed" not in answer.text, (path, content, answer.text)

    async with httpx2.AsyncClient(base_url=server.url, timeout=120) as client, asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(ask(client))
    return seen


@pytest.mark.parametrize("number", [2_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_random_requests(server: Server, number: int) -> None:
    expected = server.complete(max_tokens=8, temperature=0).json()["choices"][0]["text"]
    seen = asyncio.run(ask_all(server, number, seed=number))
    assert sum(count for (_, status), count in seen.items() if status == 200) > number / 20, seen
    server.wait_for_idle()
    assert server.complete(max_tokens=8, temperature=0).json()["choices"][0]["text"] == expected
    assert "failed" not in server.started.output, server.started.output[-2000:]
