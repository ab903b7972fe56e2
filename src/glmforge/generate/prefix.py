"""Prompts that begin alike share pages: a radix tree over whole pages of tokens.

An edge is a page of token ids, so that a path from the root spells the beginning of a text and names the pages that
hold its keys and values. The tree keeps each of its pages once. A page without other holders stays until room is
needed; then the one that is idle longest goes (`PagePool.longest_idle`). Who holds a page holds the path to it, and
gives it back from its end to its beginning, so the page that is idle longest is always a leaf. Each page of a sequence
is touched when it is found, learned and given back, never for another one's sake: the work is linear in its tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from glmforge.generate.pages import PagePool


@dataclass(eq=False)
class PrefixNode:
    """The end of a path: the tokens of its last page, the page, and where the path comes from."""

    page: int
    parent: "PrefixNode | None"
    tokens: tuple[int, ...]
    children: "dict[tuple[int, ...], PrefixNode]" = field(default_factory=dict)

    def path(self) -> "Iterator[PrefixNode]":
        """From here to the beginning, without the root."""
        node: PrefixNode = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixTree:
    """Pages by the tokens that lead to them."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.pool, self.page_size = pool, page_size
        self._roots: dict[str | None, PrefixNode] = {}
        """Of each adapter, which makes keys and values of its own; None is that of the model without one."""
        self._nodes: dict[int, PrefixNode] = {}
        """By page."""

    def __len__(self) -> int:
        """Number of pages that it holds."""
        return len(self._nodes)

    def pages(self) -> list[int]:
        """The pages that it holds."""
        return list(self._nodes)

    def match(self, tokens: Sequence[int], limit: int, adapter: str | None = None) -> PrefixNode:
        """The end of the longest path that the first `limit` of `tokens` begin with; the caller holds its pages."""
        node = self._roots.setdefault(adapter, PrefixNode(-1, None, ()))
        for start in range(0, limit - self.page_size + 1, self.page_size):
            child = node.children.get(tuple(tokens[start : start + self.page_size]))
            if child is None:
                break
            node = child
            self.pool.hold(node.page)
        return node

    def extend(self, end: PrefixNode, tokens: tuple[int, ...], page: int) -> PrefixNode:
        """The end of the path with these tokens behind `end`; `page` holds them if the tree has no page for them yet.

        The caller holds all pages of the path; where the tree has another page for the tokens, that one takes the
        place of `page`.
        """
        child = end.children.get(tokens)
        if child is None:
            child = end.children[tokens] = self._nodes[page] = PrefixNode(page, end, tokens)
            self.pool.keep(page)
        elif child.page != page:
            self.pool.hold(child.page)
            self.pool.release(page)
        return child

    def reclaim(self) -> bool:
        """Free the page that is idle longest; whether there was one."""
        page = self.pool.longest_idle
        if page is None:
            return False
        node = self._nodes.pop(page)
        assert not node.children, "what follows a page is idle longer than the page"
        assert node.parent is not None
        del node.parent.children[node.tokens]
        self.pool.let_go(page)
        return True

    def clear(self) -> None:
        """Forget everything, as when other weights make other keys."""
        for page in self._nodes:
            self.pool.let_go(page)
        self._nodes.clear()
        self._roots.clear()
