"""The engine gives the modules' numbers, is never stale, and never bypasses a module that someone changed."""

import copy
import pickle
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from peft import LoraConfig, get_peft_model
from torch.nn.utils import parametrize, prune

from modeling_elmo import ElmoConfig, ElmoForPreTraining, ElmoModel, ElmoTokenizer, bilm_elmo, layers_elmo
from modeling_elmo.layers_elmo import ElmoLstmLayer, PackedLstm, is_plain
from modeling_elmo.recurrence_elmo import plain_recurrence

SIZES = {
    "char_embedding_dim": 4,
    "char_filters": [[1, 4], [2, 8], [3, 8]],
    "num_highway_layers": 1,
    "projection_dim": 64,
    "cell_dim": 128,
    "vocab_size": 50,
}
SENTENCES = [["The", "bank", "of", "the", "river", "."], ["Money", "."], ["A", "loan", "from", "the", "bank"]]
CLIPS = [(None, None), (0.3, 0.2), (3.0, None)]
# Sums of a few dozen float32 products, and tanh by way of the logistic function.
TOLERANCE = 2e-6
# Merging adds two products before they are multiplied: other roundings.
MERGE_TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def _two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model() -> ElmoModel:
    torch.manual_seed(0)
    return ElmoModel(ElmoConfig(**SIZES)).eval()


def encode(sentences=SENTENCES):
    return ElmoTokenizer()(list(sentences), is_split_into_words=True, padding=True, return_tensors="pt")


def vectors(model, sentences=SENTENCES, grad: bool = False) -> torch.Tensor:
    with torch.enable_grad() if grad else torch.no_grad():
        return model(**encode(sentences)).last_hidden_state


def in_every_mode(model) -> list[torch.Tensor]:
    """Vectors in a batch and of one sentence, with and without gradients."""
    results = []
    for sentences in (SENTENCES, SENTENCES[:1]):
        results += [vectors(model, sentences), vectors(model, sentences, grad=True).detach()]
    return results


def assert_all_close(results, expected, tolerance: float = TOLERANCE) -> None:
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result, other, atol=tolerance, rtol=0)


# ---------------------------------------------------------------------------------------------------- the same numbers


def make_layer(clips, size: int = 3, cells: int = 6, scale: float = 1.0) -> ElmoLstmLayer:
    torch.manual_seed(0)
    config = ElmoConfig(**{**SIZES, "projection_dim": size, "cell_dim": cells})
    layer = ElmoLstmLayer(config)
    layer.clips = clips
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return layer


