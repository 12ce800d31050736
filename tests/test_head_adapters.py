"""Adapters and hooks on the modules of task models: no module is bypassed, whether gradients are recorded or not.

The modules of the biLM are tested with the biLM.
"""

import peft
import pytest
import test_coref
import test_heads
import test_squad
import torch
from test_heads import HEADS
from torch import Tensor, nn
from torch.nn.utils import parametrize

from modeling_elmo import ElmoTokenizer
from modeling_elmo.heads_elmo import is_plain

ALL_HEADS = (*HEADS, "reader", "coref")
HEADS_WITH_GATES = tuple(head for head in ALL_HEADS if head != "pooled")
GATES = r"(?!elmo\.).*\.(input_gates|recurrent_gates)"
# Sums of a few hundred float32 products in another order.
TOLERANCE = 1e-5


def build(head: str, **changes) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a model, without dropout and two layers deep unless `changes` say otherwise, and a batch with labels."""
    tokenizer = ElmoTokenizer(vocab=test_heads.WORDS, lowercase_fallback=True)
    changes = {"head_dropout": 0.0, "elmo_dropout": 0.0, "head_layers": 2, **changes}
    if head == "coref":
        vocabulary = ElmoTokenizer(vocab=test_coref.VOCABULARY, lowercase_fallback=True)
        return test_coref.build(**changes), dict(test_coref.batch_of(test_coref.DOCUMENTS, vocabulary))
    if head == "reader":
        inputs = test_squad.encode(tokenizer)
        words = test_squad.in_context(tokenizer)
        inputs["start_positions"] = torch.tensor([row.start for row in words])
        inputs["end_positions"] = torch.tensor([row.stop - 1 for row in words])
        return test_squad.build(**changes), inputs
    inputs = test_heads.encode(head, tokenizer, return_special_tokens_mask=True)
    labels = test_heads.labels_for(head, {**inputs, "special": inputs.pop("special_tokens_mask")})
    if head == "choice":  # one choice alone has nothing to learn from
        for name, tensor in inputs.items():
            inputs[name] = torch.cat([tensor, tensor.roll(1, 0)], dim=1)
    return test_heads.build(head, **changes), {**inputs, "labels": labels}


def scores(model: nn.Module, inputs: dict[str, Tensor], gradients: bool = False) -> Tensor:
    """Return the loss and all scores as one vector."""
    with torch.set_grad_enabled(gradients):
        output = model(**inputs)
    names = ("loss", "logits", "start_logits", "mention_scores")
    return torch.cat([output[name].flatten() for name in names if output.get(name) is not None])


def same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, atol=TOLERANCE, rtol=0)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def randomize(model: nn.Module, adapter: str) -> None:
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if f".{adapter}." in name:
            nn.init.normal_(parameter, std=0.5)


@pytest.mark.parametrize("kind", ["input_gates", "recurrent_gates"])
@pytest.mark.parametrize("head", HEADS_WITH_GATES)
def test_an_adapter_of_the_gates_counts_with_and_without_gradients_and_learns(head, kind, threads):
    model, inputs = build(head)
    before = scores(model, inputs)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=rf"(?!elmo\.).*\.{kind}")
    adapted = peft.get_peft_model(model, config)
    assert same(scores(adapted, inputs), before)  # an adapter starts out as none
    randomize(adapted, "default")
    after = scores(adapted, inputs)
    assert not same(after, before)
    assert same(scores(adapted, inputs, gradients=True), after)
    adapted(**inputs).loss.backward()
    for name, parameter in adapted.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None and bool(parameter.grad.any())), name


@pytest.mark.parametrize("head", HEADS_WITH_GATES)
def test_switching_and_merging_adapters_takes_effect_at_once(head):
    model, inputs = build(head)
    before = scores(model, inputs)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=GATES))
    adapted.add_adapter("other", peft.LoraConfig(r=2, lora_alpha=8, target_modules=GATES))
    randomize(adapted, "default")
    randomize(adapted, "other")
    of_default = scores(adapted, inputs)
    with adapted.disable_adapter():
        assert same(scores(adapted, inputs), before)
    assert same(scores(adapted, inputs), of_default)
    adapted.set_adapter("other")
    of_other = scores(adapted, inputs)
    assert not same(of_other, of_default)
    adapted.set_adapter("default")
    assert same(scores(adapted, inputs), of_default)
    merged = adapted.merge_and_unload(adapter_names=["default"])
    assert same(scores(merged, inputs), of_default)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("head", ALL_HEADS)
def test_hooks_on_every_module_fire_and_change_nothing(head, is_training, gradients):
    model, inputs = build(head)
    model.train(is_training)
    before = scores(model, inputs, gradients)
    fired = set()
    expected = set()
    for name, module in model.named_modules():
        # Lists are never called, nor is the dropout between layers where there is one layer.
        is_unused = (
            name.endswith(".dropout") and len(getattr(model.get_submodule(name[:-8]), "forward_layers", "12")) < 2
        )
        if not name or name.startswith("elmo.") or isinstance(module, nn.ModuleList) or is_unused:
            continue
        expected.add(name)
        module.register_forward_hook(lambda *_, name=name: fired.add(name))
    assert same(scores(model, inputs, gradients), before)
    assert fired == expected


@pytest.mark.parametrize("head", HEADS_WITH_GATES)
def test_backward_hooks_on_the_gates_fire_and_change_no_gradient(head):
    model, inputs = build(head)
    model(**inputs).loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    fired = set()
    gates = [name for name, _ in model.named_modules() if name.endswith("_gates") and not name.startswith("elmo.")]
    for name in gates:
        model.get_submodule(name).register_full_backward_hook(lambda *_, name=name: fired.add(name))
    model(**inputs).loss.backward()
    assert fired == set(gates)
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, atol=TOLERANCE, rtol=1e-4, msg=name)


def with_hook(linear: nn.Linear) -> nn.Linear:
    linear.register_forward_pre_hook(lambda *_: None)
    return linear


def parametrized(linear: nn.Linear) -> nn.Linear:
    parametrize.register_parametrization(linear, "weight", nn.Identity())
    return linear


class OtherLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(2, 2), True),
        (nn.ModuleList([nn.Linear(2, 2)]), True),
        (with_hook(nn.Linear(2, 2)), False),
        (nn.ModuleList([with_hook(nn.Linear(2, 2))]), False),
        (parametrized(nn.Linear(2, 2)), False),
        (OtherLinear(2, 2), False),
        (nn.Linear(2, 2, device="meta"), False),
    ],
    ids=["linear", "nested", "hook", "nested hook", "parametrization", "subclass", "meta"],
)
def test_only_modules_without_additions_are_plain(module, expected):
    assert is_plain(module) == expected
