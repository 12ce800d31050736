"""ElmoModel: equal to the equations, whatever the batch, and a good transformers model."""

import copy
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numpy_elmo import elmo_layers
from transformers import AutoModel
from transformers.modeling_utils import PreTrainedModel

from modeling_elmo import ElmoConfig, ElmoModel, ElmoScalarMix, ElmoTokenizer
from modeling_elmo.bilm_elmo import distinct_rows, pack

# A float32 forward pass against a float64 one.
REFERENCE_TOLERANCE = 1e-5
# The same equations in float64 on both sides, in a model that amplifies rounding about ten thousand times.
FLOAT64_TOLERANCE = 1e-10
# The same float32 sums in another order, as another batch size or packing brings.
BATCH_TOLERANCE = 1e-6

SENTENCES = [
    "The bank of the river is steep .".split(),
    ["Banks", "lend"],
    [],
    "A bank ! the the the naïve 日本語 👩‍👩‍👧".split(),
    ["x" * 60, "<S>", "Supercalifragilistic"],
]

TINY = {
    "vocab_size": 50,
    "char_embedding_dim": 4,
    "char_filters": [[1, 4], [2, 8], [3, 8]],
    "projection_dim": 6,
    "cell_dim": 10,
}

# Bounds that cells and outputs run into with weights of any size.
BITING_CLIPS = {"cell_clip": 0.4, "projection_clip": 0.3}


@pytest.fixture(scope="module")
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer()


def make_model(amplifies: bool = False, seed: int = 0, **changes) -> ElmoModel:
    """A tiny model in eval mode. Every weight is random, biases and mix included, so that none hides a mistake.

    One that amplifies has open gates and a strong projection, so that differences grow from step to step.
    """
    torch.manual_seed(seed)
    model = ElmoModel(ElmoConfig(**{**TINY, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gamma" not in name:
                parameter.copy_(torch.randn_like(parameter) * 0.4)
            if amplifies and "_lm." in name and "bias" in name:
                parameter.add_(2.0)
            elif amplifies and "_lm." in name and "projection" in name:
                parameter.mul_(4.0)
        model.char_encoder.char_embedding.weight[0] = 0
    return model


def encode(tokenizer: ElmoTokenizer, sentences=SENTENCES, **kwargs):
    return tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt", **kwargs)


def run(model: ElmoModel, inputs, **kwargs):
    with torch.no_grad():
        return model(**inputs, output_hidden_states=True, **kwargs)


def weights_of(model: ElmoModel) -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}


# ------------------------------------------------------------------------------------------------- the equations


def assert_layers_equal_the_reference(model: ElmoModel, inputs, tolerance: float) -> None:
    """Every layer of every sentence, with an absolute tolerance; padding is zero."""
    hidden_states = run(model, inputs).hidden_states
    assert len(hidden_states) == model.config.num_hidden_layers + 1
    weights = weights_of(model)
    for row, length in enumerate(inputs["attention_mask"].sum(1)):
        expected = elmo_layers(weights, model.config, inputs["char_ids"][row, :length].numpy())
        for layer, reference in zip(hidden_states, expected, strict=True):
            np.testing.assert_allclose(layer[row, :length].numpy(), reference, atol=tolerance, rtol=0)
            assert (layer[row, length:] == 0).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_skip_connections": False},
        {"num_hidden_layers": 1},
        {"num_hidden_layers": 3},
        {"char_activation": "tanh"},
        {"num_highway_layers": 0},
        {"char_filters": [[1, 2], [5, 4]], "projection_dim": 6},
        {"char_filters": [[50, 3], [7, 2]], "num_highway_layers": 1},
        {"cell_clip": None, "projection_clip": None},
        BITING_CLIPS,
        {**BITING_CLIPS, "use_skip_connections": False, "num_hidden_layers": 3},
    ],
    ids=str,
)
def test_every_layer_equals_the_numpy_reference(changes, seed, tokenizer):
    assert_layers_equal_the_reference(make_model(seed=seed, **changes), encode(tokenizer), REFERENCE_TOLERANCE)


@pytest.mark.parametrize("seed", range(6))
def test_in_float64_a_model_that_amplifies_rounding_equals_the_reference(seed, tokenizer):
    model = make_model(amplifies=True, use_skip_connections=False, num_hidden_layers=3, seed=seed)
    assert_layers_equal_the_reference(model.double(), encode(tokenizer), FLOAT64_TOLERANCE)


