import numpy as np

from glmforge.data.documents.document import Document
from glmforge.data.tokens.fertility import fertility_page, fertility_table, measure_fertility, vocabulary_table

TEXTS = ["the smith's hammer", "  Größe\n你好 ", "🙂", "begins where another ends"]


def test_counts(tokenizer):
    corpora = [("one", [Document(str(i), text, "") for i, text in enumerate(TEXTS)]), ("two", [Document("x", "a", "")])]
    report = measure_fertility(tokenizer, corpora, "small")
    one, ids = report.languages["one"], [tokenizer.encode(text) for text in TEXTS]
    assert one.documents == len(TEXTS)
    assert one.bytes == sum(len(text.encode()) for text in TEXTS)
    assert one.characters == sum(map(len, TEXTS))
    assert one.words == sum(len(text.split()) for text in TEXTS)
    assert one.tokens == sum(map(len, ids))
    spelt = [tokenizer.id_to_token(index) for part in ids for index in part]
    assert one.single_byte == sum(len(token) == 1 for token in spelt)
    assert one.partial == sum("\ufffd" in tokenizer.decode([index]) for part in ids for index in part)
    assert report.languages["total"].tokens == one.tokens + 1
    used = {index for part in ids for index in part} | set(tokenizer.encode("a"))
    assert report.unused == tokenizer.vocab_size - 36 - len(used)
    assert "".join(report.probes["3.14159"]) == "3.14159"


def test_tables_and_page(tokenizer):
    report, other = (measure_fertility(tokenizer, [("<a>", [Document("x", "a b", "")])], name) for name in "st")
    assert [row[0] for row in fertility_table([report, other])] == ["language", "<a>", "", "total", ""]
    assert len({len(row) for row in vocabulary_table([report])}) == 1
    page = fertility_page([report]).decode()
    assert "&lt;a&gt;" in page
    assert "<a>" not in page
    assert np.isfinite(report.to_json()["languages"]["<a>"]["bytes_per_token"])
