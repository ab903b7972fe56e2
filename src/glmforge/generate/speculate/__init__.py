"""Speculative decoding: a drafter guesses the coming tokens, and one pass of the model checks all guesses at once.

A step with few tokens takes as long as its weights take to read, and most of them are read once for all its tokens (of
the experts, those that each token chooses). So a sequence's next token and some guesses at those behind it
(`Sequence.drafts`) are computed together in less time than one after the other. The logits after the last token and
after each draft come out of the same pass. From them the engine chooses tokens as ever, place by place, until the
chosen one is not the drafted one: what was computed behind it is of no use, and its keys and values are written over.

**A draft is accepted if it is the token that the sampler chooses.** The sampler's draw is a function of the seed, the
sample and the place, not of the drafts, so every request has the very tokens that it has without drafts: greedy or
sampled, under penalties, grammars and stop strings, regardless of the drafter, the load or the number of drafts.

That is our departure from Leviathan et al. (2023, arXiv 2211.17192) and Chen et al. (2023, arXiv 2302.01318), who
accept a draft of probability q with probability min(1, p / q), and draw from what is left of p otherwise. It keeps the
distribution too, and accepts more of the drafts that are drawn from q. But the tokens then depend on what was drafted,
hence on the load, and an answer would no longer be a function of its seed. A drafter that draws with the sampler's own
random numbers gets most of that back (Daliri et al., 2024, arXiv 2408.07978; `sampler.py`).

- `drafter.py`: what a drafter is given, and gives.
- `mtp.py`: the model's own multi-token-prediction layer, its keys and values in the pages of the cache.
- `ngram.py`: what followed the last tokens where they stood before, in the prompt or the answer.
- `speculation.py`: who drafts, how many tokens for whom, and on what pages.
"""
