"""Clients of others speak to the recording endpoint; replies are written by the test, and their tokens recorded."""

import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anthropic
import httpx
import openai
import pytest

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Sample
from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.params import SamplingParams
from glmforge.rl.agents.endpoint import RecordingEndpoint, Session
from helpers.tiny_data import TinyData

TOOL = {"name": "calc", "parameters": {"properties": {"e": {"type": "string"}}}}
ARGUMENT = "<arg_key>e</arg_key>\n<arg_value>2*3</arg_value>\n"
CALL = f"\n<think>It is easy.</think>\n<tool_call>calc\n{ARGUMENT}</tool_call><|observation|>"
QUESTION: dict[str, Any] = {"role": "user", "content": "How much is 2*3?"}


@pytest.fixture(scope="module")
def tokenizer(tiny_data: TinyData) -> Tokenizer:
    return Tokenizer.load(tiny_data.tokenizer)


class Policy:
    """Says what it is told to; what it was asked is in `asked`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.replies = tokenizer, list[str]()
        self.asked: list[tuple[list[int], SamplingParams]] = []

    def __call__(self, ids: Sequence[int], params: SamplingParams) -> Sample:
        self.asked.append((list(ids), params))
        tokens = self.tokenizer.encode_with_special_tokens(self.replies.pop(0))
        return Sample(tokens, "stop", logprobs=[TokenLogprob(-0.5, ())] * len(tokens))


@pytest.fixture
def policy(tokenizer: Tokenizer) -> Policy:
    return Policy(tokenizer)


@pytest.fixture
def endpoint(tokenizer: Tokenizer, policy: Policy) -> Iterator[RecordingEndpoint]:
    with RecordingEndpoint(tokenizer, policy, max_positions=2000) as endpoint:
        yield endpoint


@pytest.fixture
def session(endpoint: RecordingEndpoint) -> Iterator[Session]:
    with endpoint.session(
        lambda number: SamplingParams(max_new_tokens=100, temperature=1.0, seed=number), 5
    ) as session:
        yield session


@pytest.fixture
def client(endpoint: RecordingEndpoint, session: Session) -> openai.OpenAI:
    variables = endpoint.variables(session)
    return openai.OpenAI(base_url=variables["OPENAI_BASE_URL"], api_key="none", max_retries=0)


def ask(client: openai.OpenAI, messages: list[Any], **settings: Any) -> Any:
    tools: Any = [{"type": "function", "function": TOOL}]
    return client.chat.completions.create(model="any", messages=messages, tools=tools, **settings)


def without_reasoning(message: Any) -> dict[str, Any]:
    """As most agents hand a reply back."""
    calls = [call.model_dump() for call in message.tool_calls or ()]
    return {"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})}


KEEPING: dict[str, Callable[[Any], dict[str, Any]]] = {
    "all": lambda message: message.model_dump(exclude_none=True),
    "no reasoning": without_reasoning,
}


@pytest.mark.parametrize("keep", KEEPING)
def test_turns_go_on_behind_the_tokens_that_were_sampled(
    tokenizer: Tokenizer, policy: Policy, client: openai.OpenAI, session: Session, keep: str
) -> None:
    policy.replies = [CALL, "\n<think></think>\n 6 .<|user|>", "\nBye.<|endoftext|>"]
    messages = [QUESTION]
    found = ask(client, messages, temperature=0.1, seed=5).choices[0].message
    assert json.loads(found.tool_calls[0].function.arguments) == {"e": "2*3"}
    messages += [KEEPING[keep](found), {"role": "tool", "tool_call_id": "x", "content": "6"}]
    found = ask(client, messages).choices[0].message
    assert found.content == "6 ."
    messages += [KEEPING[keep](found), {"role": "user", "content": "Thanks."}]
    ask(client, messages)
    (transcript,) = session.transcripts
    prompts = [tokenizer.decode(ids) for ids, _ in policy.asked]
    assert prompts[1] == prompts[0] + CALL + "\n<tool_response>\n6\n</tool_response><|assistant|>"
    assert prompts[2] == prompts[1] + "\n<think></think>\n 6 .<|user|>\nThanks.<|assistant|>"
    assert tokenizer.decode(transcript.ids) == prompts[2] + "\nBye.<|endoftext|>"
    answer = transcript.answer(0, 0, 0)
    own = [token for token, is_own in zip(answer.tokens_N.tolist(), answer.own_N, strict=True) if is_own]
    assert tokenizer.decode(own) == CALL + "\n<think></think>\n 6 .<|user|>" + "\nBye.<|endoftext|>"
    assert {params.temperature for _, params in policy.asked} == {1.0}, "as the run samples"
    assert [params.seed for _, params in policy.asked] == [0, 1, 2]
    assert not session.is_malformed


REWRITTEN: dict[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "summary": lambda messages: [QUESTION, {"role": "user", "content": "(shortened) Go on."}],
    "another reply": lambda messages: [QUESTION, {"role": "assistant", "content": "7"}, messages[-1]],
    "another question": lambda messages: [{"role": "user", "content": "2*4?"}, *messages[1:]],
}


@pytest.mark.parametrize("how", REWRITTEN)
def test_a_rewritten_beginning_is_a_further_part(
    tokenizer: Tokenizer, policy: Policy, client: openai.OpenAI, session: Session, how: str
) -> None:
    policy.replies = ["\nSix.<|user|>", "\nSeven.<|user|>", "\nEight.<|user|>"]
    first = KEEPING["all"](ask(client, [QUESTION]).choices[0].message)
    rest = [first, {"role": "user", "content": "Sure?"}]
    ask(client, REWRITTEN[how]([QUESTION, *rest]))
    ask(client, [QUESTION, *rest])  # the first one still goes on
    parts = [tokenizer.decode(one.ids) for one in session.transcripts]
    assert len(parts) == 2
    assert parts[0].endswith("\nSix.<|user|>\nSure?<|assistant|>\nEight.<|user|>")
    assert "Six" not in parts[1] or how == "another question"
    assert parts[1].endswith("<|assistant|>\nSeven.<|user|>")


def test_anthropics_form_and_streams_are_recorded_alike(
    tokenizer: Tokenizer, policy: Policy, endpoint: RecordingEndpoint, session: Session, client: openai.OpenAI
) -> None:
    policy.replies = [CALL, "\nSix.<|user|>", "\nHi there.<|user|>"]
    url = endpoint.variables(session)["ANTHROPIC_BASE_URL"]
    theirs = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    tools: Any = [{"name": "calc", "input_schema": TOOL["parameters"]}]
    given: Any = {
        "model": "any",
        "max_tokens": 50,
        "tools": tools,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    given.pop("thinking")
    messages: list[Any] = [QUESTION]
    first = theirs.messages.create(messages=messages, **given)
    (use,) = [block for block in first.content if block.type == "tool_use"]
    messages += [
        {"role": "assistant", "content": [use.model_dump(include={"type", "id", "name", "input"})]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "6"}]},
    ]
    with theirs.messages.stream(messages=messages, **given) as stream:
        assert stream.get_final_text() == "Six."
    chunks = ask(client, [{"role": "user", "content": "Hello"}], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi there."
    one, other = (tokenizer.decode(part.ids) for part in session.transcripts)
    assert CALL + "\n<tool_response>\n6\n</tool_response><|assistant|>" in one
    assert other.endswith("\nHi there.<|user|>")


def test_a_call_that_is_none_is_noted(policy: Policy, client: openai.OpenAI, session: Session) -> None:
    policy.replies = ["\n<tool_call>calc\n<arg_key>e</arg_value></tool_call><|observation|>"]
    assert ask(client, [QUESTION]).choices[0].message.tool_calls is None
    assert session.is_malformed


def test_a_call_that_is_required_is_begun_by_the_prompt(
    tokenizer: Tokenizer, policy: Policy, client: openai.OpenAI, session: Session
) -> None:
    policy.replies = [CALL.partition("<tool_call>")[2]]
    found = ask(client, [QUESTION], tool_choice="required").choices[0].message
    assert found.tool_calls[0].function.name == "calc"
    assert tokenizer.decode(policy.asked[0][0]).endswith("<|assistant|>\n<think></think>\n<tool_call>")
    assert not session.is_malformed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 2}, "not supported here"),
        ({"response_format": {"type": "json_object"}, "tool_choice": "none"}, "not supported here"),
        ({"stop": ["x"]}, "not supported here"),
        ({"messages": "x"}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x y " * 2000}]}, "tokens"),
    ],
)
def test_what_would_not_be_the_policy_is_refused(
    policy: Policy, client: openai.OpenAI, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        ask(client, **({"messages": [QUESTION]} | settings))
    assert not policy.asked


def test_strangers_and_hostile_bodies_are_refused(
    endpoint: RecordingEndpoint, session: Session, policy: Policy
) -> None:
    url = endpoint.variables(session)["OPENAI_BASE_URL"]
    elsewhere = url.replace(session.name, "0" * 32)
    assert httpx.post(f"{elsewhere}/chat/completions", json={}).status_code == 404
    assert httpx.post(f"{url}/embeddings", json={}).status_code == 404
    for content in (b"", b"[" * 100_000, b"\xff", b'{"messages": [{"role": "user"}]}'):
        found = httpx.post(f"{url}/chat/completions", content=content)
        assert found.status_code == 400
        assert "\n" not in found.json()["error"]["message"]
    address = httpx.URL(url)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=10)
    connection.putrequest("POST", f"{address.path}/chat/completions")
    connection.putheader("Content-Length", "99999999999")
    connection.endheaders()
    assert connection.getresponse().status == 413
    assert not policy.asked


def test_a_session_has_a_limited_number_of_replies(policy: Policy, client: openai.OpenAI) -> None:
    policy.replies = ["\nx<|user|>"] * 6
    for _ in range(5):
        ask(client, [QUESTION])
    with pytest.raises(openai.BadRequestError, match="at most 5 replies"):
        ask(client, [QUESTION])
