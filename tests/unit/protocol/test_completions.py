"""Completions: four forms of prompts, echo, scores, several prompts."""

from typing import Any

import pytest
from openai.types import Completion

from glmforge.generate.answer import Details, Update
from glmforge.generate.logprobs import TokenLogprob
from glmforge.protocol.completions import CompletionWriter, parse
from glmforge.protocol.request import ApiError, Ask
from helpers.replies import Served, answered, streamed, updates_of


def ask(served: Served, **body: Any) -> Ask:
    return parse({"model": "glm", "prompt": "Once é"} | body, served)


def test_prompts(served: Served) -> None:
    ids = tuple(served.tokenizer.encode("Once é"))
    for prompt in ("Once é", ["Once é"], list(ids), [list(ids)]):
        found = ask(served, prompt=prompt)
        assert (found.prompt, found.prompts) == (ids, ())
    several = ask(served, prompt=["Once é", "a <|user|>"])
    assert several.prompts == (ids, tuple(served.tokenizer.encode("a <|user|>")))
    assert served.tokenizer.special_id("<|user|>") not in several.prompts[1]
    assert ask(served, prompt="").prompt == (served.tokenizer.end_of_text_id,)


def test_settings(served: Served) -> None:
    found = ask(served, max_tokens=7, logprobs=2, stop=["a", "b"], best_of=1, suffix="", seed=3)
    assert (found.params.max_new_tokens, found.params.logprobs, found.params.stop) == (7, 2, ["a", "b"])
    assert not found.params.prompt_logprobs
    assert ask(served).params.max_new_tokens == 16
    assert ask(served, max_tokens=10**6).params.max_new_tokens == 2048 - len(found.prompt)
    assert found.reply is None
    scored = ask(served, max_tokens=0, echo=True, logprobs=1)
    assert scored.max_tokens_zero
    assert scored.params.prompt_logprobs
    full = [1] * served.max_positions
    assert ask(served, prompt=full, max_tokens=0, echo=True, logprobs=0).params.max_new_tokens == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": None}, "prompt"), ({"prompt": 5}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": {}}, "prompt"),
        ({"prompt": [None]}, "prompt[0]"), ({"prompt": ["a", 5]}, "prompt[1]"), ({"prompt": [5, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"), ({"prompt": [10**6]}, "prompt"), ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [[True]]}, "prompt[0]"), ({"prompt": ["a"] * 129}, "prompt"), ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"), ({"logprobs": 21}, "logprobs"), ({"max_tokens": 0}, "max_tokens"),
        ({"echo": True, "logprobs": 1, "stream": True}, "logprobs"), ({"max_tokens": -1}, "max_tokens"),
        ({"prompt": [1] * 2048}, None),
    ],
)  # fmt: skip
def test_refusals_name_the_field(served: Served, body: dict[str, Any], param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        ask(served, **body)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_text_and_stream(served: Served) -> None:
    options = {"echo": True, "stop": ["END"], "n": 2}
    updates = [
        update
        for sample, text in enumerate((" upon 中 END", " a time"))
        for update in updates_of(served.tokenizer, text, sample=sample, stop=["END"], num_cached=2)
    ]
    body = answered(CompletionWriter(ask(served, **options), served, "cmpl-1"), iter(updates))
    whole = Completion.model_validate(body)
    assert [choice.text for choice in whole.choices] == ["Once é upon 中 ", "Once é a time"]
    assert [choice["stop_reason"] for choice in body["choices"]] == ["END", None]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 2
    wanted = ask(served, stream=True, stream_options={"include_usage": True}, **options)
    texts = {0: "", 1: ""}
    events = streamed(CompletionWriter(wanted, served, "cmpl-1"), iter(updates))
    for event in events[:-1]:
        (choice,) = event.data["choices"]
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"] is not None:  # OpenAI's type has no chunk that goes on
            Completion.model_validate(event.data)
    assert list(texts.values()) == [choice.text for choice in whole.choices]
    assert events[-1].data["usage"] == body["usage"]


def test_scores_of_the_prompt(served: Served) -> None:
    """One token of the prompt is part of a character; offsets count characters all the same."""
    wanted = ask(served, max_tokens=0, echo=True, logprobs=1)
    known = [TokenLogprob(-1.0, ((65, -0.25),)), *(TokenLogprob(float("-inf")) for _ in wanted.prompt[2:])]
    end = Update(0, 0, None, "length", details=Details(known, None))
    body = answered(CompletionWriter(wanted, served, "cmpl-1"), iter([end]))
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "Once é"
    assert logprobs["token_logprobs"] == [None, -1.0, *[-9999.0] * (len(wanted.prompt) - 2)]
    assert logprobs["top_logprobs"][0] is None
    assert max(logprobs["top_logprobs"][1].values()) == -0.25
    assert logprobs["tokens"][1] in logprobs["top_logprobs"][1]
    text = choice["text"]
    for place, (token, offset) in enumerate(zip(logprobs["tokens"], logprobs["text_offset"], strict=True)):
        if "�" not in token:
            assert text[offset : offset + len(token)] == token
        assert offset == len(served.tokenizer.decode(wanted.prompt[:place]).rstrip("�"))
    assert body["usage"]["completion_tokens"] == 0
    for field in ("token_logprobs", "top_logprobs"):
        logprobs[field].pop(0)  # null, which OpenAI's API gives and its types do not have
    Completion.model_validate(body)


def test_several_prompts_with_scores(served: Served) -> None:
    wanted = ask(served, prompt=[[1, 2, 3], [4, 5]], n=2, logprobs=0, max_tokens=3)
    updates = [
        update
        for sample in range(4)
        for update in updates_of(served.tokenizer, [65 + sample], finished="length", sample=sample, top=0, num_cached=1)
    ]
    body = answered(CompletionWriter(wanted, served, "cmpl-1"), iter(updates))
    Completion.model_validate(body)
    assert [choice["text"] for choice in body["choices"]] == [served.tokenizer.decode([65 + n]) for n in range(4)]
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    assert all(len(choice["logprobs"]["tokens"]) == 1 for choice in body["choices"])
