"""What TRL and google-tunix compute for one step of answers: `PYTHONPATH=tests python -m
support.policy_goldens trl|tunix ...` writes their part of golden/policy.json again.

Both libraries compute their loss from the same log-probabilities, in place of a model's. The tests
compare with the file where a library is not installed, and with the library where it is.
"""

import collections
import json
import sys
import types
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "golden" / "policy.json"
SAMPLES, LENGTH = 4, 7  # answers a group, tokens
# What a constant mean divides by: TRL is given it, tunix takes the length.
CONSTANTS = {"trl": 11, "tunix": LENGTH}
CLIP_LOW, CLIP_HIGH, KL_COEFFICIENT = 0.15, 0.32, 0.07
TRL_MEANS = {"grpo": "sequence", "dapo": "token", "dr_grpo": "constant"}
TUNIX_MEANS = {
    "token-mean": "token",
    "sequence-mean-token-mean": "sequence",
    "sequence-mean-token-scale": "constant",
}
TUNIX_KLS = {"mse_kl": "k2", "low_var_kl": "k3"}


def inputs() -> dict[str, np.ndarray]:
    """Log-probabilities [8 7] of a policy, of the older one that drew, and of the reference, the
    mask of the tokens, rewards [8] of two groups, and advantages [8]."""
    random = np.random.default_rng(22)
    normal = lambda mean, sd: random.normal(mean, sd, (2 * SAMPLES, LENGTH))
    log_probs = normal(-1.5, 0.6).clip(max=-0.01)
    lengths = np.array([[7], [3], [5], [1], [7], [2], [6], [4]])
    arrays = {
        "log_probs": log_probs,
        "old": log_probs + normal(0, 0.25),
        "reference": log_probs + normal(0, 0.5),
        "rewards": np.array([1, 0, 0.3, 0.56, 0.8, 0.7, 0.1, 0.9]),
        "advantages": random.normal(0, 1, 2 * SAMPLES),
    }
    arrays = {name: x.astype(np.float32) for name, x in arrays.items()}
    return arrays | {"mask": np.arange(LENGTH) < lengths}


def trl_losses() -> dict[str, dict]:
    """Loss and gradient by `GRPOTrainer._compute_loss`, by settings "mean ratio kl"."""
    import torch
    from trl import GRPOTrainer

    arrays = {name: torch.tensor(x) for name, x in inputs().items()}
    same = staticmethod(lambda x, *_, **__: x)
    one_process = type(
        "OneProcess",
        (),
        {"num_processes": 1, "gather": same, "gather_for_metrics": same, "reduce": same},
    )
    out = {}
    for kind, mean in TRL_MEANS.items():
        for ratio in ("token", "sequence"):
            for kl in ("none", "k3"):
                log_probs = arrays["log_probs"].clone().requires_grad_()
                trainer = GRPOTrainer.__new__(GRPOTrainer)
                settings = {
                    "aux_loss_enabled": False,
                    "top_entropy_quantile": 1.0,
                    "off_policy_mask_threshold": None,
                    "importance_sampling_level": ratio,
                    "beta": KL_COEFFICIENT if kl == "k3" else 0.0,
                    "loss_type": kind,
                    "epsilon_low": CLIP_LOW,
                    "epsilon_high": CLIP_HIGH,
                    "use_vllm": False,
                    "vllm_importance_sampling_correction": False,
                    "max_completion_length": CONSTANTS["trl"],
                    "current_gradient_accumulation_steps": 1,
                    "accelerator": one_process(),
                    "_entropy_bonus_enabled": False,
                    "_metrics": collections.defaultdict(lambda: collections.defaultdict(list)),
                    "model": types.SimpleNamespace(training=True),
                    "args": types.SimpleNamespace(
                        delta=None, use_bias_correction_kl=False, steps_per_generation=1
                    ),
                    "_get_per_token_logps_and_entropies": lambda *_, **__: (
                        log_probs,  # noqa: B023 - called before the next one is made
                        torch.zeros_like(log_probs),  # noqa: B023
                        None,
                    ),
                }
                vars(trainer).update(settings)
                rows, mask = len(arrays["mask"]), arrays["mask"].float()
                loss = trainer._compute_loss(
                    trainer.model,
                    {
                        "prompt_ids": torch.zeros((rows, 1), dtype=torch.long),
                        "prompt_mask": torch.ones((rows, 1)),
                        "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
                        "completion_mask": mask,
                        "advantages": arrays["advantages"],
                        "old_per_token_logps": arrays["old"],
                        "ref_per_token_logps": arrays["reference"],
                        "num_items_in_batch": mask.sum(),
                    },
                )
                loss.backward()
                out[f"{mean} {ratio} {kl}"] = golden(loss.item(), log_probs.grad.numpy())
    return out


