"""The pages of the key/value cache: who holds which, and what is free.

A page has room for `page_size` tokens of one sequence in every layer. Sequences that begin alike share pages, and the
prefix tree holds on to pages that are unused at present, so a page has a number of holders; it is free when it has
none. What lies in a page is the runner's business.
"""

from collections import OrderedDict


class OutOfPagesError(Exception):
    """There is no free page. The scheduler makes room, or refuses the request beforehand: users never see this."""


class PagePool:
    """Numbers of pages, 0 to `num_pages` - 1, and how many hold each."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._holders = [0] * num_pages
        self._kept = [False] * num_pages
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Pages that are only kept, idle longest first. A plain dict would take ever longer to find its first one."""
        self._free = list(range(num_pages))[::-1]

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Pages that are only kept, and could be freed."""
        return len(self._idle)

    @property
    def longest_idle(self) -> int | None:
        """The page that has only been kept for the longest time, if there is one."""
        return next(iter(self._idle), None)

    def take(self) -> int:
        """A free page, held once. Raises `OutOfPagesError`."""
        if not self._free:
            raise OutOfPagesError
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more holder of a page that has one."""
        assert self._holders[page] > 0, f"page {page} is free"
        self._holders[page] += 1
        self._idle.pop(page, None)

    def release(self, page: int) -> None:
        """One holder less; the last one frees the page."""
        assert self._holders[page] > 0, f"page {page} is free"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            self._free.append(page)
        elif self._holders[page] == 1 and self._kept[page]:
            self._idle[page] = None

    def keep(self, page: int) -> None:
        """One more holder, who keeps it for those who may come, until `let_go`."""
        self.hold(page)
        self._kept[page] = True

    def let_go(self, page: int) -> None:
        """The end of `keep`."""
        assert self._kept[page], f"page {page} is not kept"
        self._kept[page] = False
        self._idle.pop(page, None)
        self.release(page)

    def check(self, holders: dict[int, int]) -> None:
        """Raise `AssertionError` unless the pages are held as often as `holders` says, and all others are free."""
        for page, number in enumerate(self._holders):
            assert number == holders.get(page, 0), f"page {page}: held {number} times, not {holders.get(page, 0)}"
        idle = [page for page, number in enumerate(self._holders) if number == 1 and self._kept[page]]
        assert sorted(self._idle) == idle
        assert sorted(self._free) == [page for page, number in enumerate(self._holders) if number == 0]