def plain(layer, inputs, hidden, cell, sizes):
    modules = (layer.recurrent_gates, layer.projection)
    return plain_recurrence(layer.input_gates(inputs), hidden, cell, *modules, sizes, *layer.clips)


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("sizes", [[4, 4, 3, 1, 1], [1] * 7, []], ids=str)
@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("words_at_once", [2, 1024])
@torch.no_grad()
def test_the_packed_form_equals_the_plain_one(clips, sizes, with_index, words_at_once, monkeypatch):
    monkeypatch.setattr(layers_elmo, "WORDS_AT_ONCE", words_at_once)
    layer = make_layer(clips)
    sentences = max(sizes[0] if sizes else 1, 1)
    distinct, index = torch.randn(4, 3), torch.randint(0, 4, (sum(sizes),))
    hidden, cell = torch.randn(sentences, 3), torch.randn(sentences, 6).clamp(-0.3, 0.3)
    before = hidden.clone(), cell.clone()
    inputs, index_or_none = (distinct, index) if with_index else (distinct[index], None)
    packed = PackedLstm(layer)(inputs, hidden, cell, sizes, index_or_none)
    torch.testing.assert_close(packed, plain(layer, distinct[index], *before, sizes), atol=TOLERANCE, rtol=0)
    assert torch.equal(hidden, before[0])
    assert torch.equal(cell, before[1])


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("words", [0, 1, 7])
@pytest.mark.parametrize("words_at_once", [3, 1024])
@torch.no_grad()
def test_the_compiled_form_equals_the_plain_one(clips, words, words_at_once, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(layers_elmo, "WORDS_AT_ONCE", words_at_once)
    layer = make_layer(clips, 64, 128, scale=0.1)
    packed = PackedLstm(layer)
    assert packed.tiles
    inputs, hidden, cell = torch.randn(words, 64), torch.randn(1, 64), torch.randn(1, 128).clamp(-0.3, 0.3)
    before = hidden.clone(), cell.clone()
    compiled = packed(inputs, hidden, cell, [1] * words)
    torch.testing.assert_close(compiled, plain(layer, inputs, *before, [1] * words), atol=TOLERANCE, rtol=0)
    assert torch.equal(hidden, before[0])
    assert torch.equal(cell, before[1])


@torch.no_grad()
def test_the_compiled_form_survives_extreme_gates_and_lets_nan_through():
    pytest.importorskip("numba")
    layer = make_layer((3.0, 3.0), 64, 128, scale=0.1)
    packed, states = PackedLstm(layer), (torch.zeros(1, 64), torch.zeros(1, 128))
    inputs = torch.randn(4, 64) * 1e4
    compiled = packed(inputs, *states, [1] * 4)
    torch.testing.assert_close(compiled, plain(layer, inputs, *states, [1] * 4), atol=TOLERANCE, rtol=0)
    inputs[2, 5] = torch.nan
    outputs, hidden, cell = packed(inputs, *states, [1] * 4)
    assert outputs[:2].isfinite().all()
    assert all(part.isnan().all() for part in (outputs[2:], hidden, cell))


@torch.no_grad()
def test_layers_of_other_sizes_than_whole_tiles_or_beyond_the_cache_are_not_compiled(monkeypatch):
    pytest.importorskip("numba")
    for sizes in ((60, 128), (64, 100)):
        assert PackedLstm(make_layer((3.0, 3.0), *sizes)).tiles == []
    monkeypatch.setattr(layers_elmo, "CACHED_WEIGHTS", 10_000)
    assert PackedLstm(make_layer((3.0, 3.0), 64, 128)).tiles == []


@pytest.mark.parametrize("sentences", [SENTENCES, SENTENCES[:1]], ids=len)
@pytest.mark.parametrize("with_numba", [True, False])
def test_the_engine_equals_the_modules(sentences, with_numba, model, monkeypatch):
    if not with_numba:
        monkeypatch.setattr(layers_elmo, "_compiled_recurrence", lambda: None)
    fast = model(**encode(sentences), output_hidden_states=True, use_cache=True)
    with torch.no_grad():
        fast = model(**encode(sentences), output_hidden_states=True, use_cache=True)
    monkeypatch.setattr(bilm_elmo, "prepare", lambda *_: None)
    with torch.no_grad():
        slow = model(**encode(sentences), output_hidden_states=True, use_cache=True)
    for name in ("hidden_states", "states"):
        torch.testing.assert_close(fast[name], slow[name], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("sentences", [SENTENCES, SENTENCES[:1]], ids=len)
def test_in_bfloat16_vectors_are_about_those_of_float32_and_states_stay_in_float32(sentences, model):
    exact = vectors(model, sentences)
    half = copy.deepcopy(model).to(torch.bfloat16)
    for grad in (False, True):
        rounded = vectors(half, sentences, grad)
        assert rounded.dtype == torch.bfloat16
        cosines = torch.nn.functional.cosine_similarity(rounded.float(), exact, dim=-1)
        assert cosines[exact.abs().sum(-1) > 0].min() > 0.999
    with torch.no_grad():
        states = half(**encode(sentences), use_cache=True).states
    assert all(state.dtype == torch.float32 for state in states)


# ------------------------------------------------------------------------------------------------------- never stale


def scale_in_place(model: ElmoModel) -> None:
    with torch.no_grad():
        model.forward_lm.layers[0].recurrent_gates.weight.mul_(1.5)


def scale_through_data(model: ElmoModel) -> None:
    model.forward_lm.layers[0].recurrent_gates.weight.data *= 1.5


def step(model: ElmoModel) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    vectors(model, grad=True).square().sum().backward()
    optimizer.step()


def load(model: ElmoModel, assign: bool = False) -> None:
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()}, assign=assign)


