"""docs/claims.md shows what benchmarks/claims.py computes."""

from pathlib import Path

import claims

PAGE = Path(__file__).parents[3] / "docs" / "claims.md"


def test_the_table_is_current() -> None:
    assert claims.claims_table() in PAGE.read_text(encoding="utf-8"), "run scripts/doc_tables.py"


def test_every_claim_has_a_verdict() -> None:
    assert len({claim.words for claim in claims.CLAIMS}) == len(claims.CLAIMS) >= 24
    for claim in claims.CLAIMS:
        computed, verdict = claim.compute()
        assert any(character.isdigit() for character in computed), claim.words
        assert verdict