@pytest.mark.parametrize("sizes", [{}, {"projection_dim": 64, "cell_dim": 128}], ids=str)
@pytest.mark.parametrize("with_numba", [True, False])
def test_a_single_sentence_has_the_vectors_and_states_it_has_in_a_batch(sizes, with_numba, tokenizer, monkeypatch):
    if with_numba:
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr("modeling_elmo.layers_elmo._compiled_recurrence", lambda: None)
    torch.manual_seed(0)
    model = ElmoModel(ElmoConfig(**{**TINY, **sizes})).eval()  # initial weights: larger ones amplify rounding
    together = run(model, encode(tokenizer), use_cache=True)
    for row, words in enumerate(SENTENCES):
        alone = run(model, encode(tokenizer, [words]), use_cache=True)
        for layer, batch_layer in zip(alone.hidden_states, together.hidden_states, strict=True):
            torch.testing.assert_close(layer[0], batch_layer[row, : len(words) + 2], atol=BATCH_TOLERANCE, rtol=0)
        for state, batch_state in zip(alone.states, together.states, strict=True):
            torch.testing.assert_close(state[:, :, 0], batch_state[:, :, row], atol=BATCH_TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "frozen",
    [("char_encoder",), ("forward_lm",), ("char_encoder", "backward_lm"), ("forward_lm", "backward_lm")],
    ids=str,
)
def test_parts_that_are_frozen_get_no_gradients_and_the_others_theirs(frozen, tokenizer, monkeypatch):
    model = make_model(dropout=0.0).train()
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    gradients = []
    for is_parallel in (True, False):
        if not is_parallel:
            monkeypatch.setattr("modeling_elmo.bilm_elmo.can_train_in_parallel", lambda *_: False)
        model.zero_grad()
        model(**encode(tokenizer)).last_hidden_state.square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert not any(name.startswith(frozen) for name in gradients[0])
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_threads_may_share_a_model(tokenizer):
    """The first calls make the packed weights and fill the cache; nothing of it may be seen half made."""
    inputs = [encode(tokenizer, [words] * 2) for words in SENTENCES]
    expected = [run(make_model(), one).last_hidden_state for one in inputs]
    for _ in range(20):
        model = make_model()
        with ThreadPoolExecutor(4) as pool:
            results = pool.map(lambda one, model=model: run(model, one).last_hidden_state, inputs * 4)
            for got, wanted in zip(results, expected * 4, strict=True):
                torch.testing.assert_close(got, wanted, atol=BATCH_TOLERANCE, rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_cells_and_outputs_run_into_their_clips(seed, tokenizer):
    model = make_model(seed=seed, **BITING_CLIPS)
    output = run(model, encode(tokenizer), use_cache=True)
    first_layer = output.hidden_states[1]
    assert (first_layer.abs() == model.config.projection_clip).any()
    assert (output.states[1].abs() == model.config.cell_clip).any()
    assert first_layer.abs().max() <= model.config.projection_clip
    assert output.states[1].abs().max() <= model.config.cell_clip


def test_published_sizes_have_the_published_parameter_counts():
    for cell_dim, projection_dim, highways, millions in [(1024, 128, 1, 13.593), (4096, 512, 2, 93.601)]:
        config = ElmoConfig(
            cell_dim=cell_dim, projection_dim=projection_dim, num_highway_layers=highways, mix="average"
        )
        with torch.device("meta"):
            model = ElmoModel(config)
        # The original has no row for a padded word.
        count = sum(p.numel() for p in model.parameters()) - config.char_embedding_dim
        assert round(count / 1e6, 3) == pytest.approx(millions, abs=5e-4)


# ---------------------------------------------------------------------------------------------------- invariances


def test_extra_padding_changes_nothing(tokenizer):
    model = make_model()
    plain = run(model, encode(tokenizer))
    wide = run(
        model, tokenizer(SENTENCES, is_split_into_words=True, padding="max_length", max_length=40, return_tensors="pt")
    )
    length = plain.last_hidden_state.shape[1]
    for a, b in zip(plain.hidden_states, wide.hidden_states, strict=True):
        torch.testing.assert_close(a, b[:, :length], atol=BATCH_TOLERANCE, rtol=0)
        assert (b[:, length:] == 0).all()


def test_left_padding_gives_the_same_vectors(tokenizer):
    model = make_model()
    right, left = encode(tokenizer), encode(tokenizer, padding_side="left")
    right_output, left_output = run(model, right), run(model, left)
    for row, length in enumerate(right["attention_mask"].sum(1)):
        torch.testing.assert_close(
            right_output.last_hidden_state[row, :length],
            left_output.last_hidden_state[row, -length:],
            atol=BATCH_TOLERANCE,
            rtol=0,
        )


def test_batch_order_and_company_change_nothing(tokenizer):
    model = make_model()
    together = run(model, encode(tokenizer)).last_hidden_state
    reverse = run(model, encode(tokenizer, SENTENCES[::-1])).last_hidden_state.flip(0)
    torch.testing.assert_close(together, reverse, atol=BATCH_TOLERANCE, rtol=0)
    for row, sentence in enumerate(SENTENCES):
        alone = run(model, encode(tokenizer, [sentence])).last_hidden_state[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, atol=BATCH_TOLERANCE, rtol=0)


def test_the_same_call_gives_the_same_bits(tokenizer):
    model = make_model()
    first, second = run(model, encode(tokenizer)), run(model, encode(tokenizer))
    assert torch.equal(first.last_hidden_state, second.last_hidden_state)


def test_future_words_never_reach_the_forward_lm_nor_past_words_the_backward_lm(tokenizer):
    model = make_model()
    words = "one two three four five six".split()
    changed = [*words[:3], "DIFFERENT", *words[4:]]
    size = model.config.projection_dim
    a, b = (run(model, encode(tokenizer, [sentence])).hidden_states for sentence in (words, changed))
    position = 4  # of the changed word, after <S>
    for layer_a, layer_b in zip(a[1:], b[1:], strict=True):
        assert torch.equal(layer_a[0, :position, :size], layer_b[0, :position, :size])
        assert torch.equal(layer_a[0, position + 1 :, size:], layer_b[0, position + 1 :, size:])
        assert not torch.isclose(layer_a[0, position:, :size], layer_b[0, position:, :size]).all(-1).any()
        assert not torch.isclose(layer_a[0, : position + 1, size:], layer_b[0, : position + 1, size:]).all(-1).any()


def test_a_word_has_different_vectors_in_different_contexts_and_one_at_layer_zero(tokenizer):
    model = make_model()
    output = run(model, encode(tokenizer, [["the", "bank", "lends"], ["the", "bank", "slopes"]]))
    assert torch.equal(output.hidden_states[0][0, 2], output.hidden_states[0][1, 2])
    assert not torch.isclose(output.hidden_states[2][0, 2], output.hidden_states[2][1, 2]).all()


def test_each_segment_of_a_pair_is_a_sentence_of_its_own(tokenizer):
    model = make_model()
    first, second = SENTENCES[0], SENTENCES[3]
    for side in ("right", "left"):
        pair = tokenizer(
            [first, SENTENCES[1]],
            [second, []],
            is_split_into_words=True,
            padding=True,
            padding_side=side,
            return_tensors="pt",
        )
        joint = run(model, pair).last_hidden_state[0]
        alone = [run(model, encode(tokenizer, [sentence])).last_hidden_state[0] for sentence in (first, second)]
        torch.testing.assert_close(joint, torch.cat(alone), atol=BATCH_TOLERANCE, rtol=0)


def test_the_mask_defaults_to_words_that_have_characters(tokenizer):
    model = make_model()
    inputs = encode(tokenizer)
    mask = inputs.pop("attention_mask")
    assert torch.equal(
        run(model, inputs).last_hidden_state, run(model, {**inputs, "attention_mask": mask}).last_hidden_state
    )


def test_nothing_real_gives_nothing_but_the_right_shape(tokenizer):
    model = make_model()
    no_rows, no_words = torch.zeros(0, 5, 50, dtype=torch.long), torch.zeros(2, 0, 50, dtype=torch.long)
    assert run(model, {"char_ids": no_rows}).last_hidden_state.shape == (0, 5, 12)
    assert run(model, {"char_ids": no_words}).last_hidden_state.shape == (2, 0, 12)
    for rows in (1, 2):
        all_padding = run(model, {"char_ids": torch.zeros(rows, 3, 50, dtype=torch.long)}, use_cache=True)
        assert all_padding.last_hidden_state.shape == (rows, 3, 12)
        assert (all_padding.last_hidden_state == 0).all()
        assert (all_padding.states[0] == 0).all()


# ------------------------------------------------------------------------------------------------- distinct words


def test_the_character_cnn_runs_once_for_each_distinct_word(tokenizer):
    model = make_model()
    seen = []
    model.char_encoder.register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
    run(model, encode(tokenizer))
    words = {word for sentence in SENTENCES for word in sentence} | {"<S>", "</S>"}
    assert seen == [len(words)]


def test_distinct_rows_find_each_row_again():
    rows = torch.randint(0, 3, (500, 4))
    distinct, index, keys = distinct_rows(rows)
    assert torch.equal(distinct[index], rows)
    assert len(distinct) == len(keys) == len({tuple(row) for row in rows.tolist()})


def test_distinct_rows_survive_a_hash_collision(monkeypatch):
    monkeypatch.setattr("modeling_elmo.bilm_elmo.HASH_BASE", 0)  # every row now has the same hash
    rows = torch.randint(0, 3, (100, 4))
    distinct, index, keys = distinct_rows(rows)
    assert torch.equal(distinct[index], rows)
    assert len(distinct) > 1
    assert keys is None


def test_packing_loses_and_repeats_no_word():
    mask = torch.rand(7, 9) < 0.6
    mask[3] = False
    segments = (torch.arange(9) > 4).long().expand(7, 9)
    for packing in (pack(mask), pack(mask, segments)):
        words = mask.flatten().nonzero().squeeze(1)
        assert torch.equal(packing.forward_index.sort().values, words)
        assert torch.equal(packing.backward_index.sort().values, words)
        assert sum(packing.batch_sizes) == len(words)
        assert packing.batch_sizes == sorted(packing.batch_sizes, reverse=True)


# ---------------------------------------------------------------------------------------------------------- states


def test_carried_states_continue_the_forward_lm_where_it_stopped(tokenizer):
    model = make_model()
    size = model.config.projection_dim
    words = [f"w{i}" for i in range(9)]
    char_ids = torch.from_numpy(tokenizer.words_to_char_ids(words))[None]
    whole = run(model, {"char_ids": char_ids}, use_cache=True)
    first = run(model, {"char_ids": char_ids[:, :4]}, use_cache=True)
    second = run(model, {"char_ids": char_ids[:, 4:]}, states=first.states, use_cache=True)
    for layer, part in zip(whole.hidden_states[1:], second.hidden_states[1:], strict=True):
        torch.testing.assert_close(layer[:, 4:, :size], part[..., :size], atol=BATCH_TOLERANCE, rtol=0)
    for a, b in zip(whole.states, second.states, strict=True):
        torch.testing.assert_close(a[0], b[0], atol=BATCH_TOLERANCE, rtol=0)


def test_the_batch_may_shrink_and_grow_between_calls_with_carried_states(tokenizer):
    model = make_model()
    large = run(model, encode(tokenizer, [["a"], ["b"], ["c"]]), use_cache=True).states
    small = run(model, encode(tokenizer, [["d"]]), states=large, use_cache=True).states
    assert small[0].shape[2] == 3
    for old, new in zip(large, small, strict=True):
        assert torch.equal(old[:, :, 1:], new[:, :, 1:])
        assert not torch.equal(old[:, :, 0], new[:, :, 0])
    grown = run(model, encode(tokenizer, [["e"], ["f"], ["g"], ["h"]]), states=small, use_cache=True)
    assert grown.states[0].shape[2] == 4
    fresh = run(model, encode(tokenizer, [["h"]])).last_hidden_state[0]
    torch.testing.assert_close(grown.last_hidden_state[3], fresh, atol=BATCH_TOLERANCE, rtol=0)


def test_a_row_without_words_keeps_its_carried_state(tokenizer):
    model = make_model()
    states = run(model, encode(tokenizer, [["a"], ["b"]]), use_cache=True).states
    inputs = encode(tokenizer, [["c"], ["d"]])
    inputs["attention_mask"][1] = 0
    after = run(model, inputs, states=states, use_cache=True).states
    assert torch.equal(after[0][:, :, 1], states[0][:, :, 1])
    assert not torch.equal(after[0][:, :, 0], states[0][:, :, 0])


def test_states_start_from_zero_by_default(tokenizer):
    model = make_model()
    run(model, encode(tokenizer), use_cache=True)
    assert run(model, encode(tokenizer)).states is None
    a, b = run(model, encode(tokenizer)), run(model, encode(tokenizer))
    assert torch.equal(a.last_hidden_state, b.last_hidden_state)


# ------------------------------------------------------------------------------------------------ mix and markers


def test_the_initial_mix_is_the_average_of_the_layers(tokenizer):
    torch.manual_seed(0)
    model = ElmoModel(ElmoConfig(**TINY)).eval()
    output = run(model, encode(tokenizer))
    torch.testing.assert_close(output.last_hidden_state, torch.stack(output.hidden_states).mean(0))


@pytest.mark.parametrize("mix", ["average", "last", "scalar"])
def test_mix_chooses_what_last_hidden_state_is(mix, tokenizer):
    model = make_model(mix=mix)
    output = run(model, encode(tokenizer))
    layers = torch.stack(output.hidden_states)
    if mix == "scalar":
        weights = torch.softmax(model.scalar_mix.scalar_weights, 0)
        expected = model.scalar_mix.gamma * (weights[:, None, None, None] * layers).sum(0)
    else:
        expected = layers.mean(0) if mix == "average" else layers[-1]
    torch.testing.assert_close(output.last_hidden_state, expected)
    assert (model.scalar_mix is None) == (mix != "scalar")


def test_scalar_mix_normalises_over_the_real_words_of_the_batch():
    mix = ElmoScalarMix(1, layer_norm=True).requires_grad_(False)
    mask = torch.rand(3, 5) < 0.7
    layer = torch.randn(3, 5, 4) * 3 + 1
    normal = mix([layer], mask)
    values = normal[mask]
    assert values.mean().abs() < 1e-5
    assert values.var(unbiased=False) == pytest.approx(1, abs=1e-4)
    assert (normal[~mask] == 0).all()
    changed = torch.where(mask[..., None], layer, 1e3)
    torch.testing.assert_close(mix([changed], mask), normal)


def test_scalar_mix_penalty_is_lambda_times_the_squared_norm():
    mix = ElmoScalarMix(3, l2=0.5)
    assert mix.penalty() == 0
    mix.scalar_weights.data.copy_(torch.tensor([1.0, -2.0, 0.0]))
    assert mix.penalty().item() == pytest.approx(2.5)
    mix.penalty().backward()
    torch.testing.assert_close(mix.scalar_weights.grad, torch.tensor([1.0, -2.0, 0.0]))
    with pytest.raises(ValueError, match="shorter"):
        mix([torch.zeros(1, 1, 1)])


@pytest.mark.parametrize("side", ["right", "left"])
def test_without_sentence_markers_word_k_is_at_position_k(side, tokenizer):
    model = make_model()
    inputs = encode(tokenizer, padding_side=side)
    full, words = run(model, inputs), run(model, inputs, keep_sentence_markers=False)
    assert words.attention_mask.sum(1).tolist() == [len(sentence) for sentence in SENTENCES]
    for row, sentence in enumerate(SENTENCES):
        real = full.last_hidden_state[row][inputs["attention_mask"][row].bool()]
        assert torch.equal(words.last_hidden_state[row, : len(sentence)], real[1:-1])
        assert (words.last_hidden_state[row, len(sentence) :] == 0).all()


def test_without_sentence_markers_a_pair_has_the_words_of_both(tokenizer):
    model = make_model()
    pair = tokenizer([["a", "b"]], [["c"]], is_split_into_words=True, return_tensors="pt")
    full, words = run(model, pair), run(model, pair, keep_sentence_markers=False)
    assert torch.equal(words.last_hidden_state[0], full.last_hidden_state[0, [1, 2, 5]])


def test_without_markers_in_the_input_no_word_is_dropped(tokenizer):
    model = make_model()
    inputs = encode(tokenizer, [["a", "b"]], add_special_tokens=False)
    full, words = run(model, inputs), run(model, inputs, keep_sentence_markers=False)
    assert torch.equal(full.last_hidden_state, words.last_hidden_state)


# -------------------------------------------------------------------------------------------------------- training


def test_one_step_moves_every_parameter(tokenizer):
    model = make_model().train()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(**encode(tokenizer)).last_hidden_state.square().sum().backward()
    optimizer.step()
    after = model.state_dict()
    assert [name for name in before if torch.equal(before[name], after[name])] == []
    assert (after["char_encoder.char_embedding.weight"][0] == 0).all()


def test_gradients_equal_finite_differences(tokenizer):
    model = make_model(mix="scalar", cell_dim=3, projection_dim=2, char_filters=[[2, 3]]).double()
    inputs = encode(tokenizer, [["ab", "c"], ["d"]])
    names, parameters = zip(*model.named_parameters(), strict=True)
    parameters = tuple(parameter.detach().requires_grad_() for parameter in parameters)

    def loss(*values):
        output = torch.func.functional_call(model, dict(zip(names, values, strict=True)), kwargs=dict(inputs))
        return output.last_hidden_state

    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True)


