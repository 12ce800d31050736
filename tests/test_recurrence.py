"""All forms of the recurrence give the same numbers, and the trained form the same gradients."""

import copy
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from modeling_elmo import recurrence_elmo
from modeling_elmo.recurrence_elmo import (
    CompiledLayer,
    Derived,
    LayerWeights,
    PackedLayer,
    PairedLayer,
    compiled_recurrence,
    packed_recurrence,
    paired_recurrence,
    plain_recurrence,
    runs_compiled,
    side_by_side,
    train_side_by_side,
    trained_recurrence,
)

WORDS, SENTENCES, SIZE, CELLS = [4, 4, 3, 1, 1], 5, 3, 6
CLIPS = [(None, None), (0.3, 0.2), (3.0, None)]
# Sums of a few dozen float32 products, and tanh by way of the logistic function.
FLOAT32_TOLERANCE = 2e-6
# bfloat16 has 8 binary digits; a clip that one form reaches and the other does not adds to it.
SIXTEEN_BITS = 2**-5


@pytest.fixture
def arguments() -> list[torch.Tensor]:
    """Gates of the inputs, first states, recurrent matrix and projection, in float64; one sentence has no word."""
    torch.manual_seed(0)
    shapes = [(sum(WORDS), 4 * CELLS), (SENTENCES, SIZE), (SENTENCES, CELLS), (4 * CELLS, SIZE), (SIZE, CELLS)]
    return [(torch.randn(*shape) * 0.7).double().requires_grad_() for shape in shapes]


@pytest.mark.parametrize("clips", CLIPS)
def test_the_trained_form_equals_the_plain_one_in_values_and_gradients(clips, arguments):
    plain = plain_recurrence(*arguments, WORDS, *clips)
    trained = trained_recurrence(*arguments, WORDS, *clips)
    pulls = [torch.randn_like(output) for output in plain]
    gradients = []
    for outputs in (plain, trained):
        loss = sum((output * pull).sum() for output, pull in zip(outputs, pulls, strict=True))
        gradients.append(torch.autograd.grad(loss, arguments))
    torch.testing.assert_close(trained, plain)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("clips", CLIPS)
def test_the_trained_forms_gradients_equal_finite_differences(clips, arguments):
    assert torch.autograd.gradcheck(lambda *tensors: trained_recurrence(*tensors, WORDS, *clips), arguments)


@pytest.mark.parametrize("clips", CLIPS)
def test_under_autocast_the_trained_form_is_about_the_exact_one_and_keeps_its_dtype(clips, arguments):
    arguments = [tensor.detach().float().requires_grad_() for tensor in arguments]
    exact = trained_recurrence(*arguments, WORDS, *clips)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # gates come from a product, in 16 bits
        rounded = trained_recurrence(arguments[0].bfloat16(), *arguments[1:], WORDS, *clips)
    pulls = [torch.randn_like(output) for output in exact]
    gradients = []
    for outputs in (exact, rounded):
        loss = sum((output * pull).sum() for output, pull in zip(outputs, pulls, strict=True))
        gradients.append(torch.autograd.grad(loss, arguments))
    for found, expected in zip((*rounded, *gradients[1]), (*exact, *gradients[0]), strict=True):
        assert found.dtype == torch.float32
        assert 0 < (found - expected).norm() < SIXTEEN_BITS * expected.norm()


