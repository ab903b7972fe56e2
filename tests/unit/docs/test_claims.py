"""Every claim of benchmarks/claims.py, which docs/claims.md shows, is computed and judged."""

import claims


def test_every_claim_has_a_verdict() -> None:
    assert len({claim.words for claim in claims.CLAIMS}) == len(claims.CLAIMS) >= 24
    for claim in claims.CLAIMS:
        computed, verdict = claim.compute()
        assert any(character.isdigit() for character in computed), claim.words
        assert verdict
