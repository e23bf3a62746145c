"""The published recipe of Qwen3-Reranker, computed by transformers."""

from pathlib import Path

from ark_jax.models.yes_no import INSTRUCTION

BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def published_scores(folder: Path, pairs, tokenizer) -> list[float]:
    """P(yes) / (P(yes) + P(no)) of each (query, document)."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    scores = []
    for query, document in pairs:
        body = f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        ids = torch.tensor([encode(BEFORE) + encode(body) + encode(AFTER)])
        with torch.inference_mode():
            logits = model(ids).logits[0, -1]
        no, yes = (logits[tokenizer.convert_tokens_to_ids(word)] for word in ("no", "yes"))
        scores.append(torch.softmax(torch.stack([no, yes]), 0)[1].item())
    return scores
