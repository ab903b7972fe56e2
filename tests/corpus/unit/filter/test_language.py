"""The block that sets languages, and the detector of programs."""

import json
import sys

import pyarrow as pa
import pytest

from glmforge.data.documents.batch import DocumentBatch, concatenate
from glmforge.extras import MissingPackageError
from glmforge_corpus.filter.language import Language
from glmforge_corpus.filter.programming_language import (
    content_model,
    detect_code,
    language_of_interpreter,
    language_of_path,
    language_of_text,
)

ENGLISH = "It was a bright cold day in April, and the clocks were striking thirteen. He went home. " * 3
GERMAN = "Es war ein heller, kalter Tag im April, und die Uhren schlugen gerade dreizehn. Er ging nach Hause. " * 3
CHINESE = "四月间，天气寒冷晴朗，钟敲了十三下。他把下巴颏儿贴在胸前，很快地走进了大门。" * 3
PYTHON = '''import os
from collections import Counter


class Reader:
    """Reads words."""

    def __init__(self, path):
        self.path = path
        self._counts = Counter()

    def count(self):
        with open(self.path) as file:
            for line in file:
                self._counts.update(line.split())
        return dict(self._counts)
'''
C = """#include <stdio.h>
#include "list.h"

static int length(const struct node *head)
{
    int n = 0;
    for (; head != NULL; head = head->next)
        n++;
    return n;
}
"""
SHELL = """#!/usr/bin/env bash
set -e
for file in "$@"; do
  if [ -f "$file" ]; then
    echo "found ${file##*/}"
  fi
done
"""


def batch_of(*texts: str, metadata: list[str | None] | None = None, ids: list[str] | None = None) -> DocumentBatch:
    return DocumentBatch.from_columns(ids or [f"d{i}" for i in range(len(texts))], texts, "test", metadata=metadata)


def languages(batch: DocumentBatch) -> list[str | None]:
    return batch.table.column("language").to_pylist()


def test_sets_language_and_score():
    batch = Language().process(batch_of(ENGLISH, GERMAN, CHINESE, PYTHON, "123 --- 4,5")).batch
    assert languages(batch) == ["en", "de", "zh", "code", None]
    scores = batch.score("language")
    assert (scores[:4] > 0.5).all()
    assert scores[4] == 0
    assert json.loads(batch.table.column("metadata")[3].as_py()) == {"programming_language": "python"}
    assert batch.table.column("metadata")[0].as_py() is None


def test_keep_and_min_score():
    block = Language(keep=("en", "code"), min_score=0.3)
    outcome = block.process(batch_of(ENGLISH, GERMAN, PYTHON, "123"))
    assert outcome.failed["language: not kept"].tolist() == [False, True, False, True]
    assert outcome.failed["language: uncertain"].tolist() == [False, False, False, True]


def test_without_limits_nothing_fails():
    assert not Language().process(batch_of(ENGLISH, "123")).failed


def test_options_of_yaml():
    assert Language.model_validate({"keep": ["en", "zh"]}).keep == ("en", "zh")
    with pytest.raises(ValueError, match="min_scores"):
        Language.model_validate({"min_scores": 0.5})
    with pytest.raises(ValueError, match="less than or equal to 1"):
        Language(min_score=2.0)


def test_without_code_programs_are_judged_as_prose():
    batch = Language(code=False).process(batch_of(PYTHON)).batch
    assert languages(batch) != ["code"]
    assert batch.table.column("metadata").null_count == 1


def test_metadata_stay_and_what_they_say_counts():
    metadata = ['{"url":"https://a.b/c","n":1}', '{"programming_language":"cython"}', '{"path":"src/a.rs"}']
    batch = Language().process(batch_of(PYTHON, PYTHON, PYTHON, metadata=metadata)).batch
    values = [json.loads(text) for text in batch.table.column("metadata").to_pylist()]
    assert values[0] == {"url": "https://a.b/c", "n": 1, "programming_language": "python"}
    assert values[1] == {"programming_language": "cython"}
    assert values[2] == {"path": "src/a.rs", "programming_language": "rust"}


def test_sliced_empty_and_split_batches_give_the_same():
    texts = [ENGLISH, GERMAN, PYTHON, CHINESE, C]
    whole = Language().process(batch_of(*texts)).batch
    parts = [Language().process(batch_of(*texts).slice(i, i + 1)).batch for i in range(5)]
    assert concatenate(parts).table.equals(whole.table)
    empty = Language(keep=("en",)).process(batch_of()).batch
    assert len(empty) == 0
    assert "language" in empty.score_names


@pytest.mark.parametrize("text", [PYTHON, C, SHELL])
def test_programs_are_programs(text):
    assert detect_code(batch_of(text)).is_code.all()


@pytest.mark.parametrize("text", [ENGLISH, GERMAN, CHINESE, "Dear Sir,\n\nthank you; see (1), [2] and a_b.\n\nYours"])
def test_prose_is_not(text):
    assert not detect_code(batch_of(text)).is_code.any()


