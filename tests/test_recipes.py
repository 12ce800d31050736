"""The recipes that transformers documents run with ELMo: only the name of the model is ours."""

import json
import random
from pathlib import Path

from recipes import answer_questions, classify_texts, tag_words

from modeling_elmo import MINI

PEOPLE = ["Ann", "Bob", "Carla", "Dan", "Eve", "Frank"]
PLACES = ["Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi"]
FILLER = "we saw that it was a long and quiet day nobody spoke of anything else".split()


def _write_rows(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_the_text_classification_recipe_trains_and_evaluates(tmp_path):
    generator = random.Random(0)
    files = []
    for name, count in (("train", 96), ("test", 32)):
        lines = ["text,label"]
        for number in range(count):
            word = generator.choice(["good", "great", "fine"] if number % 2 else ["bad", "awful", "poor"])
            lines.append(f"the {generator.choice(FILLER)} was {word} .,{number % 2}")
        files.append(tmp_path / f"{name}.csv")
        files[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    metrics = classify_texts.main(MINI, str(files[0]), str(files[1]), str(tmp_path / "run"))
    assert metrics["eval_accuracy"] > 0.9


def test_the_token_classification_recipe_trains_and_evaluates(tmp_path):
    generator = random.Random(0)
    files = []
    for name, count in (("train", 96), ("test", 32)):
        rows = []
        for _ in range(count):
            before = generator.choices(FILLER, k=generator.randint(0, 4))
            tokens = [*before, generator.choice(PEOPLE), "went", "to", generator.choice(PLACES), "."]
            rows.append({"tokens": tokens, "ner_tags": [0] * len(before) + [1, 0, 0, 3, 0]})
        files.append(_write_rows(tmp_path / f"{name}.json", rows))
    metrics = tag_words.main(MINI, *files, str(tmp_path / "run"))
    assert metrics["eval_f1"] > 0.9
    assert metrics["eval_accuracy"] > 0.95


def test_the_question_answering_recipe_trains_and_answers_from_windows(tmp_path):
    generator = random.Random(0)
    files = []
    for name, count in (("train", 160), ("test", 24)):
        rows = []
        for number in range(count):
            person, place = generator.choice(PEOPLE), generator.choice(PLACES)
            before = " ".join(generator.choices(FILLER, k=generator.randint(0, 20)))
            after = " ".join(generator.choices(FILLER, k=generator.randint(0, 20)))
            context = f"{before} {person} lives in {place} {after}".strip()
            answer = {"text": [place], "answer_start": [context.index(place)]}
            question = f"Where does {person} live ?"
            rows.append({"id": str(number), "question": question, "context": context, "answers": answer})
        files.append(_write_rows(tmp_path / f"{name}.json", rows))
    metrics = answer_questions.main(MINI, *files, str(tmp_path / "run"))
    assert metrics["exact_match"] > 60
