"""Each field of the presets that follow BAR-RAG's paper and code, with the line that says so."""

import pytest

from ark_jax import config, schema

# Typed from the sources, not read from the presets. What follows a dash is ours.
PAPER = {
    "iterations": 3,  # A.5: "Training is conducted for three iterations"
    "retriever.path": "intfloat/e5-base-v2",  # A.5: "we use E5 as the dense retriever"
    "retriever.prompts.query": "query: ",  # E5's card: "query: " and "passage: " are needed
    "retriever.prompts.document": "passage: ",
    "generator.path": "Qwen/Qwen2.5-7B-Instruct",  # A.5: one of three backbones
    "pool.size": 25,  # A.5: "top-n = 25 candidate documents"
    "warm.steps": 0,  # Algorithm 1 has no such stage
    "success.by": "samples",  # eq. 4
    "success.answers": 10,  # A.5: "K = 10 generator rollouts"
    "success.right_at": 0.8,  # A.5: "a threshold δ = 0.8"
    "filter.questions": 0,  # A.6: "For each training query"
    "filter.sets": 8,  # A.6: "N = 8 reranker rollouts"
    "filter.each": False,  # Algorithm 1: D_filt before the loop
    "filter.right_at": 0.5,  # A.6: "the correctness threshold to δ = 0.5"
    "filter.low": 0.25,  # A.6: "m_min = 0.25 and m_max = 0.85"
    "filter.high": 0.85,
    "filter.variance": 0.02,  # A.6: "v_min = 0.02"
    "filter.chance": False,  # A.6: "whose variance exceeds v_min"
    "filter.reader": False,  # A.6: "does not affect generator training"
    "selector.kind": "writer",  # Table 8: a model lists the documents
    "selector.path": "",  # A.5: "for both the selector and the generator"
    "selector.strict": True,  # eq. 8: "valid document indices, no duplicates, and proper structure"
    "selector.max_new_tokens": 1024,  # not said; selector_training.sh
    "selector.kl": "k3",  # A.5: "KL regularization coefficient" - the code's estimate
    "selector.lora_rank": 32,  # A.5: "LoRA adapters with rank 32 and scaling factor α = 16"
    "selector.lora_alpha": 16.0,
    "select.passages": 5,  # A.5: "each consisting of k = 5 documents"
    "select.steps": 0,  # 2.4: "one epoch of selector training"
    "select.questions": 8,  # A.5: "batch size 8"
    "select.sets": 8,  # A.5: "M = 8 candidate evidence sets per query"
    "select.learning_rate": 4e-6,  # A.5: "a learning rate of 4 x 10^-6"
    "select.centre": 0.5,  # A.5: "a correctness level of c = 0.5"
    "select.boundary": 1.0,  # A.5: "λ_bdy = 1.0 and λ_rel = 0.2"
    "select.relevance": 0.2,
    "select.relevance_form": "saturating",  # A.5: "a relevance temperature" - the code's formula
    "select.tau": 10.0,  # A.5: "τ = 10.0"
    "select.format_bonus": 0.0,  # eq. 10: R_fmt is a factor
    "select.outcome_decides": False,  # eq. 11 has no such rule
    "select.scale": "sd",  # eq. 11: (R - µ) / (σ + ε)
    "read.train": "grpo",  # 2.4: "The generator is optimized using GRPO"
    "read.loss": "clipped",  # eq. 18
    "read.evidence": "selected",  # 2.4: "the frozen selector produces an evidence set"
    "read.steps": 0,  # 2.4: "one epoch of generator fine-tuning"
    "read.prompts": 8,  # A.5: "Both stages ... batch size 8"
    "read.samples": 10,  # eq. 13: k = 1, ..., K
    "read.learning_rate": 4e-6,  # A.5: "Both stages ... 4 x 10^-6"
    "read.ratio": "output",  # eq. 18: r = π(a | q, S) / π_old(a | q, S)
    "read.mean": "sequence",  # eq. 18: E over k
    "read.clip_low": 0.2,  # A.5: "clipping parameter ε = 0.2"
    "read.clip_high": 0.2,
    "read.kl": "k3",  # A.5: the coefficient - the code's estimate
    "read.kl_coefficient": 0.001,  # A.5: "KL regularization coefficient 0.001"
    "read.keep_dead": True,  # eq. 18: E over all k
    "read.outcome_decides": False,  # eq. 18 has no such rule
    "read.scale": "sd",  # 2.4: "computed from generator rewards within each group"
    "read.max_new_tokens": 1024,  # not said; generator_training.sh
    "read.chat": True,  # 3.3: "instruction-tuned LLMs"
    "read.cite": True,  # Table 7: "cite it inline as Doc [i]"
    "read.citation": 0.2,  # A.5: "λ_acc = 0.8 and λ_cite = 0.2"
    "read.citations": 2,  # A.5: "n* = 2 cited documents"
    "read.citable": 0,  # 2.4: "from the provided documents"
    "read.f1": 0.7,  # A.5: "β1 = 0.7 and β2 = 0.3"
    "train.lora_rank": 32,  # A.5: "In both training stages ... rank 32"
    "train.lora_alpha": 16.0,  # A.5: "α = 16"
    "train.warmup": 0.02,  # A.5: "with 2% warmup"
    "train.decay": "cosine",  # A.5: "cosine learning rate decay"
    "train.floor": 0.1,  # not said; min_lr_ratio of both scripts
    "prompts.cite": "paper",  # Table 7 - own words
    "prompts.select": "paper",  # Table 8 - own words
    "evaluate.passages": 0,  # 3.2: "Top-5 retrieved documents", as select.passages
    "evaluate.sizes": (1, 3, 5, 10),  # 3.6: k of {1, 3, 5, 10, 15, 30} - up to 10
    "evaluate.removal": True,  # A.3: REMOVE-CITED, KEEP-ONLY-CITED
    "evaluate.temperature": 0.0,  # not said
    "evaluate.max_new_tokens": 1024,  # not said; inference.sh
}
OFFICIAL = {  # GasolSun36/BAR-RAG 02c7b59; .sh are files of scripts
    "iterations": 3,  # README: "2-3 iterations are sufficient"
    "retriever.path": "intfloat/e5-base-v2",  # README: "E5-base-v2 as the dense retriever"
    "retriever.prompts.query": "query: ",  # E5's card: "query: " and "passage: " are needed
    "retriever.prompts.document": "passage: ",
    "generator.path": "Qwen/Qwen2.5-7B-Instruct",  # README: one of three backbones
    "pool.size": 25,  # README: --top_n 25
    "warm.steps": 0,  # README has no such step
    "success.by": "samples",  # selector_training.sh: K_ROLLOUTS="10"
    "success.answers": 10,
    "success.right_at": 0.8,  # selector_training.sh: GENERATOR_REWARD_THRESHOLD="0.8"
    "filter.questions": 0,  # filter.sh: --num_samples -1
    "filter.sets": 8,  # filter.sh: --selector_rollouts 8
    "filter.each": True,  # README: "Steps 2-5 are repeated for each iteration"
    "filter.right_at": 0.0,  # filter.sh: --reward_threshold 0.8, which training has too
    "filter.temperature": 0.7,  # filter.sh: --generator_temperature 0.7
    "filter.top_p": 0.95,  # filter.py: top_p 0.95
    "filter.low": 0.25,  # filter.sh: --mean_min 0.25
    "filter.high": 0.85,  # filter.sh: --mean_max 0.85
    "filter.variance": 0.02,  # filter.sh: --var_min 0.02
    "filter.chance": False,  # filter.py: var < var_min
    "filter.reader": False,  # README: "over the full training set"
    "selector.kind": "writer",  # selector_training.sh: a language model
    "selector.path": "",  # README: "for both selector and generator"
    "selector.strict": False,  # selector.py: a tag and a number within range
    "selector.max_new_tokens": 1024,  # selector_training.sh: max_response_length=1024
    "selector.temperature": 1.0,  # filter.sh: --selector_temperature 1.0
    "selector.kl": "k3",  # selector_training.sh: kl_loss_type=low_var_kl
    "selector.lora_rank": 32,  # selector_training.sh: lora_rank=32
    "selector.lora_alpha": 16.0,  # selector_training.sh: lora_alpha=16
    "select.passages": 5,  # selector_training.sh: REWARD_TARGET_NUM_DOCS="5"
    "select.steps": 0,  # selector_training.sh: total_epochs=1
    "select.questions": 8,  # selector_training.sh: train_batch_size=8
    "select.sets": 8,  # selector_training.sh: rollout.n=8
    "select.learning_rate": 4e-6,  # selector_training.sh: optim.lr=4e-6
    "select.centre": 0.6,  # selector_training.sh: REWARD_TARGET_CENTER="0.6"
    "select.boundary": 1.0,  # selector_training.sh: REWARD_LAMBDA_UNC="1.0"
    "select.relevance": 0.2 * 1.0,  # selector_training.sh: REWARD_LAMBDA_REL, REWARD_MAX_REL
    "select.relevance_form": "saturating",  # selector.py: avg_score / (avg_score + C)
    "select.tau": 10.0,  # selector.py: C = 10.0
    "select.format_bonus": 0.0,  # selector_training.sh: REWARD_FORMAT_BONUS="0.0"
    "select.outcome_decides": False,  # verl has no such rule
    "select.scale": "sd",  # verl: norm_adv_by_std_in_grpo
    "read.train": "grpo",  # generator_training.sh: adv_estimator=grpo
    "read.loss": "clipped",  # verl's policy loss
    "read.evidence": "selected",  # selector2generator.sh
    "read.steps": 0,  # generator_training.sh: total_epochs=1
    "read.prompts": 32,  # generator_training.sh: train_batch_size=32
    "read.samples": 8,  # generator_training.sh: rollout.n=8
    "read.learning_rate": 5e-6,  # generator_training.sh: optim.lr=5e-6
    "read.updates": 1,  # generator_training.sh: ppo_mini_batch_size=32, as the batch
    "read.ratio": "token",  # verl: the ratio of each token
    "read.mean": "token",  # verl: token-mean
    "read.clip_low": 0.2,  # verl: clip_ratio 0.2
    "read.clip_high": 0.2,
    "read.kl": "k3",  # generator_training.sh: kl_loss_type=low_var_kl
    "read.kl_coefficient": 0.001,  # generator_training.sh: kl_loss_coef=0.001
    "read.keep_dead": True,  # verl: every token counts in the mean
    "read.outcome_decides": False,  # verl has no such rule
    "read.scale": "sd",  # verl: norm_adv_by_std_in_grpo
    "read.temperature": 1.0,  # selector_training.sh: GENERATOR_TEMPERATURE="1.0"
    "read.top_p": 1.0,  # selector_training.sh: GENERATOR_TOP_P="1.0"
    "read.max_new_tokens": 1024,  # generator_training.sh: max_response_length=1024
    "read.chat": True,  # selector.py: build_generator_messages
    "read.cite": True,  # generator.py: <think>, Doc [i], <answer>
    "read.citation": 1 - 0.8,  # generator.py: alpha = 0.8
    "read.citations": 2,  # generator.py: doc_cite=2
    "read.citable": 25,  # selector_training.sh: GENERATOR_MAX_DOC_ID="25" - 31 elsewhere
    "read.f1": 0.7,  # generator.py: 0.7 * max_f1 + 0.3 * max_em
    "train.lora_rank": 64,  # generator_training.sh: lora_rank=64
    "train.lora_alpha": 32.0,  # generator_training.sh: lora_alpha=32
    "train.lora_targets": (),  # generator_training.sh: target_modules=all-linear
    "train.weight_decay": 0.01,  # verl: weight_decay=0.01, which no script changes
    "train.warmup": 0.02,  # generator_training.sh: lr_warmup_steps_ratio=0.02
    "train.decay": "cosine",  # generator_training.sh: lr_scheduler_type=cosine
    "train.floor": 0.1,  # generator_training.sh: min_lr_ratio=0.1
    "prompts.cite": "paper",  # selector.py - own words
    "prompts.select": "paper",  # process_selector.py - own words
    "evaluate.passages": 0,  # inference.sh: TOPKS=5, as select.passages
    "evaluate.sizes": (1, 3, 5, 10),  # inference.sh: TOPKS=5 - figure 4's, too
    "evaluate.temperature": 0.3,  # inference.sh: --temperature 0.3
    "evaluate.max_new_tokens": 1024,  # inference.sh: --max_new_tokens 1024
}
EXPECTED = {"paper": PAPER, "official": OFFICIAL}
ROWS = [(preset, field) for preset, x in config.SOURCES["bar_rag"].items() for field in x.fields]


@pytest.mark.parametrize(("preset", "field"), ROWS)
def test_the_preset_has_the_value_of_its_source(preset, field):
    expected = EXPECTED[preset][field]
    found = schema.values(config.bar_rag(preset))[field]
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("preset", EXPECTED)
def test_every_line_has_a_row(preset):
    assert list(config.SOURCES["bar_rag"][preset].fields) == list(EXPECTED[preset])