NOTICE = """The tenant shall give notice in writing. No dogs, no fires, no camping after dark: the warden comes.
Keys are handed out at the gate (ask for Mary), and the deposit is returned when the hut has been swept."""
POEM = """Over the roof the swallows
go and are gone again,
and someone has left a window
open to wind and rain."""
LIST = """Monday: fish
Tuesday: soup
Wednesday: nothing
bread, two loaves
butter
a dozen eggs
Thursday: ask Paul"""


@pytest.mark.parametrize("change", [str, str.upper, str.title, str.lower])
@pytest.mark.parametrize("text", [NOTICE, POEM, LIST, ENGLISH, "\n".join(NOTICE.split())], ids=range(5))
def test_neither_capitals_nor_short_lines_make_a_program(text: str, change):
    for size in (60, 150, 1000):
        assert not detect_code(batch_of(change(text)[:size])).is_code.any()


RUSSIAN = "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью."
GREEK = "Ολοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα."
FRENCH = "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison."


@pytest.mark.parametrize(("text", "language"), [(NOTICE, "en"), (POEM, "en"), (ENGLISH, "en"), (GERMAN, "de"),
                                                (FRENCH, "fr"), (RUSSIAN, "ru"), (GREEK, "el")])  # fmt: skip
def test_capitals_do_not_change_the_language(text: str, language: str):
    assert languages(Language().process(batch_of(text, text.upper())).batch) == [language, language]


def test_programs_in_capitals_are_programs():
    assert detect_code(batch_of(C.upper())).is_code.all()


COMMENT = "# What this module is about, in some words, and nothing else at all.\n# Another line of it follows.\n"


@pytest.mark.parametrize(
    ("name", "is_code"),
    [
        ("a/b.py", True),
        ("page.html", False),  # the text of a page is called so, too
        ("https://host/b.py", False),  # what a server made
        ("https://www.host.pl", False),
        ("d1", False),
    ],
)
@pytest.mark.parametrize("by_text", [True, False])
def test_a_name_that_only_programs_have_is_believed(name, is_code, by_text):
    for text in (COMMENT, ENGLISH):
        found = detect_code(batch_of(text, ids=[name]), by_text=by_text)
        assert found.is_code.tolist() == [is_code]
        assert found.scores.tolist() == [float(is_code)]
        assert found.languages == ({0: "python"} if is_code else {})


def test_by_names_alone_no_text_is_read():
    texts = (PYTHON, SHELL, PYTHON)
    batch = Language(code="names").process(batch_of(*texts, ids=["d0", "d1", "x.py"])).batch
    assert [language == "code" for language in languages(batch)] == [False, True, True]


def test_without_magika_programs_are_not_told_by_text_and_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "magika", None)
    content_model.cache_clear()
    with pytest.raises(MissingPackageError, match=r"language\.code: true .*`code: names`.*needs the package 'magika'"):
        Language().check()
    assert Language(code="names").check()
    assert Language(code=False).check()


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("src/main.rs", "rust"),
        ("https://host/a/b.PY?x=1#L3", "python"),
        ("lib/x.hpp", "c++"),
        ("CMakeLists.txt", "cmake"),
        ("a/Makefile", "makefile"),
        ("a.b/README", None),
        ("notes.md", None),
        (".py", None),
        ("doc-17", None),
    ],
)
def test_language_of_path(path, language):
    assert language_of_path(path) == language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (SHELL, "shell"),
        ("#!/usr/bin/python3.11 -u\n", "python"),
        ("#!/usr/bin/env -S node --x\n", "javascript"),
        ("#! /bin/sh\n", "shell"),
        ("#!/opt/strange\n", None),
        ("just words here", None),
        ("", None),
    ],
)
def test_language_of_interpreter(text, language):
    assert language_of_interpreter(text.encode()) == language


GO = 'package main\n\nimport (\n\t"fmt"\n)\n\nfunc main() {\n\tx := 1\n\tfmt.Println(x)\n}\n'
MARKDOWN = "# A title\n\nSome *words* of a [page](http://a.b/c).\n\n```\nls -l | wc\n```\n\n* one\n* two `x`\n"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (PYTHON, "python"),
        (SHELL, "shell"),
        (GO, "go"),
        ('{\n  "name": "x",\n  "list": [1, 2],\n  "more": {"a": null}\n}\n', "json"),
        ("body {\n  color: red;\n  margin: 0 auto;\n}\n" * 3, "css"),
        (MARKDOWN, None),
        ("name,size\na,1\nb,2\nc,(3)\nd,[4]\n", None),
        ("x = {}", None),  # too short to tell
        ("", None),
    ],
)
def test_language_of_text(text, language):
    found = language_of_text(text.encode())
    assert (found and found[0]) == language


def test_null_languages_are_null_not_text():
    column = Language().process(batch_of("123")).batch.table.column("language")
    assert column.type == pa.string()
    assert column.null_count == 1