def tunix_losses() -> dict[str, dict]:
    """Loss and gradient by `grpo_loss_fn`, by settings "mean ratio kl"."""
    import jax
    import jax.numpy as jnp
    from flax import nnx
    from tunix.rl import algo_core, common

    arrays = inputs()
    rows = len(arrays["mask"])
    example = types.SimpleNamespace(
        completion_ids=jnp.zeros(arrays["mask"].shape, int),
        completion_mask=jnp.asarray(arrays["mask"], jnp.float32),
        prompt_ids=jnp.zeros((rows, 1), int),
        advantages=arrays["advantages"],
        old_per_token_logps=arrays["old"],
        ref_per_token_logps=arrays["reference"],
    )
    out = {}
    original = common.compute_per_token_logps
    for mode, mean in TUNIX_MEANS.items():
        for kl_mode, kl in {"": "none", **TUNIX_KLS}.items():
            settings = types.SimpleNamespace(
                beta=KL_COEFFICIENT if kl_mode else 0.0,
                epsilon=CLIP_LOW,
                epsilon_high=CLIP_HIGH,
                loss_algo="grpo",
                loss_agg_mode=mode,
                temperature=1.0,
                kl_loss_mode=kl_mode or "low_var_kl",
                kl_clamp_value=None,
                epsilon_c=None,
            )

            def compute(log_probs, settings=settings):
                common.compute_per_token_logps = lambda *_, **__: (
                    log_probs,
                    jnp.zeros((*log_probs.shape, 3)),
                )
                model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
                return algo_core.grpo_loss_fn(model, example, settings, 0, 1)[0]

            loss, gradient = jax.value_and_grad(compute)(jnp.asarray(arrays["log_probs"]))
            out[f"{mean} token {kl}"] = golden(float(loss), np.asarray(gradient))
    common.compute_per_token_logps = original
    return out


def tunix_advantages() -> dict[str, list[float]]:
    """Advantages of `inputs()["rewards"]` by the names that `policy.advantages` has for them."""
    from tunix.rl import algo_core

    rewards = inputs()["rewards"]
    functions = {
        "sd": algo_core.compute_advantages,
        "none": algo_core.compute_drgrpo_advantages,
        "leave_one_out": algo_core.compute_rloo_advantages,
    }
    return {name: rounded(function(rewards, SAMPLES)) for name, function in functions.items()}


def golden(loss: float, gradient: np.ndarray) -> dict:
    return {"loss": rounded(loss), "gradient": rounded(gradient)}


def rounded(x) -> float | list:
    """Numbers of nine decimals; a float32 loss of this size has about as many."""
    return np.round(np.asarray(x, np.float64), 9).tolist()


def read() -> dict[str, dict]:
    """The file: "trl" and "tunix", each by settings, and tunix's "advantages"."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def main() -> None:
    parts = read() if FILE.is_file() else {}
    for library in sys.argv[1:]:
        if library == "trl":
            parts["trl"] = trl_losses()
        else:
            parts["tunix"], parts["advantages"] = tunix_losses(), tunix_advantages()
    FILE.write_text(json.dumps(parts) + "\n", encoding="utf-8")
    sys.stdout.write(f"{FILE.name}: {FILE.stat().st_size:,} bytes, {', '.join(parts)}\n")


if __name__ == "__main__":
    main()
