"""The trained form of the recurrence gives the numbers and gradients of the plain one; threads."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from modeling_elmo.recurrence_elmo import plain_recurrence, trained_recurrence
from modeling_elmo.threads_elmo import run_in_parallel, train_in_parallel

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


def by_weights(gates, hidden, cell, recurrent, projection, *rest):
    """Call the plain form, whose modules are products with these weights."""
    return plain_recurrence(gates, hidden, cell, lambda x: x @ recurrent.T, lambda x: x @ projection.T, *rest)


@pytest.mark.parametrize("clips", CLIPS)
def test_the_trained_form_equals_the_plain_one_in_values_and_gradients(clips, arguments):
    plain = by_weights(*arguments, WORDS, *clips)
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


def test_in_16_bits_both_forms_multiply_in_16_bits_and_keep_their_states_in_32(arguments):
    gates, hidden, cell, *weights = (tensor.detach().float() for tensor in arguments)
    halves = [gates.bfloat16(), hidden, cell, *(weight.bfloat16() for weight in weights)]
    exact = by_weights(gates, hidden, cell, *weights, WORDS, 3.0, 3.0)
    for form in (trained_recurrence, by_weights):
        for output, expected in zip(form(*halves, WORDS, 3.0, 3.0), exact, strict=True):
            assert output.dtype == torch.float32
            assert 0 < (output - expected).norm() < SIXTEEN_BITS * expected.norm()


def test_the_trained_form_takes_no_steps_at_all(arguments):
    arguments[0] = arguments[0][:0].detach().requires_grad_()
    outputs, hidden, cell = trained_recurrence(*arguments, [], None, None)
    assert outputs.shape == (0, SIZE)
    (hidden.sum() + cell.sum()).backward()
    assert (arguments[1].grad == 1).all()


@pytest.fixture
def _two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def test_threads_with_threads_of_their_own_number_read_side_by_side():
    def work(threads: int) -> int:
        torch.set_num_threads(threads)
        return sum(run_in_parallel(lambda side: torch.get_num_threads())[1] for _ in range(50))

    with ThreadPoolExecutor(8) as executor:
        counts = [2, 4, 6, 2, 4, 6, 2, 4]
        assert list(executor.map(work, counts, timeout=60)) == [50 * count // 2 for count in counts]


@pytest.mark.usefixtures("_two_threads")
def test_what_is_read_side_by_side_is_under_the_callers_autocast():
    def product(_: int) -> torch.dtype:
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    assert run_in_parallel(product) == [torch.float32] * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run_in_parallel(product) == [torch.bfloat16] * 2


@pytest.mark.usefixtures("_two_threads")
def test_after_the_backward_pass_a_loss_keeps_no_activations_unless_it_is_to_be_used_again():
    weight = torch.randn(3, 3, requires_grad=True)
    made = []

    def function(_: int, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = (inputs @ weight).tanh()
        made.append(weakref.ref(hidden))
        return (hidden * hidden,)

    inputs = torch.randn(2, 3, requires_grad=True)
    (first,), (second,) = train_in_parallel(function, (inputs,), ([weight], [weight]))
    loss = (first + second).sum()
    loss.backward(retain_graph=True)
    assert all(tensor() is not None for tensor in made)
    once = weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(weight.grad, 2 * once)
    assert [tensor() for tensor in made] == [None, None]
    with pytest.raises((RuntimeError, TypeError)):
        loss.backward()
