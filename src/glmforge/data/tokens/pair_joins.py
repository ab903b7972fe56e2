"""One merge, carried out: a pair is joined wherever it stands, and the counts of the pairs around it follow.

Words are rows of `rows`, int32 `[bytes, 4]`, each a symbol with its neighbours in the word. What is added up per
symbol lies in `scratch`, which is zero between merges; `touched` lists the symbols that are not.
"""

# mypy: disable-error-code="no-untyped-def"
# Compiled functions have no annotations: numba infers types, and numpy's describe scalars otherwise than it.

from glmforge.data.compiled import non_allocating
from glmforge.data.tokens.pair_queue import COUNT, KEY, NONE, add_pair, find_pair, pair_key

SYMBOL, NEXT, PREVIOUS, WORD = range(4)
"""Columns of `rows`; there is `NONE` where a word ends."""

SCRATCH_ROWS, TOUCHED_ROWS = 8, 4

_MADE, _SWALLOWED = -1, -2  # symbols: made by the merge under way; joined to its left neighbour
_LEFT_WEIGHT, _LEFT_NUMBER, _LEFT_CURSOR, _RIGHT_WEIGHT, _RIGHT_NUMBER, _RIGHT_CURSOR, _LEFT_LOSS, _RIGHT_LOSS = range(
    SCRATCH_ROWS
)


@non_allocating
def join(left, right, candidates, rows, counts, scratch, touched, merged):
    """Join the pair at all its places, runs of one symbol from their start; note what its neighbours lose."""
    size = 0
    for place in candidates:
        if left == right and rows[place, SYMBOL] == left:
            while rows[place, PREVIOUS] != NONE and rows[rows[place, PREVIOUS], SYMBOL] == left:
                place = rows[place, PREVIOUS]
        while place != NONE and rows[place, SYMBOL] == left:
            second = rows[place, NEXT]
            if second == NONE or rows[second, SYMBOL] != right:
                break
            _join_at(place, second, rows, counts, scratch, touched)
            merged[size] = place
            size += 1
            place = rows[place, NEXT] if left == right else NONE
    return size


@non_allocating
def _join_at(place, second, rows, counts, scratch, touched):
    weight = counts[rows[place, WORD]]
    before, after = rows[place, PREVIOUS], rows[second, NEXT]
    if before != NONE and rows[before, SYMBOL] != _MADE:
        _note(scratch[_LEFT_LOSS], touched[2], rows[before, SYMBOL], weight)
    if after != NONE:
        if rows[after, SYMBOL] != _MADE:
            _note(scratch[_RIGHT_LOSS], touched[3], rows[after, SYMBOL], weight)
        rows[after, PREVIOUS] = place
    rows[place, SYMBOL], rows[place, NEXT] = _MADE, after
    rows[second, SYMBOL] = _SWALLOWED


@non_allocating
def _note(values, touched, symbol, weight):
    """Add a weight to a symbol's; the list of symbols that have one has its length at its end."""
    if values[symbol] == 0:
        touched[touched[-1]] = symbol
        touched[-1] += 1
    values[symbol] += weight


@non_allocating
def add_new_pairs(token, places, rows, counts, sizes, pool, table, heap, scratch, touched, min_frequency):
    """Count the pairs that a token makes with its neighbours, and write down where they are."""
    _find_neighbours(token, places, rows, counts, scratch, touched)
    _add_neighbours(token, sizes, table, heap, scratch, touched, min_frequency)
    _write_places(token, places, rows, pool, scratch)
    _clear(scratch, touched)


@non_allocating
def _find_neighbours(token, places, rows, counts, scratch, touched):
    """Add up by symbol how often, and in how many places, it now stands to the left or right of the token."""
    for place in places:
        weight = counts[rows[place, WORD]]
        before, after = rows[place, PREVIOUS], rows[place, NEXT]
        if before != NONE:
            symbol = rows[before, SYMBOL] if rows[before, SYMBOL] != _MADE else token
            _note(scratch[_LEFT_WEIGHT], touched[0], symbol, weight)
            scratch[_LEFT_NUMBER, symbol] += 1
        if after != NONE and rows[after, SYMBOL] != _MADE:  # else it is on the left of the next place
            _note(scratch[_RIGHT_WEIGHT], touched[1], rows[after, SYMBOL], weight)
            scratch[_RIGHT_NUMBER, rows[after, SYMBOL]] += 1


@non_allocating
def _add_neighbours(token, sizes, table, heap, scratch, touched, min_frequency):
    for side in range(2):
        for index in range(touched[side, -1]):
            symbol = touched[side, index]
            key = pair_key(symbol, token) if side == 0 else pair_key(token, symbol)
            weight, number = scratch[_LEFT_WEIGHT + 3 * side, symbol], scratch[_LEFT_NUMBER + 3 * side, symbol]
            start = add_pair(key, weight, number, sizes, table, heap, min_frequency)
            scratch[_LEFT_CURSOR + 3 * side, symbol] = start


@non_allocating
def _write_places(token, places, rows, pool, scratch):
    """Fill the slices; the token takes its place in the words."""
    for place in places:
        before, after = rows[place, PREVIOUS], rows[place, NEXT]
        if before != NONE:
            symbol = rows[before, SYMBOL] if rows[before, SYMBOL] != _MADE else token
            _write(scratch[_LEFT_CURSOR], symbol, before, pool)
        if after != NONE and rows[after, SYMBOL] != _MADE:
            _write(scratch[_RIGHT_CURSOR], rows[after, SYMBOL], place, pool)
    for place in places:
        rows[place, SYMBOL] = token


@non_allocating
def _write(cursors, symbol, place, pool):
    if cursors[symbol] != NONE:
        pool[cursors[symbol]] = place
        cursors[symbol] += 1


@non_allocating
def _clear(scratch, touched):
    for side in range(2):
        for index in range(touched[side, -1]):
            for row in range(3):
                scratch[3 * side + row, touched[side, index]] = 0
        touched[side, -1] = 0


@non_allocating
def subtract_losses(left, right, table, scratch, touched):
    """Pairs whose one half was swallowed occur less often."""
    for side in range(2):
        losses = scratch[_LEFT_LOSS + side]
        for index in range(touched[2 + side, -1]):
            symbol = touched[2 + side, index]
            key = pair_key(symbol, left) if side == 0 else pair_key(right, symbol)
            slot = find_pair(table, key)
            if table[slot, KEY] == key and key != pair_key(left, right):
                table[slot, COUNT] -= losses[symbol]
            losses[symbol] = 0
        touched[2 + side, -1] = 0
