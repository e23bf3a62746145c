"""An adapter of a pair scorer takes the steps that torch and peft take."""

import numpy as np
import pytest
from support import pairs

from ark_jax.models import lora
from ark_jax.models.pairs import CrossEncoder
from ark_jax.train import fit, listwise
from ark_jax.train.config import AdapterConfig
from ark_jax.train.lists import PairList

torch = pytest.importorskip("torch", reason="the reference implementation")
peft = pytest.importorskip("peft", reason="the reference implementation")

WORDS = ("tide", "lamp", "salt", "wool", "bell")
LISTS = [
    PairList(
        f"the {word} of Kismet",
        tuple(f"Kismet, {other}" for other in (word, *WORDS[:i], *WORDS[i + 1 :])),
        (1.0,) * 5,
    )
    for i, word in enumerate(WORDS)
]
CONFIG = AdapterConfig(
    warmup=0.0,
    weight_decay=0.02,
    clip=1e6,
    remat="products",
    lora_rank=2,
    lora_alpha=5.0,
    lora_targets=("q", "up"),
)


def test_adapter_losses_match_peft(tmp_path, mesh):
    """Six steps of all lists, a new learning rate each, from the same factors and head."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = pairs.write_classifier(tmp_path / "classifier", "bert")
    scorer = CrossEncoder.from_pretrained(folder)
    adapter = lora.new_adapter(scorer.base, scorer.cfg.body, CONFIG, seed=3)
    lora.save_peft(adapter, tmp_path / "adapter", base=str(folder))
    (tmp_path / "run").mkdir()
    _, _, curve = listwise.train(
        scorer,
        LISTS,
        CONFIG,
        fit.Run(tmp_path / "run"),
        batch=5,
        epochs=6,
        learning_rate=3e-3,
        seed=3,
        temperature=0.7,
    )

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    model.bert = peft.PeftModel.from_pretrained(
        model.bert, str(tmp_path / "adapter"), is_trainable=True
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name or "classifier" in name or "pooler" in name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sides = zip(*[(one.left, right) for one in LISTS for right in one.rights], strict=True)
    inputs = tokenizer(*map(list, sides), padding=True, return_tensors="pt")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # As of `optim.adamw`: vectors do not decay.
    groups = [
        {"params": [x for x in trained if x.ndim > 1], "weight_decay": CONFIG.weight_decay},
        {"params": [x for x in trained if x.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, eps=1e-8)
    our_losses = []
    for row in curve:
        for group in optimizer.param_groups:
            group["lr"] = row["learning_rate"]
        logits = model(**inputs).logits.reshape(5, 5) / 0.7
        loss = torch.nn.functional.cross_entropy(logits, torch.zeros(5, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        our_losses.append(loss.item())
    losses = [row["loss"] for row in curve]
    np.testing.assert_allclose(losses, our_losses, rtol=1e-4)
    assert losses[-1] < losses[0] - 0.1
