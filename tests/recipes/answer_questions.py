"""Fine-tune question answering the way transformers documents it.

    python answer_questions.py MODEL TRAIN.json TEST.json OUTPUT

Long contexts become windows that overlap, and the best answer of all windows of a question counts.
"""

import collections
import sys

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DefaultDataCollator,
    Trainer,
    TrainingArguments,
    set_seed,
)

import modeling_elmo  # noqa: F401  (registers ELMo with the auto classes)

MAX_LENGTH, STRIDE, MAX_ANSWER_LENGTH = 24, 8, 6


def main(checkpoint: str, train_file: str, test_file: str, output_dir: str) -> dict[str, float]:
    set_seed(0)
    dataset = load_dataset("json", data_files={"train": train_file, "test": test_file})
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def make_windows(examples):
        return tokenizer(
            [question.strip() for question in examples["question"]],
            examples["context"],
            max_length=MAX_LENGTH,
            truncation="only_second",
            stride=STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )

    def preprocess_training_examples(examples):
        inputs = make_windows(examples)
        offset_mapping = inputs.pop("offset_mapping")
        sample_map = inputs.pop("overflow_to_sample_mapping")
        answers = examples["answers"]
        start_positions = []
        end_positions = []
        for i, offset in enumerate(offset_mapping):
            answer = answers[sample_map[i]]
            start_char = answer["answer_start"][0]
            end_char = start_char + len(answer["text"][0])
            sequence_ids = inputs.sequence_ids(i)
            idx = 0
            while sequence_ids[idx] != 1:
                idx += 1
            context_start = idx
            while sequence_ids[idx] == 1:
                idx += 1
            context_end = idx - 1
            # Label windows without the answer with the first position.
            if offset[context_start][0] > start_char or offset[context_end][1] < end_char:
                start_positions.append(0)
                end_positions.append(0)
                continue
            idx = context_start
            while idx <= context_end and offset[idx][0] <= start_char:
                idx += 1
            start_positions.append(idx - 1)
            idx = context_end
            while idx >= context_start and offset[idx][1] >= end_char:
                idx -= 1
            end_positions.append(idx + 1)
        inputs["start_positions"] = start_positions
        inputs["end_positions"] = end_positions
        return inputs

    def preprocess_validation_examples(examples):
        inputs = make_windows(examples)
        sample_map = inputs.pop("overflow_to_sample_mapping")
        example_ids = []
        for i in range(len(inputs["input_ids"])):
            example_ids.append(examples["id"][sample_map[i]])
            sequence_ids = inputs.sequence_ids(i)
            offset = inputs["offset_mapping"][i]
            inputs["offset_mapping"][i] = [o if sequence_ids[k] == 1 else None for k, o in enumerate(offset)]
        inputs["example_id"] = example_ids
        return inputs

    columns = dataset["train"].column_names
    train_dataset = dataset["train"].map(preprocess_training_examples, batched=True, remove_columns=columns)
    test_dataset = dataset["test"].map(preprocess_validation_examples, batched=True, remove_columns=columns)

    model = AutoModelForQuestionAnswering.from_pretrained(checkpoint)
    training_args = TrainingArguments(
        output_dir=output_dir,
        learning_rate=5e-3,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        num_train_epochs=8,
        weight_decay=0.01,
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=train_dataset,
        processing_class=tokenizer,
        data_collator=DefaultDataCollator(),
    )
    trainer.train()
    trainer.save_model(output_dir)
    metrics = trainer.evaluate()

    predictions = trainer.predict(test_dataset.remove_columns(["example_id", "offset_mapping"])).predictions
    start_logits, end_logits = predictions
    example_to_windows = collections.defaultdict(list)
    for number, example_id in enumerate(test_dataset["example_id"]):
        example_to_windows[example_id].append(number)
    matches = 0
    for example in dataset["test"]:
        best_score, best_answer = -np.inf, ""
        for number in example_to_windows[example["id"]]:
            offsets = test_dataset[number]["offset_mapping"]
            for start in np.argsort(start_logits[number])[-1:-21:-1]:
                for end in np.argsort(end_logits[number])[-1:-21:-1]:
                    if offsets[start] is None or offsets[end] is None:
                        continue
                    if end < start or end - start + 1 > MAX_ANSWER_LENGTH:
                        continue
                    score = start_logits[number][start] + end_logits[number][end]
                    if score > best_score:
                        best_score = score
                        best_answer = example["context"][offsets[start][0] : offsets[end][1]]
        matches += best_answer == example["answers"]["text"][0]
    return {**metrics, "exact_match": 100 * matches / len(dataset["test"])}


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