def test_dropout_acts_in_training_only_and_leaves_layer_zero(tokenizer):
    model = make_model(dropout=0.5).train()
    inputs = encode(tokenizer)
    first, second = run(model, inputs), run(model, inputs)
    assert torch.equal(first.hidden_states[0], second.hidden_states[0])
    assert not torch.equal(first.hidden_states[1], second.hidden_states[1])


def test_a_frozen_bilm_neither_trains_nor_drops_out(tokenizer):
    model = make_model(dropout=0.5)
    expected = run(model, encode(tokenizer)).last_hidden_state
    model.freeze_bilm()
    model.train()
    output = model(**encode(tokenizer))
    torch.testing.assert_close(output.last_hidden_state, expected)
    output.last_hidden_state.sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        "scalar_mix.scalar_weights",
        "scalar_mix.gamma",
    }
    model.freeze_bilm(False)
    model(**encode(tokenizer)).last_hidden_state.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model.forward_lm.training


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_changes_no_gradient(use_reentrant, tokenizer):
    plain, checkpointed = (make_model(dropout=0.0).double().train() for _ in range(2))
    checkpointed.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    for model in (plain, checkpointed):
        model(**encode(tokenizer)).last_hidden_state.square().sum().backward()
    for (name, a), b in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


# ---------------------------------------------------------------------------------------- a good transformers model


