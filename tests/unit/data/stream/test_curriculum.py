import json
from collections import Counter

import pytest

from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.errors import CheckpointError, DataError
from helpers.stream_runs import stream_config

EVEN = {"web": {"weight": 1}, "code": {"weight": 1}}


def rows(curriculum, phase, samples, consumed=None):
    """(source, row) of samples of a phase; rows know each other by their first id."""
    stream = curriculum.stream(phase, consumed or {})
    return [(place.source, place.row) for place in stream.locate(samples)]


def resumed(curriculum, changed, consumed):
    """`changed` after it has taken up what `curriculum` wrote, as a checkpoint would bring it; and its words."""
    return changed, changed.load_state_dict(json.loads(json.dumps(curriculum.state_dict())), consumed)


# Phases


def test_a_later_phase_goes_on_in_the_same_epoch(make_curriculum):
    """Three phases of 12 samples of web alone: no row comes again before all 25 have come."""
    curriculum = make_curriculum([{"steps": 3}] * 3, ["web"])
    consumed, drawn = {}, []
    for phase in range(3):
        drawn += rows(curriculum, phase, range(12), consumed)
        consumed[f"phase{phase}"] = 12
    assert len(set(drawn[:25])) == 25
    one_phase = make_curriculum([{"steps": 9}], ["web"])
    assert drawn == rows(one_phase, 0, range(36))


def test_weights_of_phases_draw_on_from_each_source(make_curriculum):
    """16 + 16 samples: 8 of web, then 12 of it, and code the rest; each source's rows all differ."""
    curriculum = make_curriculum([{"steps": 4, "sources": {"web": 1, "code": 1}}, {"steps": 4, "sources": {"web": 3}}])
    drawn = rows(curriculum, 0, range(16)) + rows(curriculum, 1, range(16), {"phase0": 16})
    counts = Counter(source for source, _ in drawn)
    assert counts == {"web": 24, "code": 8}
    assert len(set(drawn)) == 32


@pytest.mark.parametrize("change", [{"seq_len": 4}, {"packing": "best_fit"}])
def test_another_rule_begins_an_order_of_its_own(make_curriculum, change):
    curriculum = make_curriculum([{"steps": 3}, {"steps": 3, **change}, {"steps": 3}], ["web"])
    first = rows(curriculum, 0, range(12))
    other = curriculum.stream(1, {"phase0": 12}).record
    assert other.entries[0].begin == {"web": 0}
    third = rows(curriculum, 2, range(12), {"phase0": 12, "phase1": 12})
    assert not set(first) & set(third)


def test_a_phase_that_ran_longer_than_planned_has_drawn_what_it_consumed(make_curriculum):
    curriculum = make_curriculum([{"steps": 3}] * 2, ["web"])
    rows(curriculum, 0, range(12))
    one_phase = make_curriculum([{"steps": 9}], ["web"])
    assert rows(curriculum, 1, range(3), {"phase0": 14}) == rows(one_phase, 0, [14, 15, 16])


def test_fill_in_the_middle_is_for_code(shards, tokenizer_dir):
    """Rows of code are rearranged, each in the same way at every reading; web stays as it is."""
    phase = {"steps": 5, "seq_len": 40, "fim_rate": 1.0}
    options = {"data": {"tokenizer": str(tokenizer_dir)}, "code": {"code": True}}
    config = stream_config(shards, [phase, phase | {"fim_rate": 0.0}], **options)
    curriculum = Curriculum(config, shards)
    special = 360 - len(SPECIAL_TOKENS) + SPECIAL_TOKENS.index("<|code_prefix|>")
    batch = curriculum.stream(0, {}).batch(0, 8)
    plain = curriculum.stream(1, {}).batch(0, 8)
    assert [special in row for row in batch.ids_BS.tolist()] == [source == 1 for source in batch.source_B]
    assert sum(batch.source_B) == 4
    assert len({tuple(row) for row in batch.ids_BS.tolist() if special in row}) == 4  # the 2 rows of code, twice
    assert not any(special in row for row in plain.ids_BS.tolist())
    again = Curriculum(config, shards).stream(0, {}).batch(0, 8)
    assert again.ids_BS.tolist() == batch.ids_BS.tolist()


