"""The pages of sequences: given when tokens are to be computed, taken back at the end or for others.

The number of pages is fixed, so memory never exceeds its budget. `check` says whether all of them are accounted for.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from glmforge.generate.pages import PagePool
from glmforge.generate.prefix import PrefixTree
from glmforge.generate.sequence import Sequence


class CacheMemory:
    """`num_pages` pages of `page_size` tokens; with `share_prefixes` sequences that begin alike share them."""

    def __init__(self, num_pages: int, page_size: int, *, share_prefixes: bool = True) -> None:
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.tree = PrefixTree(self.pool, page_size)
        self.share_prefixes = share_prefixes

    @property
    def num_tokens(self) -> int:
        """Of one sequence that has all pages."""
        return self.pool.num_pages * self.page_size

    @property
    def num_used(self) -> int:
        """Pages that sequences hold or the tree keeps."""
        return self.pool.num_pages - self.pool.num_free

    @property
    def share_held(self) -> float:
        """Of all pages, the share that sequences hold."""
        return (self.num_used - self.pool.num_idle) / self.pool.num_pages

    @property
    def num_available(self) -> int:
        """Pages that are free or could be at once."""
        return self.pool.num_free + self.pool.num_idle

    def num_needed(self, num_tokens: int) -> int:
        """Pages for this many tokens of one sequence."""
        return -(-num_tokens // self.page_size)

    def begin(self, sequence: Sequence) -> None:
        """Give a sequence without pages those that hold its beginning.

        At least its last token is left to be computed: the next one is chosen from what the model says after it. So is
        what the request asks for besides tokens.
        """
        assert not sequence.pages, "it has begun"
        if not self.share_prefixes:
            return
        sequence.shared = self.tree.match(sequence.tokens, sequence.num_skippable, sequence.request.adapter)
        sequence.pages = [node.page for node in sequence.shared.path()][::-1]
        sequence.num_shared = len(sequence.pages)
        sequence.num_cached = len(sequence.pages) * self.page_size

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give it pages for its first `num_tokens` tokens, from what is free or only kept; whether there was enough.

        What it got is its own either way.
        """
        while len(sequence.pages) < self.num_needed(num_tokens):
            if self.pool.num_free == 0 and not self.tree.reclaim():
                return False
            sequence.pages.append(self.pool.take())
        return True

    def trim(self, sequence: Sequence) -> None:
        """Take back the pages behind its last token and drafts."""
        while len(sequence.pages) > self.num_needed(len(sequence.tokens) + len(sequence.drafts)):
            self.pool.release(sequence.pages.pop())

    def learn(self, sequence: Sequence) -> None:
        """Let others find the pages that have been filled since."""
        if sequence.shared is None:
            return
        size = self.page_size
        for number in range(sequence.num_shared, sequence.num_cached // size):
            tokens = tuple(sequence.tokens[number * size : (number + 1) * size])
            sequence.shared = self.tree.extend(sequence.shared, tokens, sequence.pages[number])
            sequence.pages[number] = sequence.shared.page
            sequence.num_shared = number + 1

    def fork(self, first: Sequence, sequence: Sequence, copy_page: Callable[[int, int], None]) -> bool:
        """Give a sequence all that `first` has computed: whole pages are shared, the last one is copied.

        Whether there was a page for the copy; it has what it got either way.
        """
        num_whole = first.num_cached // self.page_size
        for page in first.pages[:num_whole]:
            self.pool.hold(page)
        sequence.pages, sequence.num_cached = first.pages[:num_whole], num_whole * self.page_size
        sequence.shared, sequence.num_shared = first.shared, first.num_shared
        if first.num_cached == sequence.num_cached:
            return True
        if not self.grow(sequence, first.num_cached):
            return False
        copy_page(first.pages[num_whole], sequence.pages[num_whole])
        sequence.num_cached = first.num_cached
        return True

    def end(self, sequence: Sequence) -> None:
        """Take its pages back; the tree keeps those that it has learned."""
        for page in reversed(sequence.pages):
            self.pool.release(page)
        sequence.pages, sequence.num_cached, sequence.num_shared, sequence.shared = [], 0, 0, None

    def forget_prefixes(self, sequences: Iterable[Sequence]) -> None:
        """Hides the present contents from new sequences; `sequences` keep what they hold."""
        self.tree.clear()
        for sequence in sequences:
            sequence.shared = None

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raise `AssertionError` unless every page is free or held by just these sequences and the tree."""
        holders = Counter(self.tree.pages())
        for sequence in sequences:
            holders.update(sequence.pages)
            assert sequence.num_cached <= len(sequence.pages) * self.page_size, "keys without a page"
        self.pool.check(holders)
