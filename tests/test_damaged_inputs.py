"""Files of every kind, damaged at random: the right result, another well-formed one, or one line. `make fuzz` does
tens of thousands of what is done here to some hundreds.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import shutil
import struct
import threading
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from damage import GIGABYTE, NODES, Kind, Outcome, attempt, freeze, replace_by_node, run_forked
from fuzz import Fuzzer
from inputs import COMPARISON, SENSES, all_kinds, make_wic, vector_text
from typer.testing import CliRunner

from modeling_elmo.cli import app
from modeling_elmo.corpus import LONGEST_LINE, open_corpus
from modeling_elmo.files import BAD_INPUT, LONGEST_MESSAGE, ElmoError, file_digest
from modeling_elmo.word_vectors import load_word_vectors
from training import evaluate, pretrain
from training.task_data import read_examples

KINDS = {kind.name: kind for kind in all_kinds()}
CASES_PER_KIND = 6
TEXT_FILE = re.compile(r"\.(txt|vec|jsonl|json|csv|tsv|conll|conllu|2012|yaml)(\.(gz|bz2|xz))?$")
TOO_LONG = "x" * 5000
MEGABYTES = 16


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    freeze()
    return Fuzzer(list(KINDS.values()), tmp_path_factory.mktemp("fuzz"))


def assert_refused(outcome: Outcome, *parts: object) -> None:
    assert outcome.kind == "refused", outcome
    for part in parts:
        assert str(part) in outcome.details
    assert outcome.peak < GIGABYTE


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_give_a_result_or_one_line(kind: str, fuzzer: Fuzzer) -> None:
    cases = fuzzer.run(KINDS[kind], range(CASES_PER_KIND))
    assert len(cases) == CASES_PER_KIND
    failures = [case for case in cases if case.outcome.is_failure]
    assert not failures


def _read_with_node(kind: Kind, source: Path, folder: Path, file: str, node: str) -> Outcome:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    replace_by_node(folder / file, node)
    return attempt(lambda: kind.read(folder))


@pytest.mark.parametrize("node", NODES)
def test_what_is_no_regular_file_is_refused_at_once(node: str, fuzzer: Fuzzer) -> None:
    places, runs = [], []
    for kind in KINDS.values():
        source = fuzzer.source(kind)
        files = kind.files_in(source)
        for file in files[:1] if kind.is_sealed else files:
            places.append((kind.name, file))
            runs.append(partial(_read_with_node, kind, source, fuzzer.scratch / "node", file, node))
    for (name, file), outcome in zip(places, run_forked(runs), strict=True):
        may_be_read = outcome.value == fuzzer.expected[name] or node in ("missing", "dangling")
        is_fine = outcome.kind == "refused" or (outcome.kind == "other" and may_be_read)
        assert is_fine, (name, file, outcome)


def _rewrite(kind: Kind, source: Path, folder: Path, change: Any) -> Outcome:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    path = folder / kind.files_in(folder)[0]
    packing = kind.packings.get(path.suffix)
    data = path.read_bytes()
    path.write_bytes(packing.pack(change(packing.unpack(data))) if packing else change(data))
    return attempt(lambda: kind.read(folder))


@pytest.mark.parametrize("change", ["line ends of Windows", "a byte-order mark", "an empty line at the end"])
def test_what_means_nothing_changes_nothing(change: str, fuzzer: Fuzzer) -> None:
    changes = {
        "line ends of Windows": lambda data: data.replace(b"\n", b"\r\n"),
        "a byte-order mark": lambda data: b"\xef\xbb\xbf" + data,
        "an empty line at the end": lambda data: data + b"\n",
    }
    kinds = []
    for kind in KINDS.values():
        (file, *others) = kind.files_in(fuzzer.source(kind))
        # An empty line is a row of a text; predictions are written into all lines of CoNLL-2012.
        is_text = ".txt" in file and kind.name.startswith(("corpus", "prepared"))
        keeps_lines = is_text or kind.name == "srl-data.2012"
        if not others and TEXT_FILE.search(file) and not (keeps_lines and "empty" in change):
            kinds.append(kind)
    runs = [partial(_rewrite, kind, fuzzer.source(kind), fuzzer.scratch / "same", changes[change]) for kind in kinds]
    assert len(runs) >= 40
    for kind, outcome in zip(kinds, run_forked(runs), strict=True):
        assert outcome.value == fuzzer.expected[kind.name], (kind.name, outcome)


# --------------------------------------------------------------------------------------------------------- long lines


def long_line(ending: str) -> bytes:
    """Return a line of a gigabyte after a short one, compressed: streams may follow each other in a file."""
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": partial(lzma.compress, preset=0)}[ending]
    return compress(b'{"text": "a b"}\n') + compress(b"a" * (MEGABYTES << 20)) * (1024 // MEGABYTES)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.tsv"])
def test_a_compressed_line_of_a_gigabyte_is_refused_by_its_number(name: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / (name + ending)
    path.write_bytes(long_line(ending))
    (outcome,) = run_forked([partial(attempt, lambda: list(open_corpus(str(path), streaming=True)))], 60)
    assert_refused(outcome, f"{path}: line 2 has over {LONGEST_LINE:,} bytes")


def test_other_readers_of_lines_refuse_long_ones_too(tmp_path: Path) -> None:
    (tmp_path / "senses.jsonl.gz").write_bytes(long_line(".gz"))
    (tmp_path / "vectors.txt.gz").write_bytes(gzip.compress(b"the 1\n") + long_line(".gz"))
    with zipfile.ZipFile(tmp_path / "vectors.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"the 1 2 3\n" + b"1 " * (MEGABYTES << 20))
    for name in ("a.conll", "a.csv", "a.jsonl", "a.json"):
        with (tmp_path / name).open("wb") as file:
            file.write(b"\n")
            file.truncate(GIGABYTE)  # zeros that take no room
    runs = [
        lambda: list(evaluate.read_uses(tmp_path / "senses.jsonl.gz")),
        lambda: load_word_vectors(tmp_path / "vectors.txt.gz", {"the": 1}),
        lambda: load_word_vectors(tmp_path / "vectors.zip", {"the": 1}),
        lambda: read_examples("ner", tmp_path / "a.conll"),
        lambda: read_examples("text-classification", tmp_path / "a.csv"),
        lambda: read_examples("nli", tmp_path / "a.jsonl"),
        lambda: read_examples("squad", tmp_path / "a.json"),
    ]
    outcomes = run_forked([partial(attempt, run) for run in runs], 60)
    assert_refused(outcomes[0], "senses.jsonl.gz, line 1: not a sentence")
    assert_refused(outcomes[1], "vectors.txt.gz, line 3: over 1,048,576 bytes")
    assert_refused(outcomes[2], "vectors.zip, line 2: over 1,048,576 bytes")
    for outcome in outcomes[3:]:
        assert_refused(outcome, "line 2 has over")


# ------------------------------------------------------------------------------------------------- names and commands


@pytest.mark.parametrize(
    "command",
    [
        ["embed", TOO_LONG, "--output", "out.h5"],
        ["embed", f"{TOO_LONG}.csv", "--output", "out.h5"],
        ["embed", "in.txt", "--output", "out.h5", "--model", TOO_LONG],
        ["score", TOO_LONG],
        ["score", "/dev/zero"],
        ["embed", "/dev/zero", "--output", "out.h5"],
        ["neighbors", "the [bank] .", "--corpus", TOO_LONG],
        ["neighbors", "the [bank] .", "--corpus", "/dev/zero"],
        ["convert", TOO_LONG, "out"],
        ["convert", "/dev/zero", "out"],
        ["convert", "/dev/zero", "/dev/zero", "out"],
        ["convert", TOO_LONG, TOO_LONG, "out"],
        ["export", TOO_LONG, "out"],
        ["onnx", TOO_LONG, "out.onnx"],
    ],
    ids=lambda command: " ".join(part.replace(TOO_LONG, "TOO_LONG") for part in command),
)
def test_commands_refuse_names_that_cannot_be_in_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("a b\n")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == BAD_INPUT, result
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < LONGEST_MESSAGE + 20
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_scripts_refuse_names_that_cannot_be_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (TOO_LONG, "/dev/zero"):
        for recipe in (file, "tiny"):
            arguments = [recipe, "--train_file", file, "--output_dir", str(tmp_path / "out")]
            assert pretrain.main(arguments) == BAD_INPUT
        for read in (partial(read_examples, "ner"), partial(load_word_vectors, counts={}), file_digest):
            with pytest.raises(ElmoError, match=r"no such file|not a regular file"):
                read(file)
        (tmp_path / "text.txt").write_text("a b\n")
        arguments = ["tiny", "--train_file", str(tmp_path / "text.txt"), "--vocab_file", file]
        assert pretrain.main([*arguments, "--output_dir", str(tmp_path / "out")]) == BAD_INPUT
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 6


def test_an_open_pipe_is_read_as_process_substitution_gives_it() -> None:
    receiver, sender = os.pipe()
    lines = f"{json.dumps(SENSES)}\n".encode() * 3

    def write() -> None:
        with open(sender, "wb") as file:
            file.write(lines)

    writer = threading.Thread(target=write)
    writer.start()
    assert len(list(evaluate.read_uses(Path(f"/dev/fd/{receiver}")))) == 3
    writer.join()
    os.close(receiver)


# ------------------------------------------------------------------------------------------------- what fuzzing found


def test_a_message_is_one_line_of_bearable_length_whatever_it_quotes() -> None:
    message = str(ElmoError("a\nb\r\nc\x1b[2J\u2028d\x00" + "e" * 10_000))
    assert message.startswith("a b c [2J d e")
    assert len(message) == LONGEST_MESSAGE


def zipped(offset_of: bytes, place: int, value: int) -> bytes:
    """Return an archive of vectors with two bytes changed after each header of a kind."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", vector_text())
    content = bytearray(file.getvalue())
    start = content.find(offset_of)
    content[start + place : start + place + 2] = struct.pack("<H", value)
    return bytes(content)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [(6, 99, "zip file version 9.9"), (8, 1, "is encrypted"), (10, 95, "compression method is not supported")],
)
def test_archives_that_python_does_not_know_are_refused(place: int, value: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped(b"PK\x01\x02", place, value))
    with pytest.raises(ElmoError, match=message):
        load_word_vectors(tmp_path / "a.zip", {"the": 1})