# Changed weights


def test_changed_weights_hold_from_the_next_sample(make_curriculum):
    """No row of an epoch is left out or repeated where they change, and the words say what changed."""
    first = make_curriculum([{"steps": 10}], **EVEN)
    before = rows(first, 0, range(14))
    changed, words = resumed(
        first, make_curriculum([{"steps": 10}], web={"weight": 4}, code={"weight": 1}), {"phase0": 14}
    )
    assert words == ["phase 'phase0' from sample 14: web 0.5 -> 0.8, code 0.5 -> 0.2"]
    assert rows(changed, 0, range(14), {"phase0": 14}) == before
    after = rows(changed, 0, range(14, 29), {"phase0": 14})
    assert Counter(source for source, _ in after) == {"web": 12, "code": 3}
    assert len(set(before + after)) == 29


def test_every_later_process_sees_the_same_history(make_curriculum):
    """A second stop, with the checkpoint of the first changed run and its weights, and a third change."""
    first = make_curriculum([{"steps": 10}], **EVEN)
    rows(first, 0, [0])
    second, _ = resumed(first, make_curriculum([{"steps": 10}], web={"weight": 4}), {"phase0": 14})
    expected = rows(second, 0, range(40), {"phase0": 14})
    third, words = resumed(second, make_curriculum([{"steps": 10}], web={"weight": 4}), {"phase0": 20})
    assert words == []
    assert rows(third, 0, range(40), {"phase0": 20}) == expected
    fourth, words = resumed(third, make_curriculum([{"steps": 10}], web={"weight": 9}), {"phase0": 20})
    assert len(words) == 1
    assert [entry.first_sample for entry in fourth.stream(0, {}).record.entries] == [0, 14, 20]


def test_a_phase_not_begun_follows_the_configuration(make_curriculum):
    phases = [{"steps": 2}, {"steps": 5, "sources": {"web": 1}}]
    first = make_curriculum(phases)
    rows(first, 0, [0])
    rows(first, 1, [0], {"phase0": 8})  # begun, but nothing of it was consumed
    changed, words = resumed(first, make_curriculum([phases[0], {"steps": 5, "sources": {"code": 1}}]), {"phase0": 8})
    assert words == []
    assert {source for source, _ in rows(changed, 1, range(5), {"phase0": 8})} == {"code"}


def test_a_finished_phase_stays_as_it_was(make_curriculum):
    first = make_curriculum([{"steps": 2}, {"steps": 2}], **EVEN)
    rows(first, 0, [0])
    changed, words = resumed(first, make_curriculum([{"steps": 2}] * 2, web={"weight": 9}), {"phase0": 8})
    assert words == []
    assert len(changed.stream(0, {}).record.entries) == 1


def test_sources_come_and_go(make_curriculum):
    first = make_curriculum([{"steps": 10}], **EVEN)
    drawn = rows(first, 0, range(8))
    without, words = resumed(first, make_curriculum([{"steps": 10}], ["web"]), {"phase0": 8})
    assert words == ["phase 'phase0' from sample 8: web 0.5 -> 1, code 0.5 -> 0"]
    drawn += rows(without, 0, range(8, 16), {"phase0": 8})
    assert without.stream(0, {}).batch(8, 4).source_B == (0, 0, 0, 0)
    with pytest.raises(DataError, match=r"source 'code': was consumed, but is missing from data\.sources"):
        without.stream(0, {}).batch(0, 8)
    back, words = resumed(without, make_curriculum([{"steps": 10}], **EVEN), {"phase0": 16})
    assert words == ["phase 'phase0' from sample 16: web 1 -> 0.5, code 0 -> 0.5"]
    drawn += rows(back, 0, range(16, 24), {"phase0": 16})
    assert Counter(source for source, _ in drawn) == {"web": 16, "code": 8}
    assert len(set(drawn)) == 24


def test_rolling_back_forgets_what_came_later(make_curriculum):
    curriculum = make_curriculum([{"steps": 3}] * 2, ["web"])
    rows(curriculum, 0, [0])
    saved = json.loads(json.dumps(curriculum.state_dict()))
    expected = rows(curriculum, 1, range(12), {"phase0": 12})
    assert curriculum.load_state_dict(saved, {"phase0": 8}) == []
    assert list(curriculum.state_dict()["phases"]) == ["phase0"]
    assert rows(curriculum, 1, range(12), {"phase0": 12}) == expected