def test_autocast_leaves_float64_as_it_is(arguments):
    exact = trained_recurrence(*arguments, WORDS, 3.0, 3.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(trained_recurrence(*arguments, WORDS, 3.0, 3.0), exact)


def test_in_16_bits_the_trained_form_is_the_plain_one(arguments):
    halves = [tensor.detach().bfloat16() for tensor in arguments]
    for found, expected in zip(
        trained_recurrence(*halves, WORDS, 3.0, 3.0), plain_recurrence(*halves, WORDS, 3.0, 3.0), strict=True
    ):
        assert torch.equal(found, expected)


def test_the_trained_form_takes_no_steps_at_all(arguments):
    arguments[0] = arguments[0][:0].detach().requires_grad_()
    outputs, hidden, cell = trained_recurrence(*arguments, [], None, None)
    assert outputs.shape == (0, SIZE)
    (hidden.sum() + cell.sum()).backward()
    assert (arguments[1].grad == 1).all()


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("sizes", [WORDS, [1] * 7, []], ids=str)
@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("words_at_once", [2, 1024])
def test_the_packed_form_equals_the_plain_one(clips, sizes, with_index, words_at_once, monkeypatch):
    monkeypatch.setattr("modeling_elmo.recurrence_elmo.WORDS_AT_ONCE", words_at_once)
    torch.manual_seed(0)
    sentences = max(sizes[0] if sizes else 1, 1)
    distinct = torch.randn(4, SIZE)
    index = torch.randint(0, 4, (sum(sizes),))
    input_weight, bias = torch.randn(4 * CELLS, SIZE), torch.randn(4 * CELLS)
    recurrent, projection = torch.randn(4 * CELLS, SIZE), torch.randn(SIZE, CELLS)
    hidden, cell = torch.randn(sentences, SIZE), torch.randn(sentences, CELLS).clamp(-0.3, 0.3)
    before = hidden.clone(), cell.clone()
    layer = PackedLayer()
    layer.refresh(LayerWeights(input_weight, bias, recurrent, projection))
    inputs = (distinct, index) if with_index else (distinct[index], None)
    packed = packed_recurrence(layer, *inputs, hidden, cell, sizes, *clips)
    gates = distinct[index] @ input_weight.T + bias
    plain = plain_recurrence(gates, hidden, cell, recurrent, projection, sizes, *clips)
    torch.testing.assert_close(packed, plain, atol=FLOAT32_TOLERANCE, rtol=0)
    assert torch.equal(hidden, before[0])
    assert torch.equal(cell, before[1])


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("words_at_once", [2, 1024])
@pytest.mark.parametrize("blocks", [None, 2, 3])
def test_the_paired_form_equals_the_plain_one_of_each_direction(clips, words_at_once, blocks, monkeypatch):
    if blocks is not None:  # as if the weights exceeded the cache
        monkeypatch.setattr("modeling_elmo.recurrence_elmo.CACHED_WEIGHTS", 0)
        monkeypatch.setattr("modeling_elmo.recurrence_elmo.COLUMN_BLOCKS", blocks)
    monkeypatch.setattr("modeling_elmo.recurrence_elmo.WORDS_AT_ONCE", words_at_once)
    torch.manual_seed(0)
    shapes = [(4 * CELLS, SIZE), (4 * CELLS,), (4 * CELLS, SIZE), (SIZE, CELLS)]
    directions = [LayerWeights(*(torch.randn(*shape) for shape in shapes)) for _ in range(2)]
    inputs = torch.randn(2, 5, SIZE)
    hidden, cell = torch.randn(2, 1, SIZE), torch.randn(2, 1, CELLS).clamp(-0.3, 0.3)
    layer = PairedLayer()
    layer.refresh(*directions)
    assert len(layer.groups) == (2 if blocks == 3 else 1)  # sizes here are divisible by 3 only
    paired = paired_recurrence(layer, inputs, hidden, cell, clips)
    for k, weights in enumerate(directions):
        gates = inputs[k] @ weights.inputs.T + weights.bias
        plain = plain_recurrence(gates, hidden[k], cell[k], weights.recurrent, weights.projection, [1] * 5, *clips)
        torch.testing.assert_close(tuple(part[k] for part in paired), plain, atol=FLOAT32_TOLERANCE, rtol=0)


def whole_tiles(scale: float = 0.1) -> LayerWeights:
    """A layer of the sizes that the compiled form takes."""
    torch.manual_seed(0)
    shapes = [(4 * 128, 64), (4 * 128,), (4 * 128, 64), (64, 128)]
    return LayerWeights(*(torch.randn(*shape) * scale for shape in shapes))


def compiled_layer(weights: LayerWeights) -> CompiledLayer:
    layer = CompiledLayer()
    layer.refresh(weights)
    return layer


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("words", [0, 1, 7])
@pytest.mark.parametrize("words_at_once", [3, 1024])
def test_the_compiled_form_equals_the_plain_one(clips, words, words_at_once, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr("modeling_elmo.recurrence_elmo.WORDS_AT_ONCE", words_at_once)
    weights = whole_tiles()
    assert runs_compiled(weights)
    inputs, hidden, cell = torch.randn(words, 64), torch.randn(1, 64), torch.randn(1, 128).clamp(-0.3, 0.3)
    before = hidden.clone(), cell.clone()
    compiled = compiled_recurrence(compiled_layer(weights), inputs, hidden, cell, *clips)
    gates = inputs @ weights.inputs.T + weights.bias
    plain = plain_recurrence(gates, hidden, cell, weights.recurrent, weights.projection, [1] * words, *clips)
    torch.testing.assert_close(compiled, plain, atol=FLOAT32_TOLERANCE, rtol=0)
    assert torch.equal(hidden, before[0])
    assert torch.equal(cell, before[1])


def test_the_compiled_form_survives_extreme_gates_and_lets_nan_through():
    pytest.importorskip("numba")
    weights = whole_tiles()
    layer, states = compiled_layer(weights), (torch.zeros(1, 64), torch.zeros(1, 128))
    inputs = torch.randn(4, 64) * 1e4
    compiled = compiled_recurrence(layer, inputs, *states, 3.0, 3.0)
    gates = inputs @ weights.inputs.T + weights.bias
    plain = plain_recurrence(gates, *states, weights.recurrent, weights.projection, [1] * 4, 3.0, 3.0)
    torch.testing.assert_close(compiled, plain, atol=FLOAT32_TOLERANCE, rtol=0)
    inputs[2, 5] = torch.nan
    outputs, hidden, cell = compiled_recurrence(layer, inputs, *states, 3.0, 3.0)
    assert outputs[:2].isfinite().all()
    assert all(part.isnan().all() for part in (outputs[2:], hidden, cell))


def test_layers_of_other_sizes_than_whole_tiles_or_beyond_the_cache_are_not_compiled(monkeypatch):
    pytest.importorskip("numba")
    weights = whole_tiles()
    for shape in ((60, 128), (64, 100)):
        assert not runs_compiled(weights._replace(projection=torch.zeros(*shape)))
    monkeypatch.setattr(recurrence_elmo, "CACHED_WEIGHTS", 10_000)
    assert not runs_compiled(weights)


def is_stale(derived: Derived, *parameters: torch.Tensor) -> bool:
    with derived.renewal(parameters) as stale:
        return stale


@pytest.mark.parametrize(
    "change", ["in place", "by data", "one number by data", "all of many by data", "other tensor"]
)
def test_what_is_derived_is_stale_once_when_a_parameter_changes(change):
    parameter = torch.nn.Parameter(torch.randn(7 if "many" not in change else 70_000, 100))
    derived = Derived()
    assert is_stale(derived, parameter)
    assert not is_stale(derived, parameter)
    if change == "in place":
        with torch.no_grad():
            parameter[3, 3] += 1
    elif change == "one number by data":
        parameter.data[3, 3] += 1
    elif change == "other tensor":
        parameter = torch.nn.Parameter(parameter.detach().clone())
    else:
        parameter.data.mul_(1.5)
    assert is_stale(derived, parameter)
    assert not is_stale(derived, parameter)


def test_what_was_stopped_while_it_was_derived_is_stale_still():
    parameter = torch.nn.Parameter(torch.randn(3))
    derived = Derived()
    assert is_stale(derived, parameter)
    parameter.data.add_(1)

    def stop() -> None:
        with derived.renewal([parameter]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert is_stale(derived, parameter)
    assert not is_stale(derived, parameter)


def test_packed_weights_are_neither_pickled_nor_copied():
    layer = PackedLayer()
    layer.refresh(LayerWeights(*(torch.randn(*shape) for shape in ((24, 3), (24,), (24, 3), (3, 6)))))
    assert len(pickle.dumps(layer)) < 200
    assert not hasattr(copy.deepcopy(layer), "recurrent")


@pytest.fixture
def _two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def test_threads_with_threads_of_their_own_number_read_side_by_side():
    def work(threads: int) -> int:
        torch.set_num_threads(threads)
        return sum(side_by_side(lambda: 1, torch.get_num_threads)[1] for _ in range(50))

    with ThreadPoolExecutor(8) as executor:
        counts = [2, 4, 6, 2, 4, 6, 2, 4]
        assert list(executor.map(work, counts, timeout=60)) == [50 * count // 2 for count in counts]


@pytest.mark.usefixtures("_two_threads")
def test_what_is_read_side_by_side_is_under_the_callers_autocast():
    def product() -> torch.dtype:
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    assert side_by_side(product, product) == [torch.float32] * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert side_by_side(product, product) == [torch.bfloat16] * 2


@pytest.mark.usefixtures("_two_threads")
def test_after_the_backward_pass_a_loss_keeps_no_activations_unless_it_is_to_be_used_again():
    weight = torch.randn(3, 3, requires_grad=True)
    made = []

    def function(inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = (inputs @ weight).tanh()
        made.append(weakref.ref(hidden))
        return (hidden * hidden,)

    inputs = torch.randn(2, 3, requires_grad=True)
    (first,), (second,) = train_side_by_side(function, function, (inputs,), ([weight], [weight]))
    loss = (first + second).sum()
    loss.backward(retain_graph=True)
    assert all(tensor() is not None for tensor in made)
    once = weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(weight.grad, 2 * once)
    assert [tensor() for tensor in made] == [None, None]
    with pytest.raises((RuntimeError, TypeError)):
        loss.backward()