@pytest.mark.parametrize(
    ("task", "name", "content"),
    [
        ("nli", "a.jsonl", '{"premise": 1%s, "hypothesis": "b", "label": "c"}' % ("0" * 5000)),
        ("nli", "a.jsonl", '{"premise": "\\ud800", "hypothesis": "b", "label": "c"}'),
        ("squad", "a.json", '{"data": %s}' % ("[" * 100_000)),
        ("coref", "a.jsonl", '{"sentences": [["a"]], "clusters": [[[0, Infinity]]]}'),
        ("text-classification", "a.csv", 'text,label\r\ra,"b\r'),
    ],
)
def test_data_that_cannot_be_is_refused_in_one_line(task: str, name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ElmoError) as caught:
        read_examples(task, tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}")


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (2, "bank\tN\t1-9\tThe bank lends .\tOn the bank .", "there is no word 9 in a sentence of 4"),
        (3, "bank\tN\t1\tThe bank lends .\tOn the bank .", "expected a word, its part of speech"),
        (8, None, "different numbers of lines"),
    ],
)
def test_a_bad_pair_of_word_in_context_is_named_by_its_line(
    number: int, line: str | None, message: str, tmp_path: Path
) -> None:
    make_wic(tmp_path)
    data = tmp_path / "train.data.txt"
    lines = data.read_text().splitlines()
    lines[number - 1 : number] = [] if line is None else [line]
    data.write_text("\n".join(lines) + "\n")
    with pytest.raises(ElmoError, match=rf"train\.data\.txt, line {number}: .*{message}"):
        evaluate.read_pairs(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": "x"}, "row 2: mean must be a number, got 'x'"),
        ({"mix": {"input": 5}}, "row 2: mix: input must be the weights of layers, got 5"),
        ({"model": None}, "row 2: model must be printable text, got None"),
    ],
)
def test_a_comparison_of_other_values_is_named_by_its_row(change: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps([COMPARISON[0], {**COMPARISON[1], **change}]))
    with pytest.raises(ElmoError, match=message):
        evaluate.read_comparisons([tmp_path])
    (tmp_path / "comparison.json").write_text(json.dumps([5]))
    with pytest.raises(ElmoError, match="row 1: expected an object, got int"):
        evaluate.read_comparisons([tmp_path])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lanes: [4]", "`lanes` must be one value, got [4]"),
        ("lanes: x", "argument --lanes: invalid int value: 'x'"),
        ("lanes:", "`lanes` needs a value"),
        ("output_dir: {a: 1}", "`output_dir` must be one value"),
        ("seed: 2024-99-99", "not YAML: month must be in 1..12"),
    ],
)
def test_a_recipe_with_values_of_other_types_is_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    assert pretrain.main([str(tmp_path / "recipe.yaml")]) == BAD_INPUT
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
