"""Fine-tune a tagger the way transformers documents it.

python tag_words.py MODEL TRAIN.json TEST.json OUTPUT
"""

import sys

import numpy as np
from datasets import load_dataset
from seqeval.metrics import accuracy_score, f1_score
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

import modeling_elmo  # noqa: F401  (registers ELMo with the auto classes)

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def main(checkpoint: str, train_file: str, test_file: str, output_dir: str) -> dict[str, float]:
    set_seed(0)
    dataset = load_dataset("json", data_files={"train": train_file, "test": test_file})
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def tokenize_and_align_labels(examples):
        tokenized_inputs = tokenizer(examples["tokens"], truncation=True, is_split_into_words=True)
        labels = []
        for i, label in enumerate(examples["ner_tags"]):
            previous_word_idx = None
            label_ids = []
            for word_idx in tokenized_inputs.word_ids(batch_index=i):
                if word_idx is None or word_idx == previous_word_idx:
                    label_ids.append(-100)
                else:
                    label_ids.append(label[word_idx])
                previous_word_idx = word_idx
            labels.append(label_ids)
        tokenized_inputs["labels"] = labels
        return tokenized_inputs

    tokenized = dataset.map(tokenize_and_align_labels, batched=True)
    data_collator = DataCollatorForTokenClassification(tokenizer=tokenizer)

    def compute_metrics(p):
        predictions, labels = p
        predictions = np.argmax(predictions, axis=2)
        kept_predictions, kept_labels = [], []
        for prediction, label in zip(predictions, labels, strict=True):
            kept_predictions.append([LABELS[p] for p, t in zip(prediction, label, strict=True) if t != -100])
            kept_labels.append([LABELS[t] for t in label if t != -100])
        return {
            "f1": float(f1_score(kept_labels, kept_predictions)),
            "accuracy": float(accuracy_score(kept_labels, kept_predictions)),
        }

    model = AutoModelForTokenClassification.from_pretrained(
        checkpoint,
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
    )
    training_args = TrainingArguments(
        output_dir=output_dir,
        learning_rate=2e-3,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        num_train_epochs=4,
        weight_decay=0.01,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=tokenized["train"],
        eval_dataset=tokenized["test"],
        processing_class=tokenizer,
        data_collator=data_collator,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    trainer.save_model(output_dir)
    return trainer.evaluate()


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
