"""A server's model: what is asked of it, what is read of its replies, and every way in which it may fail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError, GlmforgeError
from glmforge.evaluate.benchmarks import endpoint_model
from glmforge.evaluate.benchmarks.endpoint_model import EndpointModel, Server
from glmforge.evaluate.benchmarks.model import Generation
from glmforge.evaluate.benchmarks.replies import ReplyStore
from helpers.completion_server import CompletionServer, completion_server, echoed, logprob_of, written
from helpers.distributed import free_port
from helpers.tiny_data import TinyData

TURNS = [{"role": "user", "content": "2 + 2?"}]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompletionServer]:
    monkeypatch.setattr(endpoint_model, "_FIRST_WAIT_S", 0.0)
    with completion_server() as running:
        yield running


@pytest.fixture
def replies(tmp_path: Path) -> Iterator[ReplyStore]:
    with ReplyStore(tmp_path / "replies") as store:
        yield store


def model_of(server: CompletionServer, replies: ReplyStore, key: str = "", **settings: Any) -> EndpointModel:
    tokenizer = settings.pop("tokenizer", None)
    return EndpointModel(Server(server.url, "tiny", key), replies, Generation(**settings), tokenizer=tokenizer)


def to_score(context: str, continuation: str) -> Instance:
    return Instance("loglikelihood", {}, (context, continuation), 0)


def to_write(context: str, **settings: Any) -> Instance:
    return Instance("generate_until", {}, (context, settings), 0)


def test_scores_the_characters_of_the_continuation(server: CompletionServer, replies: ReplyStore) -> None:
    model = model_of(server, replies)
    first, second = model.score([to_score("Answer:", " yes"), to_score("Answer:", " no")])
    assert first.logprob == pytest.approx(sum(map(logprob_of, " yes")))
    assert second.logprob == pytest.approx(sum(map(logprob_of, " no")))
    assert (first.num_tokens, first.num_prompt_tokens, first.is_greedy) == (4, 7, False)
    assert model.loglikelihood([to_score("Answer:", " yes")]) == [(first.logprob, False)]
    assert len(server.asked) == 2  # the third is known
    server.answer = lambda payload: _with_top(echoed(payload))
    assert model.score([to_score("Answer:", " maybe")])[0].is_greedy


def _with_top(reply: dict[str, Any]) -> dict[str, Any]:
    """Each token of the prompt is the likeliest one."""
    logprobs = reply["choices"][0]["logprobs"]
    logprobs["top_logprobs"] = [None if one is None else {"x": one} for one in logprobs["token_logprobs"]]
    return reply


def test_scores_token_ids_as_the_engine_does(
    server: CompletionServer, replies: ReplyStore, tiny_data: TinyData
) -> None:
    words = Tokenizer.load(tiny_data.tokenizer)
    model = model_of(server, replies, tokenizer=words)
    spaced, alone = model.score([to_score("def ", "main"), to_score("", "main")])
    (together, start), ids = (words.encode("def main"), len(words.encode("def"))), words.encode("main")
    assert spaced.logprob == pytest.approx(sum(map(logprob_of, together[start:])))
    assert alone.logprob == pytest.approx(sum(map(logprob_of, ids)))
    assert {tuple(payload["prompt"]) for _, payload, _ in server.asked} == {
        tuple(together),
        (words.end_of_text_id, *ids),
    }
    turns = model.apply_chat_template([*TURNS, {"role": "assistant", "content": "It is"}], add_generation_prompt=False)
    (chat,) = model.score([to_score(turns, " 4")])
    prompt = server.asked[-1][1]["prompt"]
    rendered = words.apply_chat_template(TURNS, add_generation_prompt=True)
    assert prompt == rendered + words.encode("It is") + words.encode(" 4")
    assert chat.num_prompt_tokens == len(prompt) - len(words.encode(" 4"))


def test_a_conversation_without_a_tokenizer_cannot_be_scored(server: CompletionServer, replies: ReplyStore) -> None:
    model = model_of(server, replies)
    with pytest.raises(GlmforgeError, match="--tokenizer DIR"):
        model.score([to_score(model.apply_chat_template(TURNS), " 4")])


@pytest.mark.parametrize("thinking", [True, False])
def test_writes_in_a_conversation(server: CompletionServer, replies: ReplyStore, thinking: bool) -> None:
    model = model_of(server, replies, thinking=thinking, num_samples=2, temperature=0.6, seed=5)
    request = to_write(model.apply_chat_template(TURNS), until=["Question:"], max_gen_toks=64)
    samples = model.write([request])[0]
    assert [sample.text for sample in samples] == ["<think>Question: 2 + 2</think>The answer is 4."] * 2
    assert model.generate_until([request]) == ["The answer is 4."]  # a stop string does not fire in the reasoning
    assert [path for path, _, _ in server.asked] == ["/v1/chat/completions"] * 2
    assert sorted(payload["seed"] for _, payload, _ in server.asked) == [5, 6]
    payload = server.asked[0][1]
    assert (payload["messages"], payload["max_tokens"], payload["temperature"]) == (TURNS, 64, 0.6)
    assert payload.get("stop") == (None if thinking else ["Question:"])
    assert payload.get("chat_template_kwargs") == (None if thinking else {"enable_thinking": False})


def test_a_begun_answer_is_continued(server: CompletionServer, replies: ReplyStore) -> None:
    model = model_of(server, replies)
    turns = [*TURNS, {"role": "assistant", "content": "It is"}]
    model.write([to_write(model.apply_chat_template(turns, add_generation_prompt=False))])
    payload = server.asked[0][1]
    assert payload["messages"] == turns
    assert (payload["continue_final_message"], payload["add_generation_prompt"]) == (True, False)


def test_reasoning_that_was_cut_has_no_answer(server: CompletionServer, replies: ReplyStore) -> None:
    choice = {"message": {"content": None, "reasoning_content": "so 4"}, "finish_reason": "length"}
    server.answer = lambda payload: {"choices": [choice]}
    model = model_of(server, replies)
    request = to_write(model.apply_chat_template(TURNS))
    ((reply,),) = model.write([request])
    assert (reply.text, reply.is_cut, reply.num_tokens) == ("<think>so 4", True, 0)
    assert model.generate_until([request]) == [""]


def test_a_prompt_is_continued_greedily(server: CompletionServer, replies: ReplyStore, tiny_data: TinyData) -> None:
    model = model_of(server, replies)
    settings = {"until": ["\n\n", "a", "b", "c", "d"], "do_sample": False, "temperature": 0.7}
    ((reply,),) = model.write([to_write("Question: 2 + 2\nAnswer:", **settings)])
    assert (reply.text, reply.is_cut, reply.num_tokens, reply.num_prompt_tokens) == (" 4\n\nQuestion: more", True, 3, 7)
    path, payload, _ = server.asked[0]
    assert (path, payload["temperature"], payload["stop"]) == ("/v1/completions", 0.0, ["\n\n", "a", "b", "c"])
    words = Tokenizer.load(tiny_data.tokenizer)
    model_of(server, replies, tokenizer=words).write([to_write("Another:", temperature=0.7)])
    payload = server.asked[1][1]
    assert (payload["prompt"], payload["temperature"]) == (words.encode("Another:"), 0.7)


TRUNCATED = b'{"choices": [{"text": " 4'


@pytest.mark.parametrize(
    "first",
    [(429, b"slow down", {"retry-after": "0"}), (503, b"", {}), (200, TRUNCATED, {}), (200, b'{"choices": []}', {})],
)
def test_what_passes_is_asked_again(server: CompletionServer, replies: ReplyStore, first: Any) -> None:
    server.first = [first]
    ((reply,),) = model_of(server, replies).write([to_write("Question:")])
    assert reply.text == written({})["choices"][0]["text"]
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ((500, b"out of memory", {}), r"no answer \(500\): out of memory"),
        ((200, TRUNCATED, {}), r"no answer \(200\): no such reply"),
        ((200, b'{"choices": [{"text": 4}]}', {}), r"no answer \(200\): no such reply"),
        ((400, b"prompt too long", {}), r"no answer \(400\): prompt too long"),
    ],
)
def test_what_stays_ends_it_and_replies_are_kept(
    server: CompletionServer, replies: ReplyStore, tmp_path: Path, first: Any, told: str
) -> None:
    model = model_of(server, replies)
    model.write([to_write("Question: 1")])
    server.first = [first] * 6
    with pytest.raises(DataError, match=told) as error:
        model.write([to_write("Question: 1"), to_write("Question: 2")])
    assert "\n" not in str(error.value)
    assert len(server.asked) == (2 if first[0] == 400 else 7)
    assert len(ReplyStore(tmp_path / "replies").known) == 1


def test_nobody_there(replies: ReplyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_model, "_FIRST_WAIT_S", 0.0)
    model = EndpointModel(Server(f"http://127.0.0.1:{free_port()}/v1", "tiny"), replies, Generation())
    with pytest.raises(DataError, match="no answer: no connection"):
        model.write([to_write(f"Question: {number}") for number in range(40)])


def test_a_wrong_key_is_not_repeated(server: CompletionServer, replies: ReplyStore) -> None:
    server.key = "right"
    with pytest.raises(DataError, match="check URL, model and API key") as error:
        model_of(server, replies, key="wr0ng").write([to_write("Question:")])
    assert "wr0ng" not in str(error.value)
    assert len(server.asked) == 1
    model_of(server, replies, key="right").write([to_write("Question:")])


def test_a_url_with_a_password_is_not_shown(replies: ReplyStore) -> None:
    with pytest.raises(GlmforgeError, match="--api-key-env") as error:
        EndpointModel(Server("http://me:s3cret@host/v1", "tiny"), replies, Generation())
    assert "s3cret" not in str(error.value)


def _changed(payload: dict[str, Any], **logprobs: Any) -> dict[str, Any]:
    reply = echoed(payload)
    reply["choices"][0]["logprobs"] |= logprobs
    return reply


@pytest.mark.parametrize(
    "answer",
    [
        written,
        lambda payload: {"choices": [{"text": "", "logprobs": None}]},
        lambda payload: _changed(payload, token_logprobs=[None, *[-1.0] * 8]),  # not to its end
        lambda payload: _changed(payload, text_offset=None),
        lambda payload: _changed(payload, token_logprobs=[None] * 99),
    ],
)
def test_a_server_without_logprobs_of_the_prompt(server: CompletionServer, replies: ReplyStore, answer: Any) -> None:
    server.answer = answer
    with pytest.raises(DataError, match="does not return log-probabilities of the prompt"):
        model_of(server, replies).score([to_score("Answer:", " yes")])
