"""Pages to text: what is kept, what is left out, and in what form."""

import pytest

from glmforge_corpus.extract.html.page import decode, read_page

PROSE = "The river rose in the night, and by morning the lower road was gone; nobody had heard it go. "


def text_of(body, head=""):
    return read_page(f"<html><head>{head}</head><body>{body}</body></html>".encode()).text.decode()


def article(inner):
    around = "<nav><a href=/>Home</a> <a href=/x>News</a></nav>", "<footer>Imprint of us</footer>"
    return f"{around[0]}<article>{inner}<p>{PROSE * 2}</p></article>{around[1]}"


def test_main_text_without_what_is_around_it():
    links = "".join(f"<li><a href=/{i}>Another story of the week</a></li>" for i in range(30))
    page = f"""<div class="site-header"><ul>{links}</ul></div>
    <div id="wrap"><div class="col"><h1>Flood</h1><p>{PROSE}</p><p>{PROSE}</p><div class="share-buttons">
    Tell your friends</div><p>{PROSE}</p></div><div class="sidebar">
    <p>Buy our cheap umbrellas, they are very good, all of them.</p></div></div>
    <div id="comments"><p>What a flood that was, I remember it, said a reader of ours at great length.</p></div>
    <footer><p>Imprint, contact, and all the other things that nobody reads down here.</p></footer>"""
    paragraph = PROSE.strip()
    assert text_of(page) == f"# Flood\n\n{paragraph}\n\n{paragraph}\n\n{paragraph}"


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("<h2>Title</h2><h3>Part</h3>", "## Title\n\n### Part"),
        ("<ul><li>one</li><li>two<ul><li>deep</li></ul></li></ul>", "- one\n- two\n  - deep"),
        ("<ol><li>one</li><li>two</li></ol>", "1. one\n2. two"),
        ("<pre>def f():\n    return 1</pre>", "```\ndef f():\n    return 1\n```"),
        ("<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>", "a | b\n1 | 2"),
        ("<p>line<br>break</p>", "line\nbreak"),
        ("<p>a <b>bold</b>\n  <i>word</i>, &lt;tag&gt; &amp; more&nbsp;here</p>", "a bold word, <tag> & more here"),
        ("<p>seen <span hidden>unseen</span><script>var x</script>again</p>", "seen again"),
        (
            "<div>loose text, of some length, in a box of its own</div>",
            "loose text, of some length, in a box of its own",
        ),
    ],
)
def test_form_of_elements(inner, expected):
    assert text_of(article(inner)) == f"{expected}\n\n{(PROSE * 2).strip()}"


def test_heading_that_nothing_follows_is_left_out():
    body = f"<article><h1>A</h1><p>{PROSE * 2}</p><h2>Empty</h2><h2>B</h2><p>{PROSE}</p><h3>Last</h3></article>"
    assert [line for line in text_of(body).splitlines() if line.startswith("#")] == ["# A", "## B"]


def test_element_that_holds_most_of_the_prose_stays_whatever_it_is_called():
    assert PROSE.strip() in text_of(f'<div class="page-with-sidebar"><p>{PROSE * 3}</p></div>')


def test_short_page_is_read():
    assert text_of('<div class="entry-content">Closed on Sundays, open on all other days of the week from nine.</div>')


@pytest.mark.parametrize(
    "page", [b"", b"<html></html>", b"<p></p>", b"\0\0\0", b"<" * 1000, b"<div>" * 30_000, b"&", b"</p>" * 100]
)
def test_pages_of_nothing(page):
    assert read_page(page).text.strip(b"<\x00& ") == b""


def test_text_is_always_utf8():
    for page in (
        b"<p>\xff\xfe bytes that mean nothing, repeated</p>" * 20,
        b"<meta charset=nonsense><p>\xe4\xf6</p>",
        b"<p>&#xD800;</p>",
    ):
        read_page(page, "no-such-charset").text.decode()


@pytest.mark.parametrize(
    ("data", "charset", "expected"),
    [
        ("für".encode(), None, "für"),
        ("für".encode(), "iso-8859-1", "für"),  # valid UTF-8 outdoes what the server says
        ("für".encode("latin-1"), "iso-8859-1", "für"),
        ("<meta charset=windows-1251>привет".encode("cp1251"), None, "привет"),
        ("привет, как дела".encode("cp1251"), "windows-1251", "привет, как дела"),
        (b"\xef\xbb\xbfmark", None, "mark"),
        ("日本語のテキスト".encode("euc-jp"), "EUC-JP", "日本語のテキスト"),
    ],
)
def test_characters(data, charset, expected):
    assert decode(data, charset).endswith(expected)


