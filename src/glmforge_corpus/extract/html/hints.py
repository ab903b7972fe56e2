"""What authors tell of an element by its class, id and role: one pass over the bytes through an automaton.

The words below are searched in all attribute values at once (Aho and Corasick, 1975). Before they are compared,
values are reduced to words: letters lower-cased, everything else and each start of a capital in camelCase a
separator. A word in the lists that begins or ends with "-" must begin or end there: "-ad-" is not in "headline".
"""

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

CONTENT: Final = 1
ARTICLE: Final = 2
BOILERPLATE: Final = 4
COMMENTS: Final = 8
HIDDEN: Final = 16
POST: Final = 32
WEAK: Final = 64
FORUM: Final = 128
"""Bits of a hint: looks like content; says that it is the article's text; is around the content, not in it;
readers' comments; not shown; a whole post, whose other names are its categories; often around the content, but also
what page builders call their boxes of text; a forum. BOILERPLATE and HIDDEN together are dialogues of consent."""

# fmt: off
WORDS: Final[dict[int, tuple[str, ...]]] = {
    CONTENT: (
        "-content-", "-main-", "-article", "-post-", "-entry-", "-story", "-text-", "-body-", "-page-", "-blog-",
        "-maincontent-",
    ),
    ARTICLE: (
        "article-body", "articlebody", "article-content", "article-text", "article-main", "articletext",
        "entry-content", "post-content", "post-body", "post-text", "post-entry", "postcontent", "postbody",
        "story-body", "story-content", "storybody", "storytext", "story-text", "body-text", "bodytext",
        "content-body", "field-name-body", "field-body", "text-formatted", "-e-content-", "article-wrap",
        "single-content", "page-content", "blog-content", "news-text", "newstext", "artikeltext", "artikel-text",
    ),
    BOILERPLATE: (
        "-nav-", "navbar", "-navi-", "navigation", "-menu-", "submenu", "-menue-", "sidebar", "-side-bar-", "footer",
        "-foot-", "breadcrumb", "-crumb", "-share", "-sharing", "-social", "-shariff", "addtoany", "sharedaddy",
        "addthis", "-related", "-relatedposts", "-recommend", "-similar", "newsletter", "-subscri", "-signup",
        "-sign-up-", "-login", "-register-", "-popup", "-modal-", "-overlay-", "-advert", "-ad-", "-ads-", "-adsense",
        "-sponsor", "-promo", "-banner", "-pagination", "-paging-", "-pager-", "-pagenav", "-postnav", "-tags-",
        "-tag-list-", "-tag-links-", "-tagcloud-", "-tagged", "-post-tags-", "-cat-links-", "-byline", "-author",
        "-postmeta", "-entry-meta-", "-postmetadata-", "-post-info-", "-dateline", "-timestamp-", "-toolbar",
        "-skiplink", "-outbrain", "-taboola", "-ticker", "-most-read", "-mostread", "-most-popular", "-trending",
        "-more-from", "-copyright", "-disclaimer", "-complementary-", "-contentinfo-", "-role-search-",
        "-jp-relatedposts-", "-post-navigation-", "-photo-credit", "-copy-right", "-donat", "-mw-editsection-",
        "-navbox", "-catlinks-", "-reflist", "-topbar", "-gallery-nav-", "-video-player-", "-next-post", "-prev-post",
        "-previous-post", "-sociable", "-viral", "-syndication", "-user-info-", "-user-profile-", "-paid-content",
        "-infinite-scroll", "-blurred-", "-anzeige", "-werbung", "-kommentar", "-verwandt", "-teilen-", "-follow",
        "-cta-",
    ),
    WEAK: (
        "-widget", "-embed", "-expand", "-options-", "-infos-", "-slider", "-carousel", "-print-", "-search",
        "-attachment", "-hide-", "-premium-", "-skip-", "-rating", "-ratings-", "-wp-caption", "-caption",
        "-bildunterschrift-", "-credit", "-credits-", "-tooltip", "-dropdown", "-meta-", "-metadata-", "-masthead-",
        "-playlist", "-more-on-", "-next-", "-read-more-", "-readmore", "-button-", "-buttons-", "-noprint-",
        "-no-print-", "-infobox", "-feedback-", "-paywall", "-toc-", "-legal-", "-suggest", "-stories-",
    ),
    FORUM: (
        "-topic-", "-thread-", "-forum", "-discussion-forum-posting-", "-qapage-", "-ips-app-", "messagelist",
        "-phpbb", "-vbulletin", "-discourse-", "viewtopic", "showthread", "-discussion-",
    ),
    COMMENTS: (
        "-comment-", "-comments-", "commentlist", "comment-list", "comments-area", "-respond-", "-disqus", "-reply-",
        "-replies-", "-trackback", "-pingback", "-commentform", "-comment-form", "-kommentare-", "-comentarios-",
        "-fb-comments",
    ),
    POST: ("-hentry-", "-h-entry-", "-type-post-", "-type-page-", "-blog-post-", "-blogposting-", "-newsarticle-"),
    HIDDEN: ("-screen-reader", "-sr-only-"),
    BOILERPLATE | HIDDEN: (
        "cookie", "-consent", "-gdpr-", "onetrust", "usercentrics", "didomi", "-dialog-", "-alertdialog-",
    ),
}
DESCRIBING: Final = ("category", "tag", "tax", "has", "no", "not", "with", "without")
"""First words of names that tell what an element is about or has, not what it is: "category-comments"."""

