"""How often a GPU would have to be waited for; what is counted is told by `SyncCounter`."""

import pytest
import torch
from accelerate.state import AcceleratorState
from sync_counter import SyncCounter, on_host

from modeling_elmo import ElmoConfig, ElmoModel, ElmoTokenizer, bilm_elmo
from training import pretrain, run
from training.data import LaneWindows, Window
from training.settings import read_settings

# More than are spelled by one product.
WORDS = [f"w{'x' * (number % 7)}{number}" for number in range(150)]


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # modes do not see what other threads do
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    torch.set_num_threads(threads)


def test_the_counter_sees_what_waits_and_nothing_else():
    values = torch.arange(4.0, requires_grad=True)
    mask = torch.tensor([True, False, True, True])
    with SyncCounter() as counter:
        (values[mask].sum() + values.where(mask, 0).sum() + values[torch.tensor([1, 1])].sum()).backward()
        assert values.sum() > 0
        values.tolist()
        on_host(values.tolist)()
        int(values.detach()[0])
        mask.nonzero()
    assert counter.counts == {
        "index": 1,
        "index_put": 1,  # the gradient of values[mask]
        "_local_scalar_dense": 2,
        "tolist": 1,
        "nonzero": 1,
    }


@pytest.mark.parametrize("more", [(), ("--reset_states", "sentence"), ("--gradient_accumulation_steps", "2")])
def test_a_pretraining_step_waits_for_the_lengths_of_words_and_for_the_rows_with_gradients(
    more, tmp_path, monkeypatch
):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(WORDS[start : start + 9]) for start in range(140)) + "\n")
    own = ["tiny", "--train_file", str(text), "--output_dir", str(tmp_path / "run"), "--config_overrides"]
    settings = read_settings([*own, "num_negatives=20", "--lanes", "16", "--optimizer", "adamw", *more])
    trained = pretrain.make_run(settings, pretrain.make_accelerator(settings))
    trained.prepared.train()
    groups = settings.gradient_accumulation_steps
    steps = iter(LaneWindows(trained.reader, settings.lanes, settings.window, groups))
    trained.train_step(next(steps))  # the first makes the optimizers' states
    for owner, name in ((Window, "model_inputs"), (run.Run, "_sample_negatives"), (run, "carry_on")):
        monkeypatch.setattr(owner, name, on_host(getattr(owner, name)))
    step = next(steps)
    assert len(step.windows[0].char_ids) > 64
    with SyncCounter() as counter:
        losses = trained.train_step(step)
    assert counter.counts == {"tolist": groups, "_coalesce": 2}
    assert losses.isfinite().all()


def test_reading_sentences_waits_for_the_mask_the_distinct_words_and_their_lengths(monkeypatch):
    model = ElmoModel(ElmoConfig(projection_dim=8, cell_dim=16, char_filters=[[1, 4], [3, 8]])).eval()
    tokenizer = ElmoTokenizer()
    inputs = tokenizer([WORDS[:100], WORDS[100:]], is_split_into_words=True, padding=True, return_tensors="pt")
    packed = []

    def pack(*arguments):
        packed.append(arguments)
        return on_host(bilm_elmo_pack)(*arguments)

    bilm_elmo_pack = bilm_elmo.pack
    monkeypatch.setattr(bilm_elmo, "pack", pack)  # copies the mask to the CPU, and goes on there
    with SyncCounter() as counter:
        model(**inputs)  # with gradients: as on any device
    assert len(packed) == 1
    assert counter.counts == {"_unique2": 1, "equal": 1, "tolist": 1}
