"""Tokens in and out, and what becomes of texts and conversations."""

from typing import Any

import pytest
import torch

from glmforge.generate.answer import Details, Update
from glmforge.generate.logprobs import TokenLogprob
from glmforge.protocol.request import ApiError
from glmforge.protocol.tokens import TokensWriter, detokenize, parse, tokenize
from helpers.replies import Served, answered, streamed, updates_of


def test_tokens_in_and_out(served: Served) -> None:
    body = {
        "prompt_token_ids": [1, 2, 3],
        "max_tokens": 5,
        "n": 2,
        "logprobs": 2,
        "prompt_logprobs": True,
        "experts": True,
    }
    ask = parse(body, served)
    assert (ask.prompt, ask.params.num_samples, ask.params.max_new_tokens) == ((1, 2, 3), 2, 5)
    assert ask.params.experts
    details = Details([TokenLogprob(-1.0), TokenLogprob(-2.0)], torch.ones(4, 1, 2, dtype=torch.int16))
    updates = [
        Update(0, 1, 7, None, logprob=TokenLogprob(-0.5, ((7, -0.5), (8, -1.0)))),
        Update(0, 0, 9, "length", logprob=TokenLogprob(float("-inf"), ((7, -0.5),)), details=details),
        Update(0, 1, 8, "stop", logprob=TokenLogprob(-0.5, ((7, -0.5),)), details=details, stop=8, num_cached=1),
    ]
    answer = answered(TokensWriter(ask, served, "gen-1"), iter(updates))
    first, second = answer["choices"]
    assert (first["tokens"], first["logprobs"], first["finish_reason"]) == ([9], [-9999.0], "length")
    assert (second["tokens"], second["logprobs"], second["stop_reason"]) == ([7, 8], [-0.5, -0.5], 8)
    assert second["top_logprobs"][0] == [[7, -0.5], [8, -1.0]]
    assert first["prompt_logprobs"] == [None, -1.0, -2.0]
    assert first["experts"] == [[[1, 1]]] * 4
    events = streamed(TokensWriter(parse(body | {"stream": True}, served), served, "gen-1"), iter(updates))
    told = [token for event in events for one in event.data["choices"] if one["index"] for token in one["tokens"]]
    assert told == [7, 8]
    assert events[-1].data["usage"]["completion_tokens"] == 3


def test_scoring_alone(served: Served) -> None:
    ask = parse({"prompt_token_ids": [1, 2], "max_tokens": 0, "prompt_logprobs": True}, served)
    assert ask.max_tokens_zero
    end = Update(0, 0, None, "length", details=Details([TokenLogprob(-1.0)], None))
    (choice,) = answered(TokensWriter(ask, served, "x"), iter([end]))["choices"]
    assert (choice["tokens"], choice["prompt_logprobs"]) == ([], [None, -1.0])


def test_texts_and_conversations(served: Served) -> None:
    tokenizer = served.tokenizer
    found = tokenize({"prompt": "a <|user|> é", "return_token_strs": True}, served)
    assert found["tokens"] == tokenizer.encode("a <|user|> é")
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 2048)
    assert len(found["token_strs"]) == found["count"]
    assert detokenize({"tokens": found["tokens"]}, served) == {"prompt": "a <|user|> é"}
    assert detokenize({"tokens": []}, served) == {"prompt": ""}
    messages = [{"role": "user", "content": "hi"}]
    spoken = tokenize({"messages": messages, "thinking": {"type": "disabled"}}, served)["tokens"]
    assert spoken == tokenizer.apply_chat_template(messages, add_generation_prompt=True, thinking=False)


@pytest.mark.parametrize(
    ("function", "body"),
    [
        (parse, {}), (parse, {"prompt_token_ids": []}), (parse, {"prompt_token_ids": [1.5]}),
        (parse, {"prompt_token_ids": [1], "n": 5000}), (parse, {"prompt_token_ids": [1], "max_tokens": 0, "n": 2}),
        (parse, {"prompt_token_ids": [1], "logprobs": 101}), (tokenize, {}), (tokenize, {"prompt": 1}),
        (tokenize, {"prompt": "a", "messages": []}), (tokenize, {"messages": [1]}), (detokenize, {"tokens": [1 << 40]}),
        (detokenize, {"tokens": "a"}), (detokenize, []),
    ],
)  # fmt: skip
def test_refusals(served: Served, function: Any, body: Any) -> None:
    with pytest.raises(ApiError) as caught:
        function(body, served)
    assert caught.value.status == 400


def test_many_samples(served: Served) -> None:
    ask = parse({"prompt_token_ids": [1], "n": 300}, served)
    updates = (
        u for sample in range(300) for u in updates_of(served.tokenizer, [sample], finished="length", sample=sample)
    )
    answer = answered(TokensWriter(ask, served, "x"), updates)
    assert [choice["tokens"] for choice in answer["choices"]] == [[sample] for sample in range(300)]