STYLE_WORDS: Final[dict[int, tuple[str, ...]]] = {HIDDEN: ("-display-none-", "-visibility-hidden-")}
# fmt: on

SEPARATOR: Final = 26
_SYMBOLS: Final = 27


def _symbols() -> NDArray[np.uint8]:
    """Byte -> letter 0..25 or separator; digits separate, too ("h1-sidebar2")."""
    table = np.full(256, SEPARATOR, np.uint8)
    for letter in range(26):
        table[ord("a") + letter] = table[ord("A") + letter] = letter
    return table


SYMBOLS: Final = _symbols()


def _padded(words: tuple[str, ...]) -> NDArray[np.uint8]:
    """`[n, longest + 1]`, zeros after each word."""
    table = np.zeros((len(words), max(map(len, words)) + 1), np.uint8)
    for row, word in zip(table, words, strict=True):
        row[: len(word)] = np.frombuffer(word.encode(), np.uint8)
    return table


DESCRIBING_WORDS: Final = _padded(DESCRIBING)


def automaton(words: dict[int, tuple[str, ...]]) -> tuple[NDArray[np.uint16], NDArray[np.uint8], NDArray[np.int64]]:
    """Of all states: transitions `[states, 27]`, bits of the words that end there, symbols of a word read so far."""
    children: list[dict[int, int]] = [{}]
    bits, depths = [0], [0]
    for bit, group in words.items():
        for word in group:
            state = 0
            for depth, byte in enumerate(word.encode(), start=1):
                state = children[state].setdefault(int(SYMBOLS[byte]), len(children))
                if state == len(children):
                    children.append({})
                    bits.append(0)
                    depths.append(depth)
            bits[state] |= bit
    transitions = np.zeros((len(children), _SYMBOLS), np.uint16)
    fail = [0] * len(children)
    queue = deque([0])
    while queue:
        state = queue.popleft()
        bits[state] |= bits[fail[state]]
        for symbol in range(_SYMBOLS):
            child = children[state].get(symbol)
            back = int(transitions[fail[state], symbol]) if state else 0
            transitions[state, symbol] = back if child is None else child
            if child is not None:
                fail[child] = back
                queue.append(child)
    return transitions, np.array(bits, np.uint8), np.array(depths)


TRANSITIONS, ENDS, _ = automaton(WORDS)
STYLE_TRANSITIONS, STYLE_ENDS, _ = automaton(STYLE_WORDS)
