"""Scripts that are written without spaces between words, for whatever cuts text at spaces.

Between two spaces of such a script stands a clause or a whole page, so that anything counted or compared "by word"
sees a handful of them. Every letter of these scripts is then taken for a word of its own. Tibetan is another matter:
it has no spaces either, but a mark after every syllable (`TSHEG`), which separates well enough.

Written with spaces, and so not here: Korean (Hangul), and the scripts of India, Ethiopia and the Middle East.
"""

UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),  # ideographic iteration mark, closing mark, zero
    (0x3040, 0x312F),  # kana, Bopomofo
    (0x31A0, 0x31FF),  # Bopomofo, kana
    (0x3400, 0x4DBF),  # ideographs
    (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF),  # Yi
    (0xA500, 0xA63F),  # Vai
    (0xA980, 0xA9FF),  # Javanese, Burmese
    (0xAA60, 0xAADF),  # Burmese, Tai Viet
    (0xF900, 0xFAFF),  # ideographs
    (0xFF66, 0xFF9F),  # kana of half width
    (0x12000, 0x1254F),  # cuneiform
    (0x13000, 0x1345F),  # hieroglyphs
    (0x17000, 0x18DFF),  # Tangut, Khitan
    (0x1AFF0, 0x1B2FF),  # kana, Nushu
)
"""First and last code points, ascending. All ideographs beyond U+1FFFF belong here, too."""

TSHEG = (0x0F0B, 0x0F0C)
"""Tibetan's marks between syllables."""
