import argparse
import json
import os

import numpy as np
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments, set_seed

from data import Sequences, collate
from model import TinyLM
from trainer import FocalTrainer, Watcher

VOCAB = 17


def compute_metrics(prediction):
    logits, labels = prediction
    guess = logits[:, :-1].argmax(-1)
    keep = labels[:, 1:] != -100
    return {"accuracy": float((guess == labels[:, 1:])[keep].mean()), "width": labels.shape[1]}


def arguments(directory, **more):
    return TrainingArguments(
        output_dir=directory,
        per_device_train_batch_size=3,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        weight_decay=0.1,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **{"learning_rate": 3e-3, "max_grad_norm": 0.5, "save_strategy": "no", **more},
    )


def history(trainer):
    """What was logged, without the times."""
    return [{k: v for k, v in entry.items() if not k.endswith(("runtime", "_per_second", "_time", "flos"))}
            for entry in trainer.state.log_history]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--save-init")
    parser.add_argument("--init-from")
    opts = parser.parse_args()
    os.makedirs(opts.out, exist_ok=True)
    runs = opts.out.rstrip("/") + "_runs"

    set_seed(1)
    model = TinyLM(VOCAB)
    if opts.save_init:
        torch.save(model.state_dict(), opts.save_init)

    def fresh():
        model = TinyLM(VOCAB)
        path = opts.init_from or opts.save_init
        if path:
            model.load_state_dict(torch.load(path))
        return model

    train, test = Sequences(19, VOCAB, 1), Sequences(6, VOCAB, 2)
    data = {"data_collator": collate, "train_dataset": train, "eval_dataset": test}
    results = {}

    # the model's own loss, divided by the number of labels of an update; shuffled
    watcher = Watcher()
    args = arguments(f"{runs}/plain", num_train_epochs=3, lr_scheduler_type="cosine", warmup_steps=0.2,
                     eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=4, save_total_limit=2)
    trainer = Trainer(fresh(), args, compute_metrics=compute_metrics, callbacks=[watcher], **data)
    output = trainer.train()
    results["plain"] = history(trainer)
    results["plain_loss"] = output.training_loss
    results["events"] = [[len(name), step] for name, step in watcher.events]
    results["kept"] = [int(name.split("-")[1]) for name in sorted(os.listdir(f"{runs}/plain"))
                       if name.startswith("checkpoint")]
    predicted = trainer.predict(test)
    results["predicted"] = [float(np.abs(predicted.predictions).mean()), float(predicted.label_ids.sum())]
    torch.save(trainer.model.state_dict(), f"{opts.out}/plain.pt")

    # the same from the checkpoint in the middle: the rest of the run is the same
    again = Trainer(fresh(), args, compute_metrics=compute_metrics, **data)
    again.train(resume_from_checkpoint=f"{runs}/plain/checkpoint-8")
    results["resumed"] = history(again)

    # a loss of the trainer, a mean of each batch; no clipping, in the order of the data
    args = arguments(f"{runs}/focal", max_steps=6, lr_scheduler_type="constant_with_warmup", warmup_steps=3,
                     max_grad_norm=0.0, eval_strategy="epoch", optim="adamw_torch", train_sampling_strategy="sequential")
    trainer = FocalTrainer(model=fresh(), args=args, gamma=1.5, compute_metrics=compute_metrics, **data)
    trainer.train()
    results["focal"] = history(trainer)
    results["metrics"] = {k: v for k, v in trainer.evaluate().items() if k in ("eval_loss", "eval_accuracy")}

    # label smoothing, the best model, and the end when nothing gets better
    data["train_dataset"] = Sequences(11, VOCAB, 3)
    args = arguments(f"{runs}/best", num_train_epochs=6, label_smoothing_factor=0.1, learning_rate=0.05,
                     eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, load_best_model_at_end=True,
                     metric_for_best_model="accuracy", optim="sgd", optim_args="momentum=0.9")
    trainer = Trainer(fresh(), args, compute_metrics=compute_metrics,
                      callbacks=[EarlyStoppingCallback(early_stopping_patience=2)], **data)
    trainer.train()
    results["best"] = history(trainer)
    results["best_step"] = trainer.state.best_global_step
    trainer.save_model(f"{runs}/final")
    torch.save(trainer.model.state_dict(), f"{opts.out}/best.pt")

    with open(f"{opts.out}/losses.json", "w") as f:
        json.dump(results, f)


if __name__ == "__main__":
    main()
