"""Each field of the presets that follow ARK's paper and code, with the line that says so."""

import pytest

from ark_jax import config, schema

QWEN, MISTRAL = "Qwen/Qwen3-Embedding-0.6B", "mistralai/Mistral-7B-Instruct-v0.2"
# Typed from the sources, not read from the presets. What follows a dash is ours.
PAPER = {
    "data.titles": False,  # Listing 3: "Context: {chunk}"
    "data.chunking": "tokens",  # Algorithm 2: "Using token-based chunking"
    "data.chunk_tokens": 0,  # 4.2: "512-token chunks"; at most 512
    "data.chunk_overlap": 12,  # 4.2: "with 12-token overlaps"
    "retriever.path": QWEN,  # 4.2: "Qwen3-embedding (0.6B variant)"
    "retriever.vectors": "text",  # eq. 5: sim(q, t)
    "generator.path": MISTRAL,  # 4.2: "Mistral-7B-Instruct-v0.2 as the default generator"
    "llm.backend": "none",  # 4.2: a model - must be set
    "llm.model": "gemini-2.5-flash",  # Table 4: "LLM Gemini-2.5 Flash"
    "rewriter.model": "gemini-2.5-pro",  # 4.2: "We then employ Gemini-2.5-Pro"
    "prompts.extract": "ark",  # Listing 1 - own words
    "prompts.rewrite": "ark",  # Listing 2 - own words
    "prompts.forward": "ark",  # Listing 3 - own words
    "prompts.backward": "ark",  # B.2: not printed - as the code's
    "prompts.read": "ark",  # Listing 4 - own words
    "prompts.judge": "ark",  # Listing 5 - own words
    "graph.rules": False,  # 4.2: "Gemini-2.5-Flash ... for OpenIE"
    "graph.per": "context",  # 3.1: "an LLM-derived KG from the context"
    "graph.seeds": "model",  # 3.2.2: "identify entities from the QA pair"
    "graph.gleanings": 0,  # Algorithm 2: "llm_output <- LLM(prompt, chunk)"
    "graph.similarity": 0.8,  # Table 4: "τ 0.8"
    "graph.teleport": 0.85,  # Table 4: "PPR α 0.85"; eq. 1: "α denotes the teleport probability"
    "graph.tolerance": 1e-4,  # Table 4: "PPR ε 1e-4"
    "graph.floor": 1e-4,  # Algorithm 1: "Filter trailing terms ... apr_i < ε"
    "graph.large": (20, 50),  # Table 4: k_min of stage 2 is 20, k_max 50
    "graph.small": (3, 10),  # Table 4: k_min of stage 3 is 3, k_max 10
    "graph.rewrites": 10,  # Table 4: "Augmented Query size 10"
    "score.candidates": 0,  # 3.3.2: "for all candidate chunks"
    "score.normalise": "none",  # eq. 6
    "score.forward": 1.0,  # 3.3.1: "λ_f = 1.0, λ_b = 0.3, λ_v = 1.0"
    "score.backward": 0.3,
    "score.retriever": 1.0,
    "score.positives": 10,  # 4.2: "we retrieve 10 positive queries based on S(t)"
    "score.keep": 1.0,  # 3.3.2: "For each query q"
    "score.supervision": "alignment",  # 3.3.1: "This unified score serves as the primary criterion"
    "mine.by": "rewritten",  # 3.3.2: "for each complex query q in Q_L^aug"
    "mine.model": "previous",  # 3.3.2: "Using the retriever fine-tuned in Stage 1"
    "mine.top": 20,  # 4.2: "the top 20 retrieved chunks"
    "mine.negatives": 20,  # 4.2: the same - of all rewritten questions
    "mine.margin": 0.0,  # 3.3.2: "we exclude any chunks that appear in ... T+"
    "mine.spare": 0,  # 3.3.2: the same
    "train.kind": "bi",  # 4.2: an embedding model
    "train.stages": (1, 2, 3),  # 3.3.2: "a three-stage curriculum"
    "train.epochs": (3, 4, 3),  # Table 6: "Epochs 10" - divided as the code does
    "train.learning_rates": (6e-6, 6e-6, 6e-6),  # Table 6: "Learning rate 6e-6"
    "train.unit": "pair",  # 3.3.2: "for a given positive pair (q, t+)"
    "train.batch": 2 * 8,  # Table 6: "batch size 2, gradient accumulation steps 8" - one batch
    "train.loss": "info_nce",  # 3.3.2: "the InfoNCE loss"
    "train.denominator": "own",  # eq. 8: C(q) = {t+} and the hard negatives
    "train.temperature": 0.05,  # eq. 7: "τ is a temperature hyperparameter" - ours
    "train.lora_rank": 0,  # B.3: "full-parameter tuning"
    "train.order": "question",  # Algorithm 3: "foreach mini-batch B"
    "train.merge_copies": False,  # Algorithm 3 has no such step
    "train.merge": 1.0,  # Algorithm 3: "return Fine-tuned retriever"
    "evaluate.answers": ("answer_f1",),  # 4.2: "report F1 score"
    "evaluate.passages": 5,  # 4.2: "the top-5 retrieved chunks"
    "evaluate.max_new_tokens": 128,  # 4.2: "original evaluation protocol" - LongBench's for QA
    "reader.backend": "local",  # 4.2: "the default generator"
    "reader.form": "text",  # Listing 4 ends in "Answer:"
    "judge.model": "gpt-4.1",  # 4.2: "We use GPT-4.1 to evaluate win rates"
    "judge.repeats": 0,  # 4.2: "over five runs" - none unless asked for
}
OFFICIAL = {  # valleysprings/ARK a5c127b
    "data.titles": False,  # generate_pos.py: the prompt has the chunk alone
    "data.training_sentences": 1,  # alignment.yaml: chunk_method: "sentence", chunk_size: 1
    "data.chunking": "tokens",  # graph_builder.py: --chunk_size 512
    "data.chunk_tokens": 0,  # the same
    "data.chunk_overlap": 12,  # graph_builder.py: --chunk_overlap 12
    "retriever.path": QWEN,  # training.yaml: model_name_or_path: "./model/raw/qwen3"
    "retriever.vectors": "text",  # training.yaml: task_type: embedding
    "generator.path": MISTRAL,  # llm.yaml: generator.model: "...Mistral-7B-Instruct-v0.2"
    "llm.backend": "none",  # llm.yaml: default_provider: "gpt" - must be set
    "llm.model": "gemini-2.5-flash",  # llm.yaml: llm_api.gpt.model
    "llm.temperature": 0.0,  # not given - replies that repeat
    "rewriter.temperature": 0.7,  # query_generation.py: temperature=0.7
    "prompts.extract": "ark_code",  # prompts/entity_extraction.py - own words
    "prompts.rewrite": "ark",  # prompts/query_gen.py - own words
    "prompts.forward": "ark",  # generate_pos.py:399 - own words
    "prompts.backward": "ark",  # generate_pos.py:431 - own words
    "prompts.read": "ark",  # dataset_prompts.py - one for all, own words
    "prompts.judge": "ark",  # llm_eval_prompt.py - own words
    "graph.rules": False,  # graph_builder.py: --llm_provider
    "graph.per": "context",  # graph_builder.py: one graph for each distinct context
    "graph.seeds": "model",  # generate_neg.py:261: a model names entities of answers[0]
    "graph.gleanings": 0,  # construction.py: one call for a chunk
    "graph.similarity": 0.8,  # augment_kg.sh: threshold 0.8
    "graph.teleport": 0.15,  # alignment.yaml: ppr.alpha: 0.85, networkx's damping
    "graph.tolerance": 1e-4,  # alignment.yaml: ppr.epsilon: 1e-4
    "graph.floor": 0.0,  # extraction.py: scores above 0
    "graph.large": (20, 50),  # alignment.yaml: min_k: 20, max_k: 50
    "graph.small": (3, 10),  # alignment.yaml: min_k: 3, max_k: 10
    "graph.rewrites": 10,  # alignment.yaml: num_queries: 10
    "score.candidates": 0,  # generate_pos.py: all chunks
    "score.path": "BAAI/bge-m3",  # generate_pos.sh:73: ./model/raw/bge-m3
    "score.short": 10,  # generate_pos.py:580: score *= tokens / 10
    "score.references": 1,  # generate_pos.py:562: answers[0]
    "score.answers": "first",
    "score.normalise": "minmax",  # alignment.yaml: normalize_scores: true
    "score.forward": 1.0,  # alignment.yaml: forward_weight: 1.0
    "score.backward": 0.3,  # alignment.yaml: backward_weight: 0.3
    "score.retriever": 1.0,  # alignment.yaml: parameter_weight: 1.0
    "score.positives": 10,  # alignment.yaml: num_positives: 10
    "score.keep": 1.0,  # data_generator.py: each question
    "score.supervision": "alignment",  # generate_pos.py
    "mine.by": "rewritten",  # generate_neg.py: --mode matching
    "mine.model": "base",  # generate_neg.py:477: training.yaml's model
    "mine.top": 10,  # alignment.yaml: top_k: 10
    "mine.negatives": 20,  # alignment.yaml: num_negatives: 20
    "mine.choose": "random",  # data_generator.py: random.sample of the union
    "mine.first": "document",  # data_generator.py:76: random chunks of the same document
    "mine.margin": 0.0,  # generate_neg.py:506: minus the positives
    "mine.spare": 0,  # the same
    "train.kind": "bi",  # training.yaml: task_type: embedding
    "train.stages": (1, 2, 3),  # training.yaml: stage1, stage2, stage3
    "train.epochs": (3, 4, 3),  # training.yaml: epochs: 3, 4, 3
    "train.learning_rates": (1e-5, 8e-6, 4e-6),  # training.yaml: 1e-5, 8.0e-6, 4.0e-6
    "train.warmup": 0.1,  # training.yaml: warmup_steps: 50, 0, 0 - a share
    "train.unit": "pair",  # data_generator.py: a row a positive
    "train.batch": 128,  # training.yaml: per_device_train_batch_size: 32 - on four devices
    "train.loss": "info_nce",  # training.yaml: loss_type: infonce
    "train.denominator": "batch",  # ms-swift: INFONCE_USE_BATCH is True by default
    "train.temperature": 0.1,  # ms-swift: INFONCE_TEMPERATURE is 0.1 by default
    "train.lora_rank": 0,  # train_qwen_multi.sh: --train_type full
    "train.order": "question",  # ms-swift shuffles rows
    "train.merge_copies": False,  # generate_pos.py: equal texts stay
    "train.merge": 1.0,  # train_qwen_multi.sh: stage 3 is the result
    "evaluate.answers": ("answer_f1",),  # metrics.py: qa_f1_score
    "evaluate.passages": 5,  # run_inference.py: top 5
    "evaluate.max_new_tokens": 512,  # llm.yaml: generator.max_new_tokens: 512
    "reader.backend": "local",  # llm.yaml: generator.provider: "vllm"
    "reader.form": "text",  # run_inference.py: the prompt without a chat template
    "reader.temperature": 0.1,  # llm.yaml: generator.temperature: 0.1
    "reader.top_p": 0.9,  # llm.yaml: generator.top_p: 0.9
    "judge.model": "gpt-4.1",  # run_pairwise_eval.py prints it - it asks another
    "judge.repeats": 0,  # run_pairwise_eval.py: one pass - none unless asked for
}
EXPECTED = {"paper": PAPER, "official": OFFICIAL}
ROWS = [(preset, field) for preset, x in config.SOURCES["ark"].items() for field in x.fields]


@pytest.mark.parametrize(("preset", "field"), ROWS)
def test_the_preset_has_the_value_of_its_source(preset, field):
    assert schema.values(config.ark(preset))[field] == EXPECTED[preset][field]


@pytest.mark.parametrize("preset", EXPECTED)
def test_every_line_has_a_row(preset):
    assert list(config.SOURCES["ark"][preset].fields) == list(EXPECTED[preset])
