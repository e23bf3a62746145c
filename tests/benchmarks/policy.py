"""The gradient of a policy step against TRL: `python tests/benchmarks/policy.py [gradient]
[memory]`.

SmolLM2-135M in float32 on the CPU, all with the same threads. A prompt is a chunk of a FairytaleQA
story, with completions cut from the same story, and advantages that are drawn. All contenders
compute the same loss and gradient; the norms are printed. The peers repeat the prompt for each
completion: TRL's GRPOTrainer as shipped but for bfloat16, which CPUs emulate, and in its best
setting, without gradient checkpointing; and a plain step in transformers. TRL is left out where it
is not installed. PROMPTS, SAMPLES, PROMPT, COMPLETION (tokens) and ROUNDS make it smaller.
"""

import functools
import importlib.util
import os
import resource
import subprocess
import sys
import tempfile

import jax
import numpy as np
import torch
from language import models, ours, stories
from models import at_roof
from timing import machine, race, report

from ark_jax import layout
from ark_jax.demo.models import demo_models
from ark_jax.models.batching import batch_tokens_of_device
from ark_jax.train import parts
from ark_jax.train.groups import BatchShape, Group
from ark_jax.train.likelihood import LikelihoodObjective, step_arrays
from ark_jax.train.policy import PolicyLoss

SIZES = {
    name: int(os.environ.get(name, default))
    for name, default in (
        ("PROMPTS", 4),
        ("SAMPLES", 8),
        ("PROMPT", 512),
        ("COMPLETION", 32),
        ("ROUNDS", 3),
    )
}


@functools.cache
def groups() -> list[Group]:
    """Real texts; every completion begins elsewhere in the same story."""
    random = np.random.default_rng(0)
    prompt, completion = SIZES["PROMPT"], SIZES["COMPLETION"]
    out = []
    for text, _ in stories()[: SIZES["PROMPTS"]]:
        ids = ours().tokenizer(text)["input_ids"]
        starts = random.integers(0, len(ids) - completion, SIZES["SAMPLES"])
        completions = [ids[start : start + completion] for start in starts]
        out.append(Group(ids[:prompt], completions, random.normal(size=len(starts))))
    return out


def gradient_ours():
    """A function that computes loss and gradient, and returns the norm."""
    lm = ours()
    shape = BatchShape.holding([groups()])
    in_parts = parts.split(groups(), parts.prompts_of_part(shape, batch_tokens_of_device()))
    arrays = step_arrays(in_parts, BatchShape.holding(in_parts))
    objective = LikelihoodObjective(lm.cfg, PolicyLoss())
    compute = jax.jit(jax.grad(lambda model, batch: objective(model, None, batch)[0]))

    def run() -> float:
        leaves = jax.tree.leaves(jax.block_until_ready(compute(lm.model, arrays)))
        return float(np.sqrt(sum(np.square(np.asarray(x), dtype=np.float64).sum() for x in leaves)))

    return run


def repeated() -> dict[str, torch.Tensor]:
    """The step as TRL takes it: all prompts and completions have one length here."""
    rows = [(group, i) for group in groups() for i in range(len(group.completions))]
    prompts = torch.tensor([group.prompt_ids for group, _ in rows])
    completions = torch.tensor([group.completions[i] for group, i in rows])
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": torch.ones_like(completions),
        "advantages": torch.tensor([group.advantages[i] for group, i in rows]).float(),
        "num_items_in_batch": torch.tensor(completions.numel()),
    }


def torch_norm(model) -> float:
    parts = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    return float(torch.stack(parts).sum().sqrt())


def gradient_transformers():
    """A careful plain step: logits of the completions only."""
    model, step = models()[1], repeated()
    ids = torch.cat([step["prompt_ids"], step["completion_ids"]], 1)
    completions = step["completion_ids"]

    def run() -> float:
        model.zero_grad()
        logits = model(ids, use_cache=False, logits_to_keep=completions.shape[1] + 1).logits
        logs = torch.log_softmax(logits[:, :-1], -1).gather(2, completions[..., None])[..., 0]
        ratio = torch.exp(logs - logs.detach())
        (-(ratio * step["advantages"][:, None]).mean()).backward()
        return torch_norm(model)

    return run


def gradient_trl(checkpointing: bool):
    """`GRPOTrainer`'s own loss; `dapo`, TRL's default, is the mean over all tokens."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = SIZES["PROMPTS"] * SIZES["SAMPLES"]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=checkpointing,
        per_device_train_batch_size=rows,
        num_generations=SIZES["SAMPLES"],
        max_completion_length=SIZES["COMPLETION"],
        report_to=[],
    )
    trainer = GRPOTrainer(
        str(demo_models()["generator"]),
        lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["x"] * rows}),
    )
    model, step = trainer.model.float().train(), repeated()
    trainer.current_gradient_accumulation_steps = 1

    def run() -> float:
        model.zero_grad()
        trainer._compute_loss(model, step).backward()
        return torch_norm(model)

    return run


def contenders() -> dict:
    out = {"ark_jax": gradient_ours, "transformers": gradient_transformers}
    if importlib.util.find_spec("trl"):
        out["TRL"] = lambda: gradient_trl(checkpointing=True)
        out["TRL, no checkpointing"] = lambda: gradient_trl(checkpointing=False)
    return out


def gradient() -> None:
    """Times all contenders in turn."""
    runs = {name: make() for name, make in contenders().items()}
    for name, run in runs.items():
        print(f"  {name}: gradient norm {run():.6f}", flush=True)
    step = groups()
    count = sum(len(g.prompt_ids) + len(c) for g in step for c in g.completions)
    shape = f"{len(step)} prompts x {SIZES['PROMPT']}, {SIZES['SAMPLES']} x {SIZES['COMPLETION']}"
    timings = race(runs, rounds=SIZES["ROUNDS"])
    once = [len(g.prompt_ids) + sum(map(len, g.completions)) for g in step]
    least = at_roof(ours().cfg, once, training=True)
    report(f"gradient, {shape} tokens", "repeated tokens", count, timings, least=least)


def peak(name: str) -> None:
    """Prints by how many MiB two gradients raise the process above its models."""
    run = contenders()[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(), run()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)


def memory() -> None:
    """The peak of each contender, in a process of its own."""
    for name in contenders():
        done = subprocess.run(
            [sys.executable, __file__, "peak", name], capture_output=True, text=True, check=True
        )
        print(f"  {name:<30} {int(done.stdout.split()[-1]):8,} MiB", flush=True)


if __name__ == "__main__":
    layout.enter_mesh()
    if sys.argv[1:2] == ["peak"]:
        peak(sys.argv[2])
    else:
        print(machine())
        for work in sys.argv[1:] or ["gradient", "memory"]:
            {"gradient": gradient, "memory": memory}[work]()
