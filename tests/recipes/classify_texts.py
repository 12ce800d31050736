"""Fine-tune a text classifier the way transformers documents it.

python classify_texts.py MODEL TRAIN.csv TEST.csv OUTPUT
"""

import sys

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

import modeling_elmo  # noqa: F401  (registers ELMo with the auto classes)


def main(checkpoint: str, train_file: str, test_file: str, output_dir: str) -> dict[str, float]:
    set_seed(0)
    dataset = load_dataset("csv", data_files={"train": train_file, "test": test_file})
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def preprocess_function(examples):
        return tokenizer(examples["text"], truncation=True)

    tokenized = dataset.map(preprocess_function, batched=True)
    data_collator = DataCollatorWithPadding(tokenizer=tokenizer)

    def compute_metrics(eval_pred):
        predictions, labels = eval_pred
        predictions = np.argmax(predictions, axis=1)
        return {"accuracy": float((predictions == labels).mean())}

    id2label = {0: "NEGATIVE", 1: "POSITIVE"}
    label2id = {"NEGATIVE": 0, "POSITIVE": 1}
    model = AutoModelForSequenceClassification.from_pretrained(
        checkpoint, num_labels=2, id2label=id2label, label2id=label2id
    )
    training_args = TrainingArguments(
        output_dir=output_dir,
        learning_rate=1e-3,
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
