"""Train an adapter on rows of captions and files, evaluate and save it."""

from datasets import Dataset

from scalar_retrieval import ScalarTrainer, ScalarTrainingArguments, load_model, publish

rows = Dataset.from_dict(
    {
        "caption": [f"clip number {number}" for number in range(8)],
        "video_path": [f"clip{number}.mp4" for number in range(8)],
    }
)
model, processor = load_model("backbone")
args = ScalarTrainingArguments(
    "runs/session",
    adapter="heads",
    max_steps=2,
    per_device_train_batch_size=4,
    semantic_weight=0,
    fp16=False,
    use_cpu=True,
    report_to="none",
)
trainer = ScalarTrainer(model, args, train_dataset=rows, eval_dataset={"val": rows}, processing_class=processor)
trained = trainer.train()
metrics = trainer.evaluate()
trainer.save_model()
card = publish("runs/session", "user/scalar", base="user/backbone", dry_run="runs/session-card")
print(trained.metrics, metrics, card)
