"""An agent on the plain OpenAI client: it knows nothing of how it is trained.

It reads the record of a prompt on standard input, and calls the model until there are no more calls to answer.
"""

import json
import sys

from openai import OpenAI

client = OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY are those of its session
messages = list(json.load(sys.stdin)["messages"])
tools = [{"type": "function", "function": {"name": "calc", "parameters": {}}}]
for _ in range(3):
    settings = {"chat_template_kwargs": {"enable_thinking": False}}
    reply = client.chat.completions.create(model="policy", messages=messages, tools=tools, extra_body=settings)
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        expression = json.loads(call.function.arguments).get("e", "")
        left, _, right = expression.partition("*")
        result = str(int(left) * int(right)) if left.isdigit() and right.isdigit() else "error"
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
