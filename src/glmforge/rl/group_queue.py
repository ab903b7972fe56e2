"""A windowed queue of groups, from the request to servers to the step that trains on them.

A step takes the oldest complete groups among the first `window` numbers, counted from the oldest group in flight. Short
answers overtake long ones, but only within the window: otherwise the policy would learn from short answers first. No
group becomes too old, counted in updates of the weights: a step waits for old groups if later steps could not take all
of them in time. The window is MiniMax-M2.5's "windowed FIFO"; the bound on age is ours.

All ranks hold the same queue and tell each other what is complete.
"""

from collections.abc import Iterable


class GroupQueue:
    """See above.

    Args:
        step_size: groups that a step takes.
        window: see above; at least 1.
        max_age: of a group when a step takes it. At least the number of steps that a full queue holds, less 1.

    Attributes:
        begun: number of each group in flight, in ascending order -> version of the weights when it was requested.
        complete: those of them whose answers are all there.
    """

    def __init__(self, step_size: int, window: int, max_age: int) -> None:
        self.step_size, self.window, self.max_age = step_size, max(1, window), max_age
        self.begun: dict[int, int] = {}
        self.complete: set[int] = set()

    def ask(self, numbers: Iterable[int], version: int) -> None:
        """Add groups that are requested under these weights, perhaps again."""
        begun = self.begun | dict.fromkeys(numbers, version)
        self.begun = dict(sorted(begun.items()))
        self.complete.difference_update(numbers)

    def remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.begun.pop(number, None)
            self.complete.discard(number)

    def too_old(self, version: int) -> list[int]:
        """Groups that would be too old even if the step at `version` and all later ones took groups in order."""
        turns = {number: version + place // self.step_size for place, number in enumerate(self.begun)}
        return [number for number, begun in self.begun.items() if begun + self.max_age < turns[number]]

    def take(self, version: int) -> list[int] | None:
        """Remove and return the groups of the step at `version`; None if it has to wait."""
        left, taken = dict(self.begun), list[int]()
        while len(taken) < self.step_size:
            end = min(left, default=0) + self.window
            found = next((number for number in left if number < end and number in self.complete), None)
            if found is None:
                return None
            taken.append(found)
            del left[found]
        latest = (version + 1 + place // self.step_size for place in range(len(left)))
        if any(begun + self.max_age < turn for begun, turn in zip(sorted(left.values()), latest, strict=True)):
            return None
        self.remove(taken)
        return taken