def replace(model: ElmoModel) -> None:
    layer = model.backward_lm.layers[1].projection
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 1.5)


def prune_and_remove(model: ElmoModel) -> None:
    layer = model.char_encoder.projection
    prune.l1_unstructured(layer, "weight", amount=0.5)
    prune.remove(layer, "weight")


def prune_and_keep(model: ElmoModel) -> None:
    prune.l1_unstructured(model.forward_lm.layers[1].input_gates, "weight", amount=0.5)


def parametrized(model: ElmoModel) -> None:
    parametrize.register_parametrization(model.char_encoder.projection, "weight", torch.nn.Tanh())


def round_trip(model: ElmoModel) -> None:
    model.to(torch.bfloat16).to(torch.float32)


@pytest.mark.parametrize(
    "change",
    [
        scale_in_place,
        scale_through_data,
        step,
        load,
        lambda model: load(model, assign=True),
        replace,
        prune_and_remove,
        prune_and_keep,
        parametrized,
        round_trip,
    ],
    ids="in_place by_data optimizer load load_assign replace pruned pruning parametrized dtype".split(),
)
def test_a_change_of_the_weights_counts_at_once(change, model):
    fresh = copy.deepcopy(model)
    before = in_every_mode(model)
    change(model)
    after = in_every_mode(model)
    change(fresh)
    assert_all_close(after, in_every_mode(fresh))
    for old, new in zip(before, after, strict=True):
        assert not torch.equal(old, new)


def change_bias(model: ElmoModel) -> None:
    model.char_encoder.highways[0].transform.bias = None


def add_bias(model: ElmoModel) -> None:
    gates = model.forward_lm.layers[0].recurrent_gates
    gates.bias = torch.nn.Parameter(torch.ones(len(gates.weight)))


def wrap(model: ElmoModel) -> None:
    layer = model.forward_lm.layers[1]
    layer.input_gates = torch.nn.Sequential(layer.input_gates, torch.nn.Tanh())


def change_activation(model: ElmoModel) -> None:
    model.char_encoder.activation = torch.nn.Tanh()


def change_clips(model: ElmoModel) -> None:
    model.forward_lm.layers[0].clips = (0.01, 0.01)


def transpose_and_scale(model: ElmoModel) -> None:
    layer = model.char_encoder.highways[0].transform
    layer.weight = torch.nn.Parameter(layer.weight.detach().T)
    vectors(model)
    layer.weight.data.mul_(3)


@pytest.mark.parametrize("change", [change_bias, add_bias, wrap, change_activation, change_clips, transpose_and_scale])
def test_a_change_of_anything_else_counts_at_once(change, model):
    torch.nn.init.normal_(model.char_encoder.highways[0].transform.bias)
    before = in_every_mode(model)
    change(model)
    after = in_every_mode(model)
    assert_all_close(after[::2], after[1::2])
    for old, new in zip(before, after, strict=True):
        assert not torch.equal(old, new)


def test_a_hook_of_a_weight_runs_once(model):
    weight = model.forward_lm.layers[0].recurrent_gates.weight
    gradients = []
    for hook in (None, lambda gradient: gradient / 2):
        weight.grad = None
        if hook is not None:
            weight.register_hook(hook)
        vectors(model, grad=True).square().sum().backward()
        gradients.append(weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0] / 2)


def test_nothing_is_kept_of_a_model_that_the_engine_no_longer_runs(model):
    vectors(model)
    assert model._packed is not None
    vectors(model.double())
    assert model._packed is None


def test_another_thread_in_the_word_cache_does_not_stop_a_call(model):
    expected = vectors(model)
    with model._packed._lock:
        assert_all_close([vectors(model)], [expected])


def test_clearing_the_caches_during_another_threads_call_is_harmless(model):
    expected = vectors(model)
    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(vectors, model) for _ in range(60)]
        while not results[-1].done():
            model.clear_caches()
            time.sleep(0.001)
        assert_all_close([result.result() for result in results], [expected] * 60)