def test_initialisation_follows_the_original():
    torch.manual_seed(0)
    model = ElmoModel(ElmoConfig(**{**TINY, "cell_dim": 200, "projection_dim": 50}))
    layer = model.forward_lm.layers[0]
    bound = (6 / (4 * 200 + 2 * 50)) ** 0.5
    assert 0.9 * bound < layer.input_gates.weight.abs().max() <= bound
    assert (layer.input_gates.bias == 0).all()
    encoder = model.char_encoder
    assert (encoder.char_embedding.weight[0] == 0).all()
    assert 0.9 < encoder.char_embedding.weight.abs().max() <= 1
    assert (encoder.highways[0].carry.bias == -2).all()
    assert (encoder.highways[0].transform.bias == 0).all()
    assert encoder.highways[0].carry.weight.std().item() == pytest.approx(20**-0.5, rel=0.2)
    assert 0.9 * 0.05 < encoder.convolutions[1].weight.abs().max() <= 0.05
    assert layer.projection.weight.abs().max() <= (6 / 250) ** 0.5
    assert (model.scalar_mix.scalar_weights == 0).all()
    assert model.scalar_mix.gamma == 1


def test_save_and_load_is_bitwise(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    loaded, info = ElmoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not loaded.training
    for (name, a), b in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()


def test_save_and_load_in_shards_is_bitwise(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = AutoModel.from_pretrained(tmp_path)
    for a, b in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(a, b)


def test_saving_writes_no_pickle(tmp_path):
    make_model().save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".py", ".safetensors", ".txt"}


class Head(PreTrainedModel):
    """The least a task model is: the base under its prefix, and a layer of its own."""

    config_class = ElmoConfig
    base_model_prefix = "elmo"

    def __init__(self, config):
        super().__init__(config)
        self.elmo = ElmoModel(config, add_mix=False)
        self.classifier = torch.nn.Linear(config.hidden_size, 2)
        self.post_init()


def test_a_base_folder_starts_a_head_and_a_head_folder_gives_back_the_base(tmp_path):
    base = make_model()
    base.save_pretrained(tmp_path / "base")
    head, info = Head.from_pretrained(tmp_path / "base", output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    head.save_pretrained(tmp_path / "head")
    again, info = ElmoModel.from_pretrained(tmp_path / "head", output_loading_info=True)
    assert not info["missing_keys"]  # no mix means the initial one
    assert (again.scalar_mix.scalar_weights == 0).all()
    for name, tensor in again.state_dict().items():
        if "scalar_mix" not in name:
            assert torch.equal(tensor, base.state_dict()[name]), name


def test_a_config_that_mixes_otherwise_leaves_the_mix_weights_behind(tmp_path, caplog):
    make_model().save_pretrained(tmp_path)
    model, info = ElmoModel.from_pretrained(tmp_path, mix="average", output_loading_info=True)
    assert model.scalar_mix is None
    assert not info["unexpected_keys"]


def test_tuple_and_dict_outputs_are_equal(tokenizer):
    model = make_model()
    inputs = encode(tokenizer)
    as_dict = run(model, inputs, use_cache=True)
    as_tuple = run(model, inputs, use_cache=True, return_dict=False)
    assert isinstance(as_tuple, tuple)
    assert list(as_dict) == ["last_hidden_state", "hidden_states", "states"]
    assert torch.equal(as_tuple[0], as_dict.last_hidden_state)
    assert all(torch.equal(a, b) for a, b in zip(as_tuple[1], as_dict.hidden_states, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(as_tuple[2], as_dict.states, strict=True))
    model.config.return_dict = False
    assert isinstance(run(model, inputs), tuple)


def test_hidden_states_are_returned_when_asked_by_call_or_config(tokenizer):
    model = make_model()
    inputs = encode(tokenizer)
    with torch.no_grad():
        assert model(**inputs).hidden_states is None
        model.config.output_hidden_states = True
        hidden_states = model(**inputs).hidden_states
    assert [tuple(layer.shape) for layer in hidden_states] == [(*inputs["input_ids"].shape, 12)] * 3


def test_hidden_states_keep_their_gradients(tokenizer):
    model = make_model()
    output = model(**encode(tokenizer), output_hidden_states=True)
    for layer in output.hidden_states:
        layer.retain_grad()
    output.last_hidden_state.sum().backward()
    assert all(layer.grad is not None for layer in output.hidden_states)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_folder_loads_in_other_dtypes_and_runs(dtype, tmp_path, tokenizer):
    model = make_model()
    model.save_pretrained(tmp_path)
    loaded = ElmoModel.from_pretrained(tmp_path, dtype=dtype)
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    output = run(loaded, encode(tokenizer), use_cache=True)
    assert output.last_hidden_state.dtype == dtype
    expected = run(model, encode(tokenizer)).last_hidden_state
    # Eight bits of mantissa in bfloat16, over a few dozen steps.
    torch.testing.assert_close(output.last_hidden_state.float(), expected, atol=0.1, rtol=0.1)
    loaded.save_pretrained(tmp_path / "again")
    again = ElmoModel.from_pretrained(tmp_path / "again")
    assert again.dtype == dtype
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), again.parameters(), strict=True))


