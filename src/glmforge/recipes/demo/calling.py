"""A question that the model answers by calling a function, which is carried out here as an agent's loop would."""

from collections.abc import Mapping

from glmforge.deploy.chat import tokenizer_of
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.recipes.demo.conversations import TOOLS, carry_out
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.verify.reply import MalformedReply, parse_reply, reply_message

_GREEDY = SamplingParams(max_new_tokens=96, temperature=0.0)


def answer_by_calling(engine: Engine, question: str) -> str:
    """All that follows the question: call, result and answer as they were written, or what the model says instead."""
    messages: list[Mapping[str, object]] = [{"role": "user", "content": question}]
    first = _reply(engine, messages)
    try:
        calls = parse_reply(first).tool_calls
    except MalformedReply:
        return first
    if not calls:
        return first
    call = calls[0]
    result = carry_out(call.name, call.arguments.get("name", ""), standard_library_documents())
    messages += [reply_message(first), {"role": "tool", "content": result}]
    return "\n".join((first.strip(), f"=> {result}", _reply(engine, messages)))


def _reply(engine: Engine, messages: list[Mapping[str, object]]) -> str:
    tokenizer = tokenizer_of(engine)
    prompt = tokenizer.apply_chat_template(messages, TOOLS, add_generation_prompt=True, thinking=False)
    ((sample,),) = engine.generate([prompt], _GREEDY)
    return sample.text.strip()
