"""Removal of boilerplate lines: what goes, what stays, and what the text then is."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.data.documents.batch import DocumentBatch, concatenate
from glmforge_corpus.filter import boilerplate_kernel as kernel
from glmforge_corpus.filter.boilerplate import PHRASES, RULES, Boilerplate

PROSE = "The harbour lay quiet in the morning, and nobody was about but an old man with his dog."
MORE = "He had come there every day of his life, he said, and never seen such a thing before."


def clean(*texts: str, languages: list[str | None] | None = None, **options):
    ids = [f"d{i}" for i in range(len(texts))]
    return Boilerplate(**options).process(DocumentBatch.from_columns(ids, texts, "test", languages=languages))


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("We use cookies to give you the best experience on our website.", "cookies"),
        ("Мы используем файлы cookie", "cookies"),
        ("本网站使用 Cookie 改善体验", "cookies"),
        ("Please enable JavaScript to view the comments powered by Disqus.", "scripts"),
        ("您的浏览器不支持 JavaScript", "scripts"),
        ("Log in / Register", "account"),
        ("忘记密码?\n登录", "account"),
        ("Share this article on Facebook", "sharing"),
        ("Teilen\nTwittern", "sharing"),
        ("» Follow us on Twitter «", "sharing"),
        ("© 2019 Some Company", "copyright"),
        ("All Rights Reserved.", "copyright"),
        ("版权所有：某某公司", "copyright"),
        ("Skip to main content", "navigation"),
        ("返回顶部\n上一篇", "navigation"),
        ("Home | News | About | Contact", "navigation"),
        ("コメントを残す", "navigation"),
        ("[Read more...]", "continuation"),
        ("→ Weiterlesen\nmehr erfahren", "continuation"),
        ("12 Comments", "counters"),
        ("1.2k views", "counters"),
        ("阅读(1234)", "counters"),
    ],
)
def test_boilerplate_goes_by_its_rule(line, rule):
    outcome = clean(f"{PROSE}\n{line}\n{MORE}")
    assert outcome.batch.texts == [f"{PROSE}\n{MORE}"]
    assert outcome.counts[f"boilerplate: {rule} lines"] == line.count("\n") + 1
    assert sum(outcome.counts.values()) == line.count("\n") + 1


@pytest.mark.parametrize(
    "line",
    [
        PROSE,
        "Search",  # a word alone is a heading
        "打印",
        "She said she would share the cookies with everyone who came to the party.",
        "JavaScript is a language that browsers have understood since 1995.",
        "Home is where the heart is",
        "1. Comment",
        "| Offset | Length | Value |",
        "cat words | sort | uniq -c",
        "Read more slowly than you are used to, and you will see what he means.",
        "The lawyers argued that all rights reserved under the treaty had lapsed." + " It went on." * 30,
        "Копирайт и авторское право",
        "他在首页上看到了这条新闻，很快就打电话给我们。",
    ],
)
def test_prose_stays(line):
    text = f"{MORE}\n{line}\n{PROSE}\n"
    outcome = clean(text)
    assert outcome.batch.texts == [text]
    assert not any(outcome.counts.values())


def test_wrapped_lines_stay():
    text = "This option is described in the manual of the library itself; see there for\nmore information\nor ask.\n"
    assert clean(text).batch.texts == [text]


MENU = "\n".join(["Home", "World News", "Local Sports", "Weather", "Business", "Opinion", "Fine Arts", "Travel"])


def test_menus_of_enough_lines_go():
    outcome = clean(f"{PROSE}\n{MENU}\n{MORE}", f"{PROSE}\n{MENU[: MENU.rindex(chr(10))]}\n{MORE}")
    assert outcome.batch.texts[0] == f"{PROSE}\n{MORE}"
    assert "World News" in outcome.batch.texts[1]
    assert clean(MENU, menu_lines=9).counts["boilerplate: menus lines"] == 0


@pytest.mark.parametrize(
    "lines",
    [
        ["Roses are red,", "Violets are blue,"] * 5,  # verse ends in commas
        ["First item", "", "Second item", ""] * 6,  # cells of a table
        ["alpha beta", "gamma delta"] * 6,
        ["Name  Size", "File  12"] * 6,
        ["x = 1", "y = 2"] * 6,
        ["吃饭了吗？", "还没有呢。"] * 5,
    ],
)
def test_what_only_looks_like_a_menu_stays(lines):
    text = "\n".join(lines) + f"\n{PROSE}\n"
    assert clean(text).batch.texts == [text]


def test_a_menu_does_not_reach_over_documents():
    half = "\n".join(MENU.split("\n")[1:6])
    assert clean(half, half).batch.texts == [half, half]


def test_programs_pass():
    assert clean("All rights reserved.\nx\n", languages=["code"]).batch.texts == ["All rights reserved.\nx\n"]


def test_nothing_left_and_little_left():
    outcome = clean("Skip to content\n© 2020 A", f"{PROSE}\n{MENU}", PROSE, min_kept=0.8)
    assert outcome.failed["boilerplate: nothing else"].tolist() == [True, False, False]
    assert outcome.failed["boilerplate: little else"].tolist() == [True, True, False]


def test_rules_can_be_chosen():
    text = f"Skip to content\n{PROSE}\nRead more"
    assert clean(text, rules=("continuation",)).batch.texts == [f"Skip to content\n{PROSE}"]
    assert clean(text, rules=()).batch.texts == [text]
    with pytest.raises(ValueError, match="menu_line"):
        Boilerplate.model_validate({"menu_line": 3})


def test_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="cokies"):
        Boilerplate(rules=("cokies",))


def test_empty_lines_around_what_goes():
    text = f"Skip to content\n\n{PROSE}\n\nRead more\n\n\n{MORE}\n\nAll rights reserved\n\n"
    assert clean(text).batch.texts == [f"{PROSE}\n\n{MORE}"]


def test_long_lines_are_not_looked_at():
    line = "We use cookies to " + "improve it and " * 30
    assert clean(f"{PROSE}\n{line}").batch.texts == [f"{PROSE}\n{line}"]
    assert clean(f"{PROSE}\n{line}", max_line=1000).batch.texts == [PROSE]


LINES = [
    PROSE, MORE, "Read more", "Search", "Login", "", " ", "World News", "Sport", "© 2020 X", "好的。", "首页",
    "a | b", "|",
]  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(LINES), max_size=14), min_size=1, max_size=5), st.booleans())
@settings(max_examples=200, deadline=None)
def test_what_stays_are_lines_of_the_text_in_order_whatever_the_batches(documents, ends):
    texts = ["\n".join(lines) + "\n" * ends for lines in documents]
    outcome = clean(*texts)
    single = concatenate([clean(text).batch for text in texts])
    assert outcome.batch.texts == single.texts
    for text, kept in zip(texts, outcome.batch.texts, strict=True):
        rest = iter(text.split("\n"))
        assert kept == "" or all(line.rstrip() in map(str.rstrip, rest) for line in kept.split("\n"))
    again = Boilerplate().process(outcome.batch)
    assert [bool(text) for text in again.batch.texts] <= [True] * len(texts)


@given(st.text(alphabet=" \t*|»→·.!-–a首©é", max_size=20))
@settings(max_examples=300, deadline=None)
def test_trimming(text):
    data = text.encode()
    start, stop = kernel.trim_line(np.frombuffer(data, np.uint8), 0, len(data))
    if re.match(r"[ \t]*\|.*\|", text):
        assert start == stop
        return
    assert data[start:stop].decode().strip(" \t*|»→·.!-–") == text.strip(" \t*|»→·.!-–")


def test_lists_name_known_rules_and_compile_one_by_one():
    for table in PHRASES.values():
        assert set(table) < set(RULES)
        for phrases in table.values():
            for pattern in phrases.values():
                re.compile(pattern)
                assert pattern.isprintable()  # an escape such as \b, not what Python makes of it
