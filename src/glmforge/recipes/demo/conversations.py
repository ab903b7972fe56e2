"""What the demo fine-tunes on: short questions about Python's names, answered at once or by calling a function.

All that is said is true and stands in the sources: what a docstring says first, and what arguments a function has. Two
thirds are plain questions. The others offer two functions, one of which the assistant calls and answers from what it
returns.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from glmforge.data.documents.document import Document
from glmforge.data.files import write_whole
from glmforge.recipes.demo.docstrings import Documented, documented, module_of, question_about

MAX_ANSWER_CHARACTERS = 200
MIN_ANSWER_CHARACTERS = 20

Record = dict[str, Any]


def _function(name: str, description: str) -> Record:
    parameters = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _function("read_docstring", "What a Python name is documented to do."),
    _function("list_arguments", "The arguments of a Python function."),
]


def conversations(documents: Iterable[Document]) -> Iterator[Record]:
    """One record of OpenAI's kind (`messages`, `tools`) for every name that has a docstring of fitting length."""
    for document in documents:
        for found in documented(document):
            summary = _summary(found.docstring)
            if len(summary) >= MIN_ANSWER_CHARACTERS:
                yield _conversation(found, summary)


def write_conversations(documents: Iterable[Document], path: Path) -> int:
    """Write the records of `conversations` as JSON lines; how many."""
    lines = [json.dumps(record, ensure_ascii=False) for record in conversations(documents)]
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def carry_out(function: str, name: str, documents: Iterable[Document]) -> str:
    """What one of `TOOLS` returns for a name that stands in `documents`; what is wrong if it cannot."""
    sources = (document for document in documents if f"{name}.".startswith(f"{module_of(document)}."))
    found = next((each for source in sources for each in documented(source) if each.name == name), None)
    if function not in {tool["function"]["name"] for tool in TOOLS}:
        return "There is no such function."
    if found is None:
        return f"There is no {name}."
    return ", ".join(found.arguments) if function == "list_arguments" else _summary(found.docstring)


def _conversation(found: Documented, summary: str) -> Record:
    if _draw(found.name, 3):
        return {"messages": [_user(question_about(found.name)), _assistant(summary)]}
    if found.arguments:
        result = ", ".join(found.arguments)
        question, function, answer = f"Which arguments does {found.name} take?", "list_arguments", f"It takes {result}."
    else:
        question, function, result, answer = f"Look up {found.name}.", "read_docstring", summary, summary
    calling = {"function": {"name": function, "arguments": {"name": found.name}}}
    messages = [
        _user(question),
        {"role": "assistant", "content": "", "tool_calls": [calling]},
        {"role": "tool", "content": result},
        _assistant(answer),
    ]
    return {"messages": messages, "tools": TOOLS}


def _user(text: str) -> Record:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Record:
    return {"role": "assistant", "content": text}


def _summary(docstring: str) -> str:
    """Whole sentences of the first paragraph up to the limit; nothing if the first one is longer."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    kept = ""
    for sentence in re.split(r"(?<=[.!?]) ", paragraph):
        if len(kept) + 1 + len(sentence) > MAX_ANSWER_CHARACTERS:
            break
        kept = f"{kept} {sentence}".strip()
    return kept


def _draw(name: str, num: int) -> int:
    """One of `num` numbers, by the name alone."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little") % num