def test_autocast_runs_forward_and_backward(tokenizer):
    model = make_model().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**encode(tokenizer), use_cache=True)
    output.last_hidden_state.float().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_under_autocast_carried_states_are_as_exact_as_the_weights(tokenizer):
    model, inputs = make_model(), encode(tokenizer)
    zeros = tuple(torch.zeros(2, 2, len(SENTENCES), size) for size in (6, 10))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        new, given = (model(**inputs, states=states, use_cache=True).states for states in (None, zeros))
    for state, expected in zip(new, given, strict=True):
        assert state.dtype == torch.float32
        assert torch.equal(state, expected)


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_of_a_model_gives_the_same_vectors_and_is_its_own(how, tokenizer, tmp_path):
    model, inputs = make_model(), encode(tokenizer)
    expected = run(model, inputs).last_hidden_state
    if how == "deepcopy":
        copied = copy.deepcopy(model)
    elif how == "pickle":
        copied = pickle.loads(pickle.dumps(model))
    else:
        torch.save(model, tmp_path / "model.pt")
        copied = torch.load(tmp_path / "model.pt", weights_only=False)  # written above
    with torch.no_grad():
        model.char_encoder.char_embedding.weight.zero_()
    torch.testing.assert_close(run(copied, inputs).last_hidden_state, expected, atol=BATCH_TOLERANCE, rtol=0)


