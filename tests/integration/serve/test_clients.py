"""The clients of OpenAI and Anthropic against the server, and its text against the engine's."""

from pathlib import Path

import anthropic
import openai
import pytest

from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from helpers.serving import NAME, Server

MESSAGES = [{"role": "user", "content": "Write a function that adds two numbers."}]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def messages_client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_served_text_is_the_engines(server: Server, served_model: Path, client: openai.OpenAI) -> None:
    engine = Engine.load(served_model)
    assert engine.tokenizer is not None
    prompts = ["def main", "import os", "class A:\n    def", "x = [1, 2, 3]"]
    ids = [engine.tokenizer.encode(prompt) for prompt in prompts]
    expected = [sample.text for (sample,) in engine.generate(ids, SamplingParams(max_new_tokens=32))]
    served = client.completions.create(model=NAME, prompt=prompts, max_tokens=32, temperature=0)
    assert [choice.text for choice in served.choices] == expected
    for prompt, text in zip(prompts, expected, strict=True):
        stream = client.completions.create(model=NAME, prompt=prompt, max_tokens=32, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == text

    ids = [engine.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, thinking=False)]
    ((sample,),) = engine.generate(ids, SamplingParams(max_new_tokens=32))
    chat = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=32, temperature=0, extra_body=NO_THINKING
    )
    assert chat.choices[0].message.content == sample.text.strip()
    assert chat.usage is not None
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (len(ids[0]), 32)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)


def test_chat_streams_what_it_returns(client: openai.OpenAI) -> None:
    asked = {"model": NAME, "messages": MESSAGES, "max_tokens": 24, "temperature": 0.8, "seed": 5}
    whole = client.chat.completions.create(**asked, extra_body=NO_THINKING)
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}, extra_body=NO_THINKING
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens
    assert whole.choices[0].finish_reason in ("stop", "length")


def test_samples_logprobs_and_stops(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=8, n=3, logprobs=True, top_logprobs=2, seed=1, extra_body=NO_THINKING
    )
    assert [choice.index for choice in chat.choices] == [0, 1, 2]
    for choice in chat.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    text = client.completions.create(model=NAME, prompt="def main", max_tokens=24, temperature=0).choices[0].text
    stop = text[5:7]
    stopped = client.completions.create(model=NAME, prompt="def main", max_tokens=24, temperature=0, stop=[stop])
    assert stopped.choices[0].text == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].model_extra is not None
    assert stopped.choices[0].model_extra["stop_reason"] == stop


def test_scoring_alone(client: openai.OpenAI, served_model: Path) -> None:
    """As evaluation harnesses ask for the log-likelihood of a text."""
    text = "def main(): return 1"
    scored = client.completions.create(model=NAME, prompt=text, max_tokens=0, echo=True, logprobs=1)
    choice = scored.choices[0]
    assert choice.text == text
    engine = Engine.load(served_model)
    ((sample,),) = engine.generate([text], SamplingParams(max_new_tokens=0, prompt_logprobs=True))
    assert sample.details is not None
    expected = [one.logprob for one in sample.details.prompt_logprobs]
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0


def test_thoughts_have_a_budget(client: openai.OpenAI) -> None:
    """The model of random weights closes no thought by itself."""
    asked = {"model": NAME, "messages": MESSAGES, "max_tokens": 40, "temperature": 0}
    for budget in (0, 7):
        answer = client.chat.completions.create(**asked, extra_body={"thinking_token_budget": budget})
        message = answer.choices[0].message
        assert message.content, "the answer goes on behind the thought"
        assert message.model_extra is not None
        assert bool(message.model_extra.get("reasoning_content")) == (budget > 0)
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 40


def test_responses(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=NAME, input="Hello", max_output_tokens=16, temperature=0)
    assert whole.status in ("completed", "incomplete")
    events = list(client.responses.create(model=NAME, input="Hello", max_output_tokens=16, temperature=0, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == whole.output_text


def test_errors_are_the_clients_own(client: openai.OpenAI, messages_client: anthropic.Anthropic) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=-1)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=NAME, prompt=[10**6], max_tokens=1)
    with pytest.raises(anthropic.BadRequestError) as refused:
        messages_client.messages.create(model=NAME, messages=MESSAGES, max_tokens=0)  # type: ignore[arg-type]
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["type"] == "error"


def test_anthropics_messages(messages_client: anthropic.Anthropic) -> None:
    asked = {
        "model": NAME,
        "messages": MESSAGES,
        "max_tokens": 16,
        "extra_body": {"temperature": 0.0, "ignore_eos": True},
    }
    whole = messages_client.messages.create(**asked)
    assert whole.stop_reason in ("end_turn", "max_tokens")
    counted = messages_client.messages.count_tokens(model=NAME, messages=MESSAGES)  # type: ignore[arg-type]
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    with messages_client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(block.text for block in whole.content if block.type == "text")
    assert final.usage.output_tokens == whole.usage.output_tokens == 16


def test_tokens(server: Server) -> None:
    ids = server.ask("/tokenize", {"model": NAME, "prompt": "def main"}).json()["tokens"]
    assert server.ask("/detokenize", {"model": NAME, "tokens": ids}).json()["prompt"] == "def main"


def test_tokens_in_and_out(server: Server, served_model: Path) -> None:
    engine = Engine.load(served_model)
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode("def main")
    ((sample,),) = engine.generate([ids], SamplingParams(max_new_tokens=8, logprobs=0))
    asked = {"model": NAME, "prompt_token_ids": ids, "max_tokens": 8, "temperature": 0, "logprobs": 0}
    answer = server.ask("/generate", asked)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["tokens"] == sample.tokens
    assert choice["logprobs"] == pytest.approx([one.logprob for one in sample.logprobs], abs=1e-4)
