"""Many calls of one model: from threads, in a fork, with ever new words. Vectors stay the same, and memory flat."""

import copy
import os
import random
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from torch import Tensor

from modeling_elmo import ElmoConfig, ElmoModel, ElmoTokenizer, layers_elmo

# Calls of each thread, and a tenth of those with new words: 1000 for the whole test.
CALLS = int(os.environ.get("ELMO_ENDURANCE_CALLS", 15))
THREADS = 8
# Sums of a few dozen float32 products, in another order for words that are remembered.
TOLERANCE = 2e-6
# Bytes that a process may take more after many calls: what the allocator keeps for its threads.
GROWTH = 30_000_000
SIZES = {"char_embedding_dim": 4, "char_filters": [[1, 4], [2, 8], [3, 8]], "num_highway_layers": 1}
SECONDS = 120

Batch = list[list[str]]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ElmoModel:
    monkeypatch.setattr(layers_elmo, "CACHE_BYTES", 200_000)  # so that it is full again and again
    torch.manual_seed(0)
    return ElmoModel(ElmoConfig(**SIZES, projection_dim=16, cell_dim=32)).eval()


def random_batch(choose: random.Random, known: Sequence[str] = ()) -> Batch:
    """Return up to five sentences of words that are new, or known."""
    batch = []
    for _ in range(choose.randint(1, 5)):
        length = choose.randint(1, 9)
        words = [choose.choice(known) if known else f"{choose.getrandbits(40):x}" for _ in range(length)]
        batch.append(words)
    return batch


@torch.no_grad()
def vectors(model: ElmoModel, batch: Batch) -> Tensor:
    inputs = ElmoTokenizer()(batch, is_split_into_words=True, padding=True, return_tensors="pt")
    return model(**inputs).last_hidden_state


def expected(model: ElmoModel, batches: Sequence[Batch]) -> list[Tensor]:
    """Return the vectors that a model without memory gives."""
    results = []
    for batch in batches:
        fresh = copy.deepcopy(model)
        results.append(vectors(fresh, batch))
    return results


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=TOLERANCE, rtol=0)


def test_threads_that_share_a_model_get_their_own_vectors_and_memory_stays_flat(model: ElmoModel) -> None:
    choose = random.Random(0)
    known = [f"word{number}" for number in range(60)]
    batches = [random_batch(choose, known) for _ in range(40)]
    wanted = expected(model, batches)

    def call_often(seed: int, calls: int = CALLS) -> int:
        own = random.Random(seed)
        for _ in range(calls):
            number = own.randrange(len(batches))
            assert_close(vectors(model, batches[number]), wanted[number])
        return calls

    with ThreadPoolExecutor(THREADS) as pool:
        sum(pool.map(lambda seed: call_often(seed, 10), range(THREADS)))
        before = psutil.Process().memory_info().rss
        assert sum(pool.map(call_often, range(THREADS))) == THREADS * CALLS
    assert psutil.Process().memory_info().rss - before < GROWTH


def test_ever_new_words_leave_memory_flat_and_vectors_the_same(model: ElmoModel) -> None:
    choose = random.Random(0)
    first = random_batch(choose)
    (wanted,) = expected(model, [first])
    for _ in range(CALLS):
        vectors(model, random_batch(choose))
    before = psutil.Process().memory_info().rss
    for number in range(10 * CALLS):
        batch = random_batch(choose)
        found = vectors(model, batch)
        if number % 100 == 0:
            assert_close(found, expected(model, [batch])[0])
            assert_close(vectors(model, first), wanted)
    assert psutil.Process().memory_info().rss - before < GROWTH


def test_a_fork_of_a_process_that_has_used_a_model_gets_the_same_vectors(model: ElmoModel) -> None:
    """Even while threads of the parent are in calls, which the child then has no threads for."""
    choose = random.Random(0)
    batches = [random_batch(choose) for _ in range(5)]
    wanted = [vectors(model, batch) for batch in batches]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(vectors, model, batches[number % 5]) for number in range(CALLS)]
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    signal.alarm(SECONDS)  # a child that hangs is a failure
                    for batch, vector in zip(batches, wanted, strict=True):
                        if not torch.allclose(vectors(model, batch), vector, atol=TOLERANCE, rtol=0):
                            os._exit(1)
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            for call in calls:
                call.result()
    finally:
        torch.set_num_threads(threads)
