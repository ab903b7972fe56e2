"""Functions on their way to a model, and its calls on the way back."""

from types import SimpleNamespace

import pytest

pytest.importorskip("lm_eval", reason="needs glmforge[eval]")

from lm_eval.api.instance import Instance

from glmforge.evaluate.benchmarks.endpoint_model import EndpointModel, Server, _Completion, _written
from glmforge.evaluate.benchmarks.function_calls import in_glm_form
from glmforge.evaluate.benchmarks.language_model import EngineLM
from glmforge.evaluate.benchmarks.model import Generation
from glmforge.evaluate.benchmarks.replies import ReplyStore
from glmforge.verify.reply import MalformedReply, parse_reply

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
MESSAGES = [{"role": "user", "content": "Add."}]


def test_the_engine_hands_functions_to_its_template():
    class Words:
        def apply_chat_template(self, messages, tools=None, **_):
            return [len(messages), len(tools)]

        def encode(self, text):
            return []

        def decode(self, ids):
            return str(ids)

    engine = SimpleNamespace(words=Words(), generation=Generation())
    assert EngineLM.apply_chat_template(engine, MESSAGES, tools=TOOLS).ids == (1, 1)


def test_a_server_gets_functions_and_its_calls_are_read(tmp_path):
    model = EndpointModel(Server("http://localhost:1/v1", "glm"), ReplyStore(tmp_path), Generation())
    with_tools, without = (
        model._to_write(Instance("generate_until", {}, (model.apply_chat_template(MESSAGES, tools=tools), {}), 0), 0)
        for tools in (TOOLS, None)
    )
    assert with_tools.payload["tools"] == TOOLS
    assert "tools" not in without.payload
    assert with_tools.digest != without.digest
    call = {"function": {"name": "add", "arguments": '{"a": 3, "note": "é", "list": [1, "2"]}'}}
    message = {"content": None, "reasoning_content": "So.", "tool_calls": [call, call]}
    reply = parse_reply(_written(_Completion.model_validate({"choices": [{"message": message}]}), 0.0).text)
    assert reply.reasoning == "So."
    assert len(reply.tool_calls) == 2
    assert reply.tool_calls[0].name == "add"
    assert reply.tool_calls[0].arguments == {"a": "3", "note": "é", "list": '[1, "2"]'}


@pytest.mark.parametrize("arguments", ["{", "[1]", "3"])
def test_a_call_that_is_not_readable_is_malformed(arguments):
    with pytest.raises(MalformedReply):
        parse_reply(in_glm_form({"function": {"name": "add", "arguments": arguments}}))