def test_clear_caches_makes_a_few_values_written_through_data_count(model):
    torch.manual_seed(0)
    large = ElmoModel(ElmoConfig(**{**SIZES, "cell_dim": 256})).eval()
    vectors(large)
    large.forward_lm.layers[0].recurrent_gates.weight.data[1] += 1
    large.clear_caches()
    assert_all_close([vectors(large)], [vectors(copy.deepcopy(large))])


def test_what_the_engine_keeps_is_neither_pickled_nor_copied(model):
    vectors(model)
    assert pickle.loads(pickle.dumps(model))._packed is None
    assert copy.deepcopy(model)._packed is None


# ------------------------------------------------------------------------------------------------ no module bypassed


def test_forward_hooks_of_every_module_fire_in_every_mode(model):
    names = [name for name, module in model.named_modules() if name and not isinstance(module, torch.nn.ModuleList)]
    assert "forward_lm.layers.0.recurrent_gates" in names
    for name in names:
        calls = []
        handle = model.get_submodule(name).register_forward_hook(lambda *_, calls=calls: calls.append(1))
        for sentences in (SENTENCES, SENTENCES[:1]):
            for grad in (False, True):
                calls.clear()
                vectors(model, sentences, grad)
                assert calls, (name, len(sentences), grad)
                calls.clear()
                vectors(model, sentences, grad)  # words are known by now
                assert calls, (name, len(sentences), grad)
        handle.remove()


def test_backward_hooks_of_every_module_fire(model):
    for name, module in model.named_modules():
        if not name or isinstance(module, (torch.nn.ModuleList, torch.nn.Embedding)):
            continue
        calls = []
        handle = module.register_full_backward_hook(lambda *_, calls=calls: calls.append(1))
        vectors(model, grad=True).square().sum().backward()
        assert calls, name
        handle.remove()


def test_a_hook_that_changes_an_output_changes_the_vectors(model):
    before = in_every_mode(model)
    module = model.backward_lm.layers[0].recurrent_gates
    handle = module.register_forward_hook(lambda module, args, output: 2 * output)
    for old, new in zip(before, in_every_mode(model), strict=True):
        assert not torch.allclose(old, new, atol=1e-4)
    handle.remove()
    assert_all_close(in_every_mode(model), before)


def test_a_global_hook_sees_every_module(model):
    seen = set()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.add(module))
    try:
        vectors(model)
    finally:
        handle.remove()
    assert set(model.modules()) - seen <= {m for m in model.modules() if isinstance(m, torch.nn.ModuleList)}


@pytest.mark.parametrize(
    "targets",
    [["input_gates"], ["recurrent_gates"], ["projection"], ["transform", "carry"], ["convolutions.1"]],
    ids=str,
)
def test_lora_counts_with_and_without_gradients_and_switches_at_once(targets, model):
    base = in_every_mode(model)
    names = [name for name, _ in model.named_modules() if name.endswith(tuple(targets))]
    config = LoraConfig(target_modules=names, r=4, init_lora_weights=False)
    adapted = get_peft_model(model, config).eval()
    with_adapter = in_every_mode(adapted)
    assert_all_close(with_adapter[::2], with_adapter[1::2])
    for old, new in zip(base, with_adapter, strict=True):
        assert not torch.allclose(old, new, atol=1e-4)
    with adapted.disable_adapter():
        assert_all_close(in_every_mode(adapted), base)
    assert_all_close(in_every_mode(adapted), with_adapter)
    adapted.add_adapter("other", config)
    adapted.set_adapter("other")
    assert not torch.allclose(vectors(adapted), with_adapter[0], atol=1e-4)
    adapted.set_adapter("default")
    assert_all_close(in_every_mode(adapted), with_adapter)
    vectors(adapted, grad=True).square().sum().backward()
    gradients = {name: p.grad for name, p in adapted.named_parameters() if "lora_" in name and ".default." in name}
    assert gradients
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())
    merged = adapted.merge_and_unload()
    assert is_plain(merged)
    assert_all_close(in_every_mode(merged), with_adapter, MERGE_TOLERANCE)


def test_a_merge_right_after_loading_an_adapter_counts(model):
    """PEFT merges through `weight.data`, which torch does not count."""
    base = vectors(model)
    names = [name for name, _ in model.named_modules() if name.endswith("recurrent_gates")]
    merged = get_peft_model(model, LoraConfig(target_modules=names, r=4, init_lora_weights=False)).merge_and_unload()
    after = vectors(merged)
    assert not torch.allclose(base, after, atol=1e-4)
    assert_all_close([after], [vectors(copy.deepcopy(merged))])


