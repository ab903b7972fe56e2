"""The scanner against Python's own HTML parser, on documents as lexbor writes them."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resiliparse.parse.html import HTMLTree

from glmforge_corpus.extract.html import choose as phrases
from glmforge_corpus.extract.html import hints, tags
from glmforge_corpus.extract.html.scan import scan

VOID = {name for name, number in tags.TAG.items() if tags.PROPERTIES[number] & tags.VOID}


class Oracle(HTMLParser):
    """(name or text, depth) of every node in order."""

    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.nodes, self.stack, self.fresh = [], [], True

    def handle_starttag(self, tag, attrs):
        self.nodes.append((tag, len(self.stack)))
        self.fresh = True
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag
        self.fresh = True

    def handle_comment(self, data):
        self.fresh = True

    def handle_decl(self, decl):
        self.fresh = True

    def handle_data(self, data):
        if self.fresh:
            self.nodes.append(("#" + data, len(self.stack)))
        else:
            self.nodes[-1] = (self.nodes[-1][0] + data, self.nodes[-1][1])
        self.fresh = False

    def handle_entityref(self, name):
        self.handle_data(f"&{name};")


def serialise(html):
    return HTMLTree.parse(html).document.html


def scanned(serialised):
    html = np.frombuffer(serialised.encode() + b"\n" * 8, np.uint8)
    nodes = scan(html)
    depth, found = np.zeros(len(nodes.tag), int), []
    for i in range(len(nodes.tag)):
        depth[i] = depth[nodes.parent[i]] + 1 if nodes.parent[i] >= 0 else 0
        inside = [j for j in range(len(nodes.tag)) if is_inside(nodes, j, i)]
        assert nodes.stop[i] == (max(inside) if inside else i) + 1
        if nodes.tag[i] == tags.TEXT:
            found.append(("#" + bytes(html[nodes.begin[i] : nodes.end[i]]).decode(), depth[i]))
        else:
            found.append((tags.NAMES[nodes.tag[i]], depth[i]))
    return found


def is_inside(nodes, j, i):
    while j >= 0:
        j = nodes.parent[j]
        if j == i:
            return True
    return False


PIECES = st.sampled_from(
    ["<div>", "</div>", "<p>", "</p>", "<p class='a \"b\" > c'>", "<br>", "<b>", "</i>", "text", " x > y & z ",
     "<!-- <p> -->", "<table>", "<td>", "<script>if (a<b) '</p>'</script>", "<ul><li>", "&nbsp;", "&lt;b&gt;",
     "<img alt='>'>", "<h2>", "<svg><g/></svg>", "<blockquote>", "<weird-name data-x>", "<style>p{}</style>",
     "<textarea><p></textarea>", "日本"]
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(PIECES, max_size=14))
def test_scan_finds_the_nodes_that_a_parser_finds(pieces):
    serialised = serialise("".join(pieces))
    oracle = Oracle()
    oracle.feed(serialised)
    oracle.close()
    found = scanned(serialised)
    if found and found[-1][0].strip("#\n") == "" and found[-1][1] == 0:
        found.pop()  # the padding
    expected = [(name if name.startswith("#") or name in tags.TAG else "#other", depth) for name, depth in oracle.nodes]
    assert [(name.rstrip("\n"), depth) for name, depth in found] == [(n.rstrip("\n"), d) for n, d in expected]


def reduced(value):
    """A value as the automaton sees it."""
    return "-" + "-".join(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1-\2", value).lower())) + "-"


def expected_hints(value):
    names = [name for name in value.split() if not re.match(rf"({'|'.join(hints.DESCRIBING)})[-_]", name.lower())]
    names = [re.split("(?<=.)(?<=-)-", name)[0] for name in names]  # without modifiers
    text = reduced(" ".join(names))
    bits = 0
    for bit, words in hints.WORDS.items():
        if any(word in text for word in words):
            bits |= bit
    return bits


ALL_WORDS = sorted(word.strip("-") for words in hints.WORDS.values() for word in words)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from([*ALL_WORDS, *hints.DESCRIBING, "x", "wrap", "Nav", "mainNav", "_", "--", "12"]), max_size=5
    ),
    st.sampled_from("- _"),
)
def test_hints_are_the_words_in_class_names(parts, separator):
    value = separator.join(parts)
    html = np.frombuffer(f'<div class="{value}"></div>'.encode() + b"\n" * 8, np.uint8)
    assert scan(html).hint[0] == expected_hints(value)


@pytest.mark.parametrize(
    ("attributes", "bits"),
    [
        ('class="headline"', 0),  # not "-ad-"
        ('class="node-12 category-comments tag_sidebar has-related"', 0),
        ('class="Report__Section--Ads"', 0),
        ('class="print:hidden md:sidebar"', 0),
        ('class="comments"', hints.COMMENTS),
        ('class="post-comments category-news"', hints.COMMENTS | hints.CONTENT),
        ('itemtype="https://schema.org/DiscussionForumPosting"', hints.FORUM),
        ('id="onetrust-consent-sdk"', hints.BOILERPLATE | hints.HIDDEN),
        ('class="ad"', hints.BOILERPLATE),
        ('id="siteNav"', hints.BOILERPLATE),
        ('role="navigation"', hints.BOILERPLATE),
        ('itemprop="articleBody"', hints.ARTICLE | hints.CONTENT),
        ('style="color: red; display:none"', hints.HIDDEN),
        ('style="display: block"', 0),
        ('data-x="sidebar" title="comments"', 0),
        ('aria-hidden="true"', hints.HIDDEN),
        ('aria-hidden="false"', 0),
        ('data-y="1" hidden="" class="sidebar"', hints.HIDDEN | hints.BOILERPLATE),
    ],
)
def test_attributes(attributes, bits):
    html = np.frombuffer(f"<div {attributes}>x</div>".encode() + b"\n" * 8, np.uint8)
    assert scan(html).hint[0] == bits


def is_phrase(text):
    html = np.frombuffer(f"<p>{text}</p>".encode() + b"\n" * 8, np.uint8)
    nodes = scan(html)
    visible = int((html[nodes.begin[1] : nodes.end[1]] > 32).sum())
    drop = np.zeros(len(nodes.tag), np.bool_)
    return bool(phrases.is_set_phrase(html, nodes.tag, nodes.begin, nodes.end, drop, 1, 2, visible, phrases.PHRASES))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Share", True),
        ("  SHARE: ", True),
        ("Share prices fell on Monday.", False),
        ("Read more: the other story", True),
        ("À lire aussi : autre chose", True),
        ("Lesen Sie auch: Katzen", True),
        ("To read more is to live twice.", False),
        ("Read more " + "prose " * 40, False),
        ("© 2020 Somebody", True),
        ("All is well. All rights reserved.", True),
        ("Commentary on a text", False),
    ],
)
def test_set_phrases(text, expected):
    assert is_phrase(text) == expected
