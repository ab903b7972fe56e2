"""What the demo fine-tunes on is true, short, and in the template's form."""

import json
from itertools import islice

import pytest

from glmforge.data.chat.conversation import Conversation
from glmforge.data.chat_template.template import render
from glmforge.data.documents.document import Document
from glmforge.recipes.demo.conversations import (
    MAX_ANSWER_CHARACTERS,
    TOOLS,
    carry_out,
    conversations,
    write_conversations,
)
from glmforge.recipes.demo.docstrings import docstring_conversations
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.verify.reply import parse_reply

SOURCE = '''"""A module for tests of many things."""


class Shelf:
    """Holds books in the order in which they came."""

    def put(self, book, *, where=0):
        """Put a book on the shelf. It may be found again."""

    def _hidden(self):
        """Nobody is to know of this one."""


def find(title, *shelves, **wishes):
    """Find a book by its title."""


def short():
    """Short."""
'''
DOCUMENTS = [Document("library/books.py", SOURCE, "here"), Document("notes.txt", "no Python: (", "here")]


def test_every_public_name_is_asked_for_once() -> None:
    records = list(conversations(DOCUMENTS))
    asked = [record["messages"][0]["content"] for record in records]
    names = ["library.books", "library.books.Shelf", "library.books.find", "library.books.Shelf.put"]
    assert [next(name for name in sorted(names, key=len) if name == _name_in(text)) for text in asked] == names
    assert records == list(conversations(DOCUMENTS))


def _name_in(text: str) -> str:
    return next(word.rstrip("?.") for word in text.split() if word.startswith("library."))


@pytest.mark.parametrize(
    ("function", "name", "result"),
    [
        ("list_arguments", "library.books.find", "title, shelves, wishes"),
        ("list_arguments", "library.books.Shelf.put", "book, where"),
        ("read_docstring", "library.books.Shelf.put", "Put a book on the shelf. It may be found again."),
        ("read_docstring", "library.books.Shelf._hidden", "There is no library.books.Shelf._hidden."),
        ("read_docstring", "", "There is no ."),
        ("remove", "library.books", "There is no such function."),
    ],
)
def test_a_function_returns_what_stands_in_the_source(function: str, name: str, result: str) -> None:
    assert carry_out(function, name, DOCUMENTS) == result


def test_real_ones_are_conversations_and_calls_return_what_they_say(tmp_path) -> None:  # type: ignore[no-untyped-def]
    documents = list(islice(standard_library_documents(), 40))
    assert write_conversations(documents, tmp_path / "chat.jsonl") > 100
    records = [json.loads(line) for line in (tmp_path / "chat.jsonl").read_text().splitlines()]
    calling = [record for record in records if "tools" in record]
    assert 0.2 < len(calling) / len(records) < 0.45
    for record in records:
        checked = Conversation.from_messages(record["messages"], record.get("tools"))
        assert len(checked.messages[-1]["content"]) <= MAX_ANSWER_CHARACTERS + len("It takes .")
    for record in calling[:10]:
        call, result = record["messages"][1]["tool_calls"][0]["function"], record["messages"][2]["content"]
        assert carry_out(call["name"], call["arguments"]["name"], documents) == result
        text = render(record["messages"][:2], TOOLS, thinking=False).split("<|assistant|>")[1]
        assert parse_reply(text).tool_calls[0].arguments == call["arguments"]


def test_docstrings_are_longer_answers_to_the_same_questions() -> None:
    ((question, answer), *_) = docstring_conversations(DOCUMENTS)
    assert "library.books" in question["content"]
    assert answer["content"] == "A module for tests of many things."