# What must not change


def test_a_source_that_comes_back_must_be_the_same(make_curriculum, make_shard, shards):
    first = make_curriculum([{"steps": 10}])
    rows(first, 0, [0])
    without, _ = resumed(first, make_curriculum([{"steps": 10}], ["web"]), {"phase0": 4})
    shards["code"] = make_shard([range(600, 681)], "new_code")
    with pytest.raises(CheckpointError, match="source 'code'"):
        resumed(without, make_curriculum([{"steps": 10}]), {"phase0": 8})


def test_other_rows_than_consumed(make_curriculum):
    curriculum = make_curriculum([{"steps": 10}])
    rows(curriculum, 0, [0])
    with pytest.raises(
        CheckpointError, match="phase 'phase0', source 'web': has 50 rows but had 25 when it was consumed"
    ):
        resumed(curriculum, make_curriculum([{"steps": 10, "seq_len": 4}]), {"phase0": 4})


def test_a_checkpoint_without_a_record(make_curriculum):
    curriculum = make_curriculum([{"steps": 10}])
    assert curriculum.load_state_dict({}, {}) == []
    with pytest.raises(
        CheckpointError, match="phase 'phase0': the checkpoint does not record the mixture of its samples; start"
    ):
        curriculum.load_state_dict({}, {"phase0": 4})


def test_fingerprint_names_what_the_samples_depend_on(make_curriculum):
    phase = {"steps": 2}
    fingerprint = make_curriculum([phase]).fingerprint()
    assert list(fingerprint) == ["phase0"]
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    same = [
        make_curriculum([phase | {"batch_size": 8, "steps": 5}]),
        make_curriculum([phase], ["web"]),
        make_curriculum([phase], web={"weight": 9, "max_epochs": 7}),
    ]
    assert all(other.fingerprint() == fingerprint for other in same)
    changed = [
        make_curriculum([phase], seed=2),
        make_curriculum([phase | {"seq_len": 4}]),
        make_curriculum([phase | {"document_mask": False}]),
        make_curriculum([phase | {"packing": "best_fit"}]),
    ]
    assert all(other.fingerprint() != fingerprint for other in changed)


# Caps on epochs


def test_cap_over_the_whole_run(make_curriculum):
    """Code has 10 rows and may come 1.5 times: 8 samples of the first phase, 7 of the second, where half were 20."""
    curriculum = make_curriculum(
        [{"steps": 4}, {"steps": 10}], web={"weight": 1}, code={"weight": 1, "max_epochs": 1.5}
    )
    draws = {(draw.phase, draw.source): draw for draw in curriculum.planned_draws()}
    assert {key: draw.samples for key, draw in draws.items()} == {
        ("phase0", "web"): 8,
        ("phase0", "code"): 8,
        ("phase1", "web"): 33,
        ("phase1", "code"): 7,
    }
    assert draws["phase1", "code"].tokens == 56
    assert draws["phase1", "code"].epochs == pytest.approx(0.7)
    drawn = rows(curriculum, 0, range(16)) + rows(curriculum, 1, range(40), {"phase0": 16})
    assert Counter(source for source, _ in drawn) == {"web": 41, "code": 15}
    assert max(Counter(place for place in drawn if place[0] == "code").values()) == 2


def test_cap_counts_rows_of_every_length(make_curriculum):
    """Half an epoch in rows of 8 leaves half of it in rows of 4: 10 of 20 rows."""
    phases = [{"steps": 5, "sources": {"code": 1, "web": 3}}, {"steps": 10, "seq_len": 4}]
    draws = make_curriculum(phases, code={"max_epochs": 1}).planned_draws()
    assert {(draw.phase, draw.samples) for draw in draws if draw.source == "code"} == {("phase0", 5), ("phase1", 10)}


def test_an_exhausted_source_is_not_drawn(make_curriculum):
    curriculum = make_curriculum([{"steps": 5, "sources": {"code": 1, "web": 1}}, {"steps": 5}], code={"max_epochs": 1})
    assert {draw.source for draw in curriculum.planned_draws() if draw.phase == "phase1"} == {"web"}
    rows(curriculum, 0, [0])
    assert {source for source, _ in rows(curriculum, 1, range(20), {"phase0": 20})} == {"web"}


