"""The corpus for pretraining: every word of every epoch once, in lanes that read on, by any number of processes."""

import itertools
from collections import Counter

import datasets
import pytest
import torch

from modeling_elmo import ElmoTokenizer
from modeling_elmo.corpus import Corpus, open_corpus
from modeling_elmo.files import ElmoError
from training.data import (
    IGNORED,
    BlockReader,
    LaneWindows,
    Token,
    count_words,
    encode_window,
    prefetch,
)

# Every word is its own: sentence and position.
SENTENCES = [[f"{number}.{word}" for word in range(number * 7 % 11 + 1)] for number in range(83)]
WORDS = Counter(word for sentence in SENTENCES for word in sentence)


@pytest.fixture(scope="module")
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer(vocab=list(WORDS))


def make_corpus(streaming: bool = False) -> Corpus:
    lines = [" ".join(words) for words in SENTENCES]
    lines.insert(5, "")  # a blank line between
    rows = datasets.Dataset.from_dict({"text": lines})
    return Corpus(rows.to_iterable_dataset(num_shards=3) if streaming else rows, "text")


def make_reader(tokenizer, streaming=False, **settings) -> BlockReader:
    return BlockReader(make_corpus(streaming), tokenizer, **{"epochs": 1, **settings})


def words_of(windows, tokenizer) -> tuple[list[list[str]], list[list[str]]]:
    """What each language model predicted, lane by lane over all windows: (forward lanes, backward lanes)."""
    sides: tuple[list[list[str]], list[list[str]]] = ([], [])
    for step in windows:
        lanes = [[lane for window in step.windows for lane in window.labels[side]] for side in (0, 1)]
        for side in (0, 1):
            if not sides[side]:
                sides[side].extend([] for _ in lanes[side])
            for kept, lane in zip(sides[side], lanes[side], strict=True):
                kept += tokenizer.convert_ids_to_tokens([int(label) for label in lane if label != IGNORED])
    return sides


def count_predicted(windows, tokenizer) -> tuple[Counter, Counter]:
    counts = (Counter(), Counter())
    for window in itertools.chain(*(step.windows for step in windows)):
        for count, labels in zip(counts, window.labels, strict=True):
            count.update(tokenizer.convert_ids_to_tokens(labels[labels != IGNORED].tolist()))
    return counts


def expected_counts(epochs: int = 1) -> tuple[Counter, Counter]:
    words = Counter(dict.fromkeys(WORDS, epochs))
    return words + Counter({"</S>": epochs * len(SENTENCES)}), words + Counter({"<S>": epochs * len(SENTENCES)})


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("block_rows", [1, 8])
@pytest.mark.parametrize("epochs", [1, 3])
def test_every_word_of_every_epoch_is_predicted_once_in_each_direction(
    epochs, block_rows, processes, streaming, tokenizer
):
    totals = (Counter(), Counter())
    for rank in range(processes):
        reader = make_reader(tokenizer, streaming, block_rows=block_rows, epochs=epochs)
        windows = LaneWindows(reader, 4, 6, rank=rank, processes=processes)
        for total, part in zip(totals, count_predicted(windows, tokenizer), strict=True):
            total.update(part)
    assert totals == expected_counts(epochs)


def test_an_epoch_ends_before_the_next_begins(tokenizer):
    """All of an epoch is dealt out before anything of the next."""
    blocks = list(itertools.islice(make_reader(tokenizer, epochs=None).read(), 2 * len(SENTENCES)))
    first = Counter(word for block in blocks[: len(SENTENCES)] for sentence in block.sentences for word in sentence)
    assert first == WORDS
    orders = [[block.sentences[0][0] for block in half] for half in (blocks[:83], blocks[83:])]
    assert orders[0] != orders[1]


def test_every_epoch_of_a_stream_has_its_own_order(tokenizer):
    blocks = list(make_reader(tokenizer, streaming=True, epochs=2).read())
    epochs = [[block.sentences[0][0] for block in blocks if block.epoch == epoch] for epoch in (0, 1)]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("block_rows", [1, 8])
def test_lanes_read_sentences_from_beginning_to_end_and_the_backward_half_each_in_reverse(block_rows, tokenizer):
    reader = make_reader(tokenizer, block_rows=block_rows)
    forward, backward = words_of(LaneWindows(reader, 4, 6), tokenizer)
    known = {tuple(sentence) for sentence in SENTENCES}
    for lane, back in zip(forward, backward, strict=True):
        sentences = [s.split() for s in " ".join(lane).split("</S>")[:-1]]
        reversed_sentences = [s.split() for s in " ".join(back).split("<S>")[:-1]]
        assert [words[::-1] for words in reversed_sentences] == sentences  # the same, in the same order
        assert all(tuple(words) in known for words in sentences)
        if block_rows > 1:  # neighbours in the text are neighbours in the lane
            numbers = [int(words[0].split(".")[0]) for words in sentences]
            steps = [after - before for before, after in itertools.pairwise(numbers)]
            assert steps.count(1) > len(steps) * 0.7


