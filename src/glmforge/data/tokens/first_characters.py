"""Characters whose bytes may be merged before anything else is looked at.

An encoder of Chinese would join the three bytes of every character again and again. For most characters nothing else
can happen to the bytes before; these are taken whole, at once.
"""

# mypy: disable-error-code="no-untyped-def,assignment,call-arg"
# Compiled functions have no annotations: numba infers types, and numpy's describe scalars otherwise than it.

from glmforge.data.bytes_kernels import character_at
from glmforge.data.compiled import non_allocating
from glmforge.data.tokens.encoder_tables import NO_RANK, pair_rank


@non_allocating
def find_first_characters(pairs, merged_ids, spellings, spelling_offsets, pair_ranks, byte_ids, scratch, character_ids):
    """Fill `character_ids` with the characters whose bytes may be merged before anything else.

    These are the characters c for which, of all merges,

    * those that make c of its bytes all come before any that joins c to something, and
    * before any that joins a part of c across its border: something and a beginning of c, an end of c and something.

    Then nothing else can happen to the bytes of c before they are c, and c takes no part in anything before. Merges
    elsewhere are not affected, so that the result is the same as without the short cut.

    A merge crosses a character's border if its right half does not begin with a byte that continues a character.

    Args:
        scratch: int64 `[2, number of tokens]`; changed.
    """
    # Least rank of the merges across borders with a token on that side.
    least_left, least_right = scratch[0], scratch[1]
    least_left[:], least_right[:] = NO_RANK, NO_RANK
    for rank in range(len(pairs)):
        left, right = pairs[rank, 0], pairs[rank, 1]
        if spellings[spelling_offsets[right]] & 0xC0 != 0x80:
            least_left[left] = min(least_left[left], rank)
            least_right[right] = min(least_right[right], rank)
    for token in range(len(spelling_offsets) - 1):
        start, stop = spelling_offsets[token], spelling_offsets[token + 1]
        if start == stop or spellings[start] < 0xC0 or stop - start != 2 + (spellings[start] >= 0xE0):
            continue  # not a character of two or three bytes; part of a longer one is not all of it either
        point, width = character_at(spellings, start, stop)
        if width != stop - start or point >= len(character_ids) or spellings[start] >= 0xF0:
            continue
        if _comes_first(token, spellings, start, stop, merged_ids, pair_ranks, byte_ids, least_left, least_right):
            character_ids[point] = token


@non_allocating
def _comes_first(token, text, start, stop, merged_ids, pair_ranks, byte_ids, least_left, least_right):
    """Whether the bytes of a character merge to its token, and nothing else may happen to them first."""
    first, second = byte_ids[text[start]], byte_ids[text[start + 1]]
    last_rank = pair_rank(pair_ranks, first, second)
    whole = merged_ids[last_rank] if last_rank != NO_RANK else -1
    least = min(least_right[first], least_left[byte_ids[text[stop - 1]]])
    if stop - start == 3:
        third = byte_ids[text[start + 2]]
        other_rank = pair_rank(pair_ranks, second, third)
        if last_rank == NO_RANK and other_rank == NO_RANK:
            return False
        if last_rank <= other_rank:
            least = min(least, least_right[whole])
            final = pair_rank(pair_ranks, whole, third)
        else:
            whole, last_rank = merged_ids[other_rank], other_rank
            least = min(least, least_left[whole])
            final = pair_rank(pair_ranks, first, whole)
        if final == NO_RANK:
            return False
        whole, last_rank = merged_ids[final], max(last_rank, final)
    if whole != token:
        return False
    return last_rank < min(least, least_left[token], least_right[token])
