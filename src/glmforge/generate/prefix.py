"""Prompts that begin alike share pages: a radix tree over whole pages of tokens.

An edge is a page of token ids, so that a path from the root spells the beginning of a text and names the pages that
hold its keys and values. The tree holds each of its pages once. A page that nobody else holds stays until room is
needed; then the one that was used longest ago goes. What follows a page is of no use without it, so a path counts as
used from its end to its beginning: the page used longest ago is always a leaf.
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
        self.root = PrefixNode(-1, None, ())
        self._by_age: dict[int, PrefixNode] = {}  # by page, used longest ago first

    def __len__(self) -> int:
        """Number of pages that it holds."""
        return len(self._by_age)

    def pages(self) -> list[int]:
        """The pages that it holds."""
        return list(self._by_age)

    def match(self, tokens: Sequence[int]) -> PrefixNode:
        """The end of the longest known path that `tokens` begin with; the caller holds its pages."""
        node = self.root
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            child = node.children.get(tuple(tokens[start : start + self.page_size]))
            if child is None:
                break
            node = child
        for held in node.path():
            self.pool.hold(held.page)
        self._use_path(node)
        return node

    def extend(self, end: PrefixNode, tokens: tuple[int, ...], page: int) -> PrefixNode:
        """The end of the path with these tokens behind `end`; `page` holds them if the tree has no page for them yet.

        The caller holds all pages of the path; where the tree has another page for the tokens, that one takes the
        place of `page`.
        """
        child = end.children.get(tokens)
        if child is None:
            child = end.children[tokens] = PrefixNode(page, end, tokens)
            self.pool.keep(page)
        elif child.page != page:
            self.pool.hold(child.page)
            self.pool.release(page)
        self._use_path(child)
        return child

    def reclaim(self) -> bool:
        """Free the page that was used longest ago of those that nobody else holds; whether there was one."""
        for node in list(self._by_age.values()):
            if self.pool.holders(node.page) == 1:
                self._forget(node)
                return True
            self._use_path(node)  # it is in use, though nobody asked the tree for it
        return False

    def clear(self) -> None:
        """Forget everything, as when other weights make other keys."""
        for page in self._by_age:
            self.pool.let_go(page)
        self._by_age.clear()
        self.root = PrefixNode(-1, None, ())

    def _use_path(self, end: PrefixNode) -> None:
        for node in end.path():
            self._by_age.pop(node.page, None)
            self._by_age[node.page] = node

    def _forget(self, node: PrefixNode) -> None:
        assert not node.children, "what follows a page is older than the page"
        assert node.parent is not None
        del node.parent.children[node.tokens]
        del self._by_age[node.page]
        self.pool.let_go(node.page)