def test_what_is_read_is_what_was_predicted_before(tokenizer):
    """In a lane the next input is the last prediction, but for a new sentence, which begins with its marker."""
    for step in LaneWindows(make_reader(tokenizer), 4, 6):
        (window,) = step.windows
        words = [tokenizer.char_ids_to_word(row) for row in window.char_ids.tolist()]
        for side, begin in ((0, "<S>"), (1, "</S>")):
            for index, labels in zip(window.word_index[side], window.labels[side], strict=True):
                kept = labels != IGNORED
                read = [words[row] for row in index[kept].tolist()]
                predicted = tokenizer.convert_ids_to_tokens(labels[kept].tolist())
                for before, after in itertools.pairwise(range(len(read))):
                    assert read[after] in (predicted[before], begin)


def test_a_full_window_has_no_gaps_until_the_text_ends(tokenizer):
    steps = list(LaneWindows(make_reader(tokenizer, epochs=2), 4, 6))
    counts = [window.predictions for step in steps for window in step.windows]
    assert counts == [step.predictions for step in steps]
    assert set(counts[:-3]) == {24}


@pytest.mark.parametrize("block_rows", [8, 100])
def test_lanes_share_what_is_left_when_the_text_ends(block_rows, tokenizer):
    """Most of the text is in the blocks of a few lanes, but the run takes hardly more steps than full ones."""
    counts = [step.predictions for step in LaneWindows(make_reader(tokenizer, block_rows=block_rows), 16, 6)]
    total = WORDS.total() + len(SENTENCES)
    longest = max(map(len, SENTENCES)) + 1
    assert sum(counts) == total
    assert len(counts) <= -(-total // (16 * 6)) + -(-longest // 6)


@pytest.mark.parametrize("block_rows", [1, 8, 100])
@pytest.mark.parametrize("reset_states", ["document", "sentence"])
def test_processes_read_the_lanes_that_one_process_reads(reset_states, block_rows, tokenizer):
    def read(lanes, groups, rank=0, processes=1):
        reader = make_reader(tokenizer, block_rows=block_rows, epochs=2, reset_states=reset_states)
        return list(LaneWindows(reader, lanes, 6, groups, rank=rank, processes=processes))

    def labels(*steps) -> list:
        """Those of all lanes, (2, lanes, 6)."""
        windows = [window for step in steps for window in step.windows]
        padded = [torch.nn.functional.pad(w.labels, (0, 6 - w.labels.shape[2]), value=IGNORED) for w in windows]
        return torch.cat(padded, dim=1).tolist()

    whole = read(12, 1)
    for processes, lanes, groups in ((2, 6, 1), (3, 2, 2), (4, 1, 3)):
        parts = [read(lanes, groups, rank, processes) for rank in range(processes)]
        for one, *others in zip(whole, *parts, strict=True):
            assert labels(one) == labels(*others)
            assert {(other.position.block, other.predictions) for other in others} == {
                (one.position.block, one.predictions)
            }


@pytest.mark.parametrize("lanes", [1, 5, 7, 30])
def test_reading_resumes_with_any_number_of_lanes_and_reads_everything_once(lanes, tokenizer):
    def windows(lanes, position=None):
        return LaneWindows(make_reader(tokenizer, block_rows=8, epochs=2, seed=3), lanes, 5, position=position)

    whole = list(windows(7))
    for stop in (0, len(whole) // 2, len(whole) - 2):
        totals = count_predicted(whole[: stop + 1], tokenizer)
        first = list(itertools.islice(windows(lanes, whole[stop].position), 3))
        rest = list(windows(6, first[-1].position)) if first else []
        for total, part in zip(totals, count_predicted(first + rest, tokenizer), strict=True):
            total.update(part)
        assert totals == expected_counts(2)


@pytest.mark.parametrize(("reset_states", "begins"), [("sentence", "every"), ("document", "some")])
def test_a_new_segment_begins_where_states_are_zero_again(reset_states, begins, tokenizer):
    """At every sentence; or at a document's first, which follows a blank line or begins a block."""
    reader = make_reader(tokenizer, block_rows=8, shuffle=False, reset_states=reset_states)
    found = []
    for step in LaneWindows(reader, 4, 6):
        (window,) = step.windows
        words = [tokenizer.char_ids_to_word(row) for row in window.char_ids.tolist()]
        for index, labels, segments in zip(window.word_index[0], window.labels[0], window.segments, strict=True):
            steps = torch.diff(segments, prepend=torch.zeros(1, dtype=torch.long))
            for place in ((steps > 0) & (labels != IGNORED)).nonzero().flatten().tolist():
                assert words[index[place]] == "<S>"
                found.append(tokenizer.convert_ids_to_tokens(int(labels[place])))
            assert set(steps.tolist()) <= {0, 1}
    rows = [*range(5), None, *range(5, len(SENTENCES))]  # sentences and the blank line
    documents = [row for place, row in enumerate(rows) if place % 8 == 0 or rows[place - 1] is None]
    if begins == "every":
        assert sorted(found) == sorted(f"{number}.0" for number in range(len(SENTENCES)))
    else:  # and, when the text ends, at what a lane takes over from another
        assert {f"{number}.0" for number in documents} <= set(found)
        assert len(documents) < len(found) < len(documents) + 16


def test_lanes_that_are_never_reset_have_no_segments(tokenizer):
    steps = list(LaneWindows(make_reader(tokenizer), 4, 6))
    assert all(window.segments is None for step in steps for window in step.windows)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("reset_states", ["document", "sentence"])
@pytest.mark.parametrize("block_rows", [1, 5])
def test_reading_goes_on_from_any_state_as_if_it_had_not_stopped(block_rows, reset_states, streaming, tokenizer):
    def windows(position=None):
        reader = make_reader(tokenizer, streaming, block_rows=block_rows, epochs=2, seed=3, reset_states=reset_states)
        return LaneWindows(reader, 3, 5, groups=2, position=position)

    whole = list(windows())
    for stop in (0, 1, len(whole) // 2, len(whole) - 2, len(whole) - 1):
        rest = list(windows(whole[stop].position))
        assert len(rest) == len(whole) - stop - 1
        for got, expected in zip(rest, whole[stop + 1 :], strict=True):
            assert got.position == expected.position
            for one, other in zip(got.windows, expected.windows, strict=True):
                assert one.labels.tolist() == other.labels.tolist()
                assert one.char_ids[one.word_index].tolist() == other.char_ids[other.word_index].tolist()
                assert one.segments.tolist() == other.segments.tolist()


def test_groups_of_lanes_are_the_lanes_of_one_larger_group(tokenizer):
    one = words_of(LaneWindows(make_reader(tokenizer), 6, 5), tokenizer)
    three = words_of(LaneWindows(make_reader(tokenizer), 2, 5, groups=3), tokenizer)
    assert one == three


def test_a_worker_process_gives_the_same_windows(tokenizer):
    alone = list(LaneWindows(make_reader(tokenizer), 4, 6))
    with prefetch(LaneWindows(make_reader(tokenizer), 4, 6), workers=1) as windows:
        ahead = list(windows)
    for one, other in zip(alone, ahead, strict=True):
        assert one.position == other.position
        assert one.windows[0].labels.tolist() == other.windows[0].labels.tolist()


def test_an_endless_run_over_no_words_is_refused(tokenizer):
    reader = BlockReader(Corpus(datasets.Dataset.from_dict({"text": ["", " "]}), "text"), tokenizer)
    with pytest.raises(ElmoError, match="no words"):
        next(iter(LaneWindows(reader, 2, 2)))


def test_words_outside_the_vocabulary_are_read_as_spelled_and_predicted_as_unknown(tokenizer):
    window = encode_window([[Token(("zebra", "zebra"), ("zebra", "0.0"), is_reset=False)]], tokenizer)
    assert tokenizer.char_ids_to_word(window.char_ids[0].tolist()) == "zebra"
    assert window.labels.tolist() == [[[tokenizer.unk_token_id]], [[tokenizer.convert_tokens_to_ids("0.0")]]]


@pytest.mark.parametrize("suffix", [".txt", ".csv"])
def test_a_byte_order_mark_is_no_part_of_a_word(suffix, tokenizer, tmp_path):
    path = tmp_path / f"marked{suffix}"
    path.write_text("\ufeff" + ("text\n" if suffix == ".csv" else "") + "the bank\n", encoding="utf-8")
    corpus = open_corpus([str(path)], as_dataset=True)
    assert set(count_words(corpus, tokenizer)[0]) == {"the", "bank"}


def test_a_word_that_reads_like_padding_is_predicted_as_unknown(tokenizer):
    window = encode_window([[Token(("<S>", "</S>"), ("<pad>", "<pad>"), is_reset=False)]], tokenizer)
    assert window.labels.tolist() == [[[tokenizer.unk_token_id]]] * 2


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("processes", [1, 2])
def test_counting_counts_every_word(processes, streaming, tokenizer, monkeypatch):
    monkeypatch.setattr("training.data.ROWS_AT_ONCE", 10)
    assert count_words(make_corpus(streaming), tokenizer, processes) == (WORDS, len(SENTENCES))