def test_device_map_loads_and_runs(tmp_path, tokenizer):
    model = make_model()
    model.save_pretrained(tmp_path)
    loaded = ElmoModel.from_pretrained(tmp_path, device_map="cpu")
    inputs = encode(tokenizer)
    a, b = run(loaded, inputs).last_hidden_state, run(model, inputs).last_hidden_state
    # Loaded weights are aligned otherwise in memory, which may choose another order of summation.
    torch.testing.assert_close(a, b, atol=BATCH_TOLERANCE, rtol=0)


def test_torch_compile_gives_the_same_vectors(tokenizer):
    model = make_model()
    compiled = torch.compile(model, backend="aot_eager")
    for sentences in (SENTENCES, SENTENCES[:2]):
        inputs = encode(tokenizer, sentences)
        torch.testing.assert_close(
            run(compiled, inputs).last_hidden_state,
            run(model, inputs).last_hidden_state,
            atol=REFERENCE_TOLERANCE,
            rtol=0,
        )


def test_the_signature_names_what_the_tokenizer_returns():
    names = list(inspect.signature(ElmoModel.forward).parameters)
    assert names[1] == ElmoModel.main_input_name
    assert set(ElmoTokenizer.model_input_names) <= set(names)


def test_generate_is_absent():
    model = make_model()
    assert not model.can_generate()
    assert not hasattr(model, "generate")


