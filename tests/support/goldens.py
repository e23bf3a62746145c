"""What transformers computes for the tiny checkpoints: `python -m support.goldens [family ...]`
writes golden/<family>.npz again.

The tests compare with these files where torch is not installed, and with transformers itself where
it is.
"""

import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from support import tiny

FOLDER = Path(__file__).parent / "golden"


def inputs(family: str, *, seed: int, rows: int = 8, length: int = 12) -> dict[str, np.ndarray]:
    """Tokens and mask [rows length], padding of many widths, on the left of the later half for
    decoders; and what
    the loss wants: a token per row [rows], a direction of the hidden states [rows length width].
    The pad token
    and those before it do not occur, since torch gives an encoder's embedding of it no gradient."""
    random = np.random.default_rng([seed, tiny.FAMILIES.index(family)])
    seen = np.arange(length) < random.integers(2, length + 1, (rows, 1))
    seen[0] = True
    if family in tiny.DECODERS:
        seen[rows // 2 :] = seen[rows // 2 :, ::-1]
    first = 1 + tiny.config(family).get("pad_token_id", 0)
    return {
        "tokens": random.integers(first, tiny.VOCAB, (rows, length)).astype(np.int32),
        "mask": seen,
        "wanted": random.integers(0, tiny.VOCAB, rows).astype(np.int32),
        "direction": (random.standard_normal((rows, length, tiny.WIDTH)) * seen[..., None]).astype(
            np.float32
        ),
    }


def last(mask: np.ndarray) -> np.ndarray:
    """Each row's last visible position."""
    return mask.shape[1] - 1 - mask[:, ::-1].argmax(1)


def slope(name: str, gradient: np.ndarray) -> float:
    """The gradient of a tensor along a direction that its name decides, of length one: a number to
    keep for each."""
    direction = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(gradient.shape)
    return float((gradient.astype(np.float64) * direction).sum() / np.linalg.norm(direction))


def reference(folder: Path, family: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Hidden states, logits after each row's last token, the loss, and every tensor's slope, by
    transformers.

    The loss is the hidden states along `direction`, and for a decoder the cross-entropy of
    `wanted`, both per row.
    """
    import torch
    from transformers import AutoModel, AutoModelForCausalLM

    kind = AutoModelForCausalLM if family in tiny.DECODERS else AutoModel
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    mask = torch.tensor(inputs["mask"])
    tokens = torch.tensor(inputs["tokens"], dtype=torch.long)
    body, prefix = (model.model, "") if family in tiny.DECODERS else (model, tiny.PREFIX[family])
    hidden = body(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    loss = (hidden * torch.tensor(inputs["direction"])).sum() / len(tokens)
    out = {"hidden": hidden.detach().numpy() * inputs["mask"][..., None]}
    if family in tiny.DECODERS:
        logits = model.lm_head(
            hidden[torch.arange(len(tokens)), torch.tensor(last(inputs["mask"]))]
        )
        loss = loss + torch.nn.functional.cross_entropy(
            logits, torch.tensor(inputs["wanted"], dtype=torch.long)
        )
        out["logits"] = logits.detach().numpy()
    loss.backward()
    slopes = {
        prefix + n: slope(prefix + n, p.grad.numpy())
        for n, p in model.named_parameters()
        if p.grad is not None
    }
    names = sorted(slopes)
    return out | {
        "loss": np.float64(loss.item()),
        "names": np.array(names),
        "slopes": np.array([slopes[n] for n in names]),
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for family in sys.argv[1:] or tiny.FAMILIES:
        with tempfile.TemporaryDirectory() as scratch:
            arrays = inputs(family, seed=1)
            outputs = reference(tiny.write(Path(scratch), family), family, arrays)
        file = FOLDER / f"{family}.npz"
        np.savez_compressed(file, **arrays, **outputs)
        sys.stdout.write(
            f"{file.name}: {file.stat().st_size:,} bytes, loss {outputs['loss']:.4f}\n"
        )


if __name__ == "__main__":
    main()