def test_epochs_so_far_count_over_all_phases(make_curriculum):
    """25 rows of web; code is in no phase."""
    curriculum = make_curriculum([{"steps": 3, "sources": {"web": 1}}, {"steps": 6, "sources": {"web": 1}}])
    assert curriculum.epochs({}) == {}
    curriculum.stream(0, {})
    assert curriculum.epochs({"phase0": 12}) == {"web": pytest.approx(12 / 25)}
    curriculum.stream(1, {"phase0": 12})
    assert curriculum.epochs({"phase0": 12, "phase1": 23}) == {"web": pytest.approx(35 / 25)}


def test_too_little_text_is_refused_at_launch(make_curriculum):
    """35 rows may come once, and 20 + 20 samples are wanted."""
    caps = {"web": {"max_epochs": 1}, "code": {"max_epochs": 1}}
    words = (
        r"phases\.1 'phase1': its sources \(web, code\) give 40 tokens too few within data\.sources\.max_epochs, "
        r"which counts over all phases"
    )
    with pytest.raises(DataError, match=words):
        make_curriculum([{"steps": 5}, {"steps": 5}], **caps)
    make_curriculum([{"steps": 5}, {"steps": 3}], **caps)


def test_a_cap_that_comes_in_mid_run(make_curriculum):
    """10 of code are drawn when a cap of 1.2 epochs comes; 2 more come, without a repetition before its time."""
    first = make_curriculum([{"steps": 10}], **EVEN)
    before = rows(first, 0, range(20))
    capped = {"web": {"weight": 1}, "code": {"weight": 1, "max_epochs": 1.2}}
    changed, words = resumed(first, make_curriculum([{"steps": 10}], **capped), {"phase0": 20})
    assert words == ["phase 'phase0' from sample 20: web 0.5 -> 0.9, code 0.5 -> 0.1 (data.sources.max_epochs)"]
    after = rows(changed, 0, range(20, 40), {"phase0": 20})
    assert Counter(source for source, _ in before + after) == {"web": 28, "code": 12}
    again, words = resumed(changed, make_curriculum([{"steps": 10}], **capped), {"phase0": 24})
    assert words == []
    assert rows(again, 0, range(20, 40), {"phase0": 24}) == after
    longer, words = resumed(changed, make_curriculum([{"steps": 12}], **capped), {"phase0": 24})
    assert len(words) == 1
    counts = Counter(source for source, _ in before + rows(longer, 0, range(20, 48), {"phase0": 24}))
    assert counts == {"web": 36, "code": 12}


# Names of samples


def test_describe(make_curriculum, shards):
    curriculum = make_curriculum([{"steps": 5}, {"steps": 20}])
    for phase, sample in [(0, 0), (0, 7), (1, 3), (1, 71)]:
        told = curriculum.describe(phase, sample)
        assert json.loads(json.dumps(told)) == told
        assert (told["phase"], told["sample"]) == (f"phase{phase}", sample)
        shard = shards[told["source"]]
        assert told["shard"] == str(shard.prefix)
        ((start, stop),) = [piece["tokens"] for piece in told["pieces"]]
        documents = [piece["documents"] for piece in told["pieces"]]
        assert documents == [[int(start >= 100), int(stop > 100)]] if told["source"] == "web" else [[0, 0]]
        stream = curriculum.stream(phase, {"phase0": 20} if phase else {})
        assert stream.sample(sample).ids_S.tolist() == shard.tokens(start, stop).tolist()
    assert {curriculum.describe(1, sample)["epoch"] for sample in range(80)} == {0, 1, 2, 3, 4}


def test_describing_a_phase_that_has_not_begun_begins_nothing(make_curriculum):
    curriculum = make_curriculum([{"steps": 5}] * 2)
    told = curriculum.describe(1, 3)
    assert curriculum.state_dict() == {"phases": {}, "sources": {}}
    rows(curriculum, 0, [0])
    rows(curriculum, 1, [0], {"phase0": 20})
    assert curriculum.describe(1, 3) == told