@pytest.mark.parametrize("target", ["word_embedding", "char_encoder.projection"])
def test_a_merge_into_a_model_with_word_embeddings_counts(target):
    torch.manual_seed(0)
    model = ElmoModel(ElmoConfig(**SIZES, word_embedding_dim=8, spelling="dictionary")).eval()
    base = vectors(model)
    config = LoraConfig(target_modules=rf".*{target}", r=4, init_lora_weights=False)
    merged = get_peft_model(model, config).merge_and_unload()
    after = vectors(merged)
    assert not torch.allclose(base, after, atol=1e-4)
    assert_all_close([after], [vectors(copy.deepcopy(merged))])


@pytest.mark.parametrize("how", ["cpu", "disk"])
def test_offloaded_weights_give_the_plain_result(how, model, tmp_path):
    expected = in_every_mode(model)
    if how == "cpu":
        cpu_offload(model, execution_device="cpu")
    else:
        disk_offload(model, tmp_path / "weights", execution_device="cpu")
    assert next(model.forward_lm.parameters()).is_meta
    for sentences, result in zip((SENTENCES, SENTENCES[:1]), expected[::2], strict=True):
        assert_all_close([vectors(model, sentences)], [result])


def test_a_device_map_with_little_memory_gives_the_plain_result(tmp_path):
    torch.manual_seed(0)
    model = ElmoForPreTraining(ElmoConfig(**{**SIZES, "num_negatives": 0})).eval()
    model.save_pretrained(tmp_path / "model")
    batch = encode()
    labels = torch.where(batch["attention_mask"].bool(), torch.randint(1, 50, batch["input_ids"].shape), -100)
    with torch.no_grad():
        expected = model(**batch, labels=labels)
    loaded = ElmoForPreTraining.from_pretrained(
        tmp_path / "model", device_map="auto", max_memory={"cpu": "300KB"}, offload_folder=tmp_path / "offload"
    )
    assert "disk" in loaded.hf_device_map.values()
    with torch.no_grad():
        result = loaded(**batch, labels=labels)
        logits = loaded(**batch)
    torch.testing.assert_close(result.loss, expected.loss, atol=1e-5, rtol=0)
    assert logits.forward_logits.shape == (3, 8, 50)


FSDP = """
import sys, torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
sys.path.insert(0, sys.argv[1])
from modeling_elmo import ElmoConfig, ElmoModel, ElmoTokenizer

dist.init_process_group("gloo")
torch.manual_seed(0)
model = ElmoModel(ElmoConfig(**{sizes}))
plain = ElmoModel(model.config)
plain.load_state_dict(model.state_dict())
for module in model.modules():
    if type(module).__name__ in model._no_split_modules:
        fully_shard(module, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
batch = ElmoTokenizer()({sentences}, is_split_into_words=True, padding=True, return_tensors="pt")
for training in (False, True):
    model.train(training), plain.train(training)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for states in (None, plain(**batch, use_cache=True).states):
                states = None if states is None else tuple(state.detach() for state in states)
                found = model(**batch, states=states).last_hidden_state
                torch.testing.assert_close(found, plain(**batch, states=states).last_hidden_state, atol=2e-6, rtol=0)
found.square().sum().backward()
plain(**batch, states=states).last_hidden_state.square().sum().backward()
for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
    torch.testing.assert_close(parameter.grad.full_tensor(), other.grad, atol=1e-4, rtol=1e-4, msg=name)
print("same", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_fsdp2_along_the_modules_not_to_split_gives_the_plain_result(tmp_path, pytestconfig):
    script = tmp_path / "shard.py"
    sizes = {**SIZES, "dropout": 0.0}
    script.write_text(FSDP.replace("{sizes}", repr(sizes)).replace("{sentences}", repr(SENTENCES)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(
        [*command, str(pytestconfig.rootpath)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.count("same") == 2, textwrap.shorten(done.stderr, 3000)