def test_title_and_language():
    page = read_page(b'<html lang="de-AT"><head><title> Ein\n Titel </title></head><body>x</body></html>')
    assert (page.title, page.language) == ("Ein Titel", "de")
    assert read_page(b"<p>x").language is None


THREAD = "".join(f'<div class="comment"><p>Answer {i}: {PROSE}</p></div>' for i in range(9))


@pytest.mark.parametrize(
    "page",
    [
        '<article class="post category-comments tag-newsletter hentry">{}</article>',
        '<article class="internet-estallido-comentarios">{}</article>',
        '<div class="TestReport__Section TestReport__Section--Ads">{}</div>',
        '<div class="elementor-widget-container">{}</div>',
        '<section class="slider-wrap"><div class="widget_text">{}</div></section>',
        '<div class="hide-mobile print:hidden">{}</div>',
        '<div role="tabpanel" style="display:none">{}</div>',
        '<div id="content" class="page-with-comments">{}</div>',
    ],
)
def test_an_article_stays_whatever_its_names_say_beside_what_it_is(page):
    text = text_of(page.format(f"<h1>Flood</h1><p>{PROSE * 3}</p><p>{PROSE * 2}</p>"))
    assert text.count("The river rose") == 5


def test_dialogues_of_consent_are_left_out_even_if_they_are_most_of_the_page():
    dialogue = f'<div id="onetrust-consent-sdk"><h2>Privacy</h2><p>{"We use cookies for many things. " * 30}</p></div>'
    text = text_of(f"{dialogue}<article><p>{PROSE * 4}</p></article>")
    assert text == (PROSE * 4).strip()


@pytest.mark.parametrize(
    "head",
    [
        '<script type="application/ld+json">{"@type": "DiscussionForumPosting"}</script>',
        '<script type="application/ld+json">{"@type":"QAPage"}</script>',
    ],
)
def test_comments_are_the_text_of_a_page_that_says_it_is_a_discussion(head):
    question = f'<div class="question"><p>{PROSE * 12}</p></div>'
    assert text_of(question + THREAD, head).count("Answer") == 9
    assert text_of(question + THREAD).count("Answer") == 0


@pytest.mark.parametrize(
    "page",
    [
        f'<div class="forum-thread"><h1>Flood</h1>{THREAD}</div>',
        f'<h1>Flood</h1><div class="wrap">{THREAD}</div>',
    ],
)
def test_comments_are_the_text_of_a_page_that_has_no_other(page):
    assert text_of(page).count("Answer") == 9


def test_a_page_of_which_hardly_anything_would_be_left_is_looked_at_without_believing_its_names():
    steps = "".join(f'<div class="promo-item"><p>Step {i}: {PROSE}</p></div>' for i in range(24))
    teaser = f'<div class="intro"><p>{"Our letter brings you more of this every week, free of charge. " * 3}</p></div>'
    assert text_of(teaser + steps).count("Step") == 24


def test_captions_are_text_where_there_is_nothing_else():
    figures = "".join(f"<figure><img><figcaption>Picture {i}. {PROSE}</figcaption></figure>" for i in range(5))
    assert text_of(f"<article><h1>Gallery</h1>{figures}</article>").count("Picture") == 5


def test_list_of_ingredients_does_not_count_against_a_recipe():
    ingredients = "".join(f"<li>{i} cups of flour</li>" for i in range(1, 30))
    page = f"<main><ul>{ingredients}</ul><div class=steps><p>{PROSE * 2}</p></div></main>"
    assert text_of(page).count("cups of flour") == 29


def test_recall_first_keeps_all_running_text_and_the_comments():
    body = f"""<nav><a href=/>Home</a></nav><article><p>{PROSE * 12}</p></article>
    <div class="author-box"><p>The author lives by the river and has written of it ever since.</p></div>{THREAD}"""
    assert text_of(body).count("Answer") == 0
    text = read_page(f"<body>{body}</body>".encode(), recall_first=True).text.decode()
    assert text.count("Answer") == 9
    assert "lives by the river" in text
    assert "Home" not in text
