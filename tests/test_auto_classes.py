"""A saved folder loads through the auto classes: with the package imported, and in a process that cannot have it."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from clean_process import run_without_package
from transformers import AutoConfig, AutoModel, AutoTokenizer

import modeling_elmo
from modeling_elmo import ElmoConfig, ElmoForTokenClassification, ElmoModel, ElmoTokenizer
from modeling_elmo.configuration_elmo import AUTO_MAP

# The LSTM's are whole tiles, as the compiled recurrence takes.
SIZES = {"char_embedding_dim": 4, "char_filters": [[1, 4], [3, 8]], "projection_dim": 64, "cell_dim": 64}
WORDS = ["The", "naïve", "bank", "🏦", "lends", "x" * 60]

# Loads the folder by its own code and saves the vectors.
CLEAN_PROCESS = """
    import sys

    folder, words, result = sys.argv[1], sys.argv[2].split("\\n"), sys.argv[3]

    import torch
    import transformers

    for auto_class in sys.argv[4].split(","):
        model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules"), type(model).__module__
    inputs = tokenizer([words], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        torch.save(model(**inputs)[0], result)
    if len(sys.argv) > 5:
        model.save_pretrained(sys.argv[5])
        tokenizer.save_pretrained(sys.argv[5])
"""


def vectors_of(model: ElmoModel, tokenizer: ElmoTokenizer) -> torch.Tensor:
    with torch.no_grad():
        return model(**tokenizer([WORDS], is_split_into_words=True, return_tensors="pt")).last_hidden_state


def load_in_clean_process(
    folder: Path,
    tmp_path: Path,
    resave: Path | None = None,
    blocked: tuple[str, ...] = (),
    last: str = "AutoModel",
) -> torch.Tensor:
    """Loads the folder through every auto class; what the model of the `last` one makes of the words."""
    result = tmp_path / "vectors.pt"
    auto_classes = ",".join([*(name for name in AUTO_MAP if name != last), "AutoTokenizer", last])
    arguments = [folder, "\n".join(WORDS), result, auto_classes, *([resave] if resave else [])]
    run_without_package(CLEAN_PROCESS, *arguments, folder=tmp_path, also=blocked)
    return torch.load(result, weights_only=True)


@pytest.fixture
def model() -> ElmoModel:
    torch.manual_seed(0)
    return ElmoModel(ElmoConfig(**SIZES)).eval()


def test_the_package_registers_every_auto_class_of_the_map():
    for auto_class, reference in AUTO_MAP.items():
        auto = getattr(transformers, auto_class)
        name = reference.split(".")[-1]
        mapping = auto._model_mapping if hasattr(auto, "_model_mapping") else {ElmoConfig: ElmoConfig}
        assert mapping[ElmoConfig] is getattr(modeling_elmo, name)


def test_with_the_package_imported_a_folder_loads_without_trust_remote_code(model, tmp_path):
    model.save_pretrained(tmp_path)
    ElmoTokenizer(vocab=["bank"]).save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is ElmoConfig
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(tokenizer) is ElmoTokenizer
    assert tokenizer.convert_tokens_to_ids("bank") == 4
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is ElmoModel
    torch.testing.assert_close(vectors_of(loaded, tokenizer), vectors_of(model, tokenizer))


def test_a_model_saved_alone_has_the_whole_map_its_code_and_a_tokenizer(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP
    code = {path.name for path in tmp_path.glob("*.py")}
    names = (
        "bilm",
        "classification",
        "configuration",
        "coreference",
        "heads",
        "kernel",
        "layers",
        "modeling",
        "pretraining",
        "reading",
        "recurrence",
        "roles",
        "softmax",
        "splitting",
        "tagging",
        "threads",
        "tokenization",
    )
    assert code == {f"{name}_elmo.py" for name in names}
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is ElmoTokenizer


def test_saving_a_model_beside_its_tokenizer_keeps_the_vocabulary(model, tmp_path):
    ElmoTokenizer(vocab=["bank"]).save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).vocab_size == 5


@pytest.mark.parametrize("blocked", [(), ("numba", "h5py", "pyarrow", "datasets")], ids=str)
def test_a_model_saved_alone_loads_in_a_process_without_the_package(blocked, model, tmp_path):
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    vectors = load_in_clean_process(folder, tmp_path, blocked=blocked)
    torch.testing.assert_close(vectors, vectors_of(model, ElmoTokenizer()))


def test_a_task_model_loads_in_a_process_without_the_package_by_its_auto_class(tmp_path):
    torch.manual_seed(0)
    tokenizer = ElmoTokenizer(vocab=["bank", "the"], lowercase_fallback=True)
    model = ElmoForTokenClassification(ElmoConfig(**SIZES, vocab_size=len(tokenizer), word_vector_dim=3)).eval()
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    logits = load_in_clean_process(folder, tmp_path, last="AutoModelForTokenClassification")
    with torch.no_grad():
        expected = model(**tokenizer([WORDS], is_split_into_words=True, return_tensors="pt")).logits
    torch.testing.assert_close(logits, expected)


def test_a_folder_saved_by_its_own_code_loads_again(model, tmp_path):
    folder, again = tmp_path / "model", tmp_path / "again"
    model.save_pretrained(folder)
    ElmoTokenizer(vocab=["bank"]).save_pretrained(folder)
    load_in_clean_process(folder, tmp_path, resave=again)
    vectors = load_in_clean_process(again, tmp_path)
    torch.testing.assert_close(vectors, vectors_of(model, ElmoTokenizer()))
    assert AutoTokenizer.from_pretrained(again).vocab_size == 5


def test_code_in_a_folder_does_not_run_unless_trusted(model, tmp_path):
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    marker = tmp_path / "ran"
    for path in folder.glob("*.py"):
        path.write_text(f"open({str(marker)!r}, 'w').close()\n" + path.read_text())
    AutoTokenizer.from_pretrained(folder)
    AutoModel.from_pretrained(folder)
    assert not marker.exists()