def test_embeddings_are_the_characters_and_cannot_be_resized():
    model = make_model()
    assert model.get_input_embeddings() is model.char_encoder.char_embedding
    replacement = torch.nn.Embedding(262, 4)
    model.set_input_embeddings(replacement)
    assert model.char_encoder.char_embedding is replacement
    with pytest.raises(ValueError, match="ELMo spells every word in characters"):
        model.resize_token_embeddings(10)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": torch.zeros(1, 3, dtype=torch.long)}, "needs `char_ids`"),
        ({"char_ids": torch.zeros(1, 3, dtype=torch.long)}, r"must be \(batch, words, 50\)"),
        ({"char_ids": torch.zeros(1, 3, 40, dtype=torch.long)}, r"must be \(batch, words, 50\), got \(1, 3, 40\)"),
        (
            {"char_ids": torch.ones(1, 3, 50, dtype=torch.long), "attention_mask": torch.ones(1, 2)},
            r"`attention_mask` must be \(1, 3\), got \(1, 2\)",
        ),
        (
            {"char_ids": torch.ones(1, 3, 50, dtype=torch.long), "states": (torch.zeros(2, 2, 1, 5),) * 2},
            "`states` must be",
        ),
        (
            {
                "char_ids": torch.ones(1, 3, 50, dtype=torch.long),
                "token_type_ids": torch.tensor([[0, 0, 1]]),
                "use_cache": True,
            },
            "rows cannot be pairs",
        ),
    ],
)
def test_wrong_inputs_are_refused_by_name(inputs, message):
    with pytest.raises(ValueError, match=message):
        make_model()(**inputs)


# ---------------------------------------------------------------------------------------------------- configuration


def test_the_default_config_is_the_original_model():
    config = ElmoConfig()
    assert config.hidden_size == 1024
    assert config.num_char_features == 2048
    assert (config.cell_dim, config.projection_dim, config.num_hidden_layers) == (4096, 512, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projection_size": 3}, "does not know `projection_size`; did you mean `projection_dim`"),
        ({"cel_clip": 3.0}, "did you mean `cell_clip`"),
        ({"zzz": 1}, "does not know `zzz`; known keys"),
        ({"cell_dim": "big"}, "cell_dim"),
        ({"cell_dim": 0}, "`cell_dim` must be at least 1"),
        ({"char_activation": "gelu"}, "char_activation"),
        ({"mix": "sum"}, "mix"),
        ({"char_filters": [[51, 3]]}, "no width above max_characters_per_token=50"),
        ({"char_filters": [[3]]}, "pairs of positive numbers"),
        ({"char_filters": []}, "at least one"),
        ({"dropout": 1.0}, "`dropout` must be in"),
        ({"cell_clip": -1.0}, "`cell_clip` must be positive"),
        ({"mix": "last", "mix_layer_norm": True}, "belong to mix='scalar'"),
        ({"max_characters_per_token": 2}, "at least 3"),
        ({"num_highway_layers": -1}, "`num_highway_layers`"),
        ({"mix_l2": -0.1}, "`mix_l2`"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes, message):
    with pytest.raises(Exception, match=message):
        ElmoConfig(**changes)


def test_a_config_survives_save_and_load_with_labels_and_dtype(tmp_path):
    config = ElmoConfig(**TINY, id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0, "b": 1, "c": 2}, dtype="float16")
    config.save_pretrained(tmp_path)
    loaded = ElmoConfig.from_pretrained(tmp_path, dropout=0.3)
    assert loaded.num_labels == 3
    assert loaded.dropout == 0.3
    assert loaded.char_filters == TINY["char_filters"]


# ------------------------------------------------------------------------------------------------------ word cache


def test_words_seen_before_are_not_encoded_again_until_the_weights_change(tokenizer, monkeypatch):
    model = make_model()
    seen = []
    convolve = model.char_encoder.convolve
    monkeypatch.setattr(model.char_encoder, "convolve", lambda rows: seen.append(len(rows)) or convolve(rows))
    first = run(model, encode(tokenizer, [["a", "b"]])).last_hidden_state
    second = run(model, encode(tokenizer, [["a", "b", "c"]]))
    assert seen == [4, 1]
    with torch.no_grad():
        model.char_encoder.convolutions[0].weight.mul_(1.5)
    changed = run(model, encode(tokenizer, [["a", "b"]])).last_hidden_state
    assert seen == [4, 1, 4]
    assert not torch.allclose(first, changed)
    fresh = make_model()
    fresh.load_state_dict(model.state_dict())
    expected = run(fresh, encode(tokenizer, [["a", "b"]])).last_hidden_state
    torch.testing.assert_close(changed, expected, atol=BATCH_TOLERANCE, rtol=0)
    assert second.last_hidden_state.shape == (1, 5, 12)


def test_the_word_cache_is_bounded_and_starts_anew_when_full(tokenizer, monkeypatch):
    word_bytes = 6 * 4 + 50 * 4
    monkeypatch.setattr("modeling_elmo.layers_elmo.CACHE_BYTES", 5 * word_bytes)
    model = make_model()
    for words in (["a", "b"], ["c", "d"], ["e", "f", "g", "h", "i"], ["a", "i"]):
        cached = run(model, encode(tokenizer, [words])).last_hidden_state
        plain = run(make_model(), encode(tokenizer, [words])).last_hidden_state
        torch.testing.assert_close(cached, plain, atol=BATCH_TOLERANCE, rtol=0)
        assert len(model._packed._slots) <= 5


def test_vectors_kept_in_inference_mode_serve_where_gradients_are_recorded(tokenizer):
    model = make_model()
    model.freeze_bilm()
    with torch.inference_mode():
        model(**encode(tokenizer))
    output = model(**encode(tokenizer)).last_hidden_state
    output.square().sum().backward()
    assert model.scalar_mix.gamma.grad is not None


def test_one_thread_and_two_give_the_same_vectors(tokenizer):
    model = make_model()
    threads = torch.get_num_threads()
    try:
        outputs = []
        for count in (1, 2):
            torch.set_num_threads(count)
            outputs.append(run(model, encode(tokenizer)).last_hidden_state)
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(*outputs, atol=BATCH_TOLERANCE, rtol=0)


def test_label2id_follows_the_names_of_the_labels(tmp_path):
    names = {0: "O", 1: "B-LOC"}
    assert ElmoConfig(**TINY, id2label=names).label2id == {"O": 0, "B-LOC": 1}
    ElmoConfig(**TINY).save_pretrained(tmp_path)
    assert ElmoConfig.from_pretrained(tmp_path, id2label=names).label2id == {"O": 0, "B-LOC": 1}
    assert ElmoConfig.from_pretrained(tmp_path, num_labels=3).label2id == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
