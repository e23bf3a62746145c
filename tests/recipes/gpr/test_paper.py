"""Each field of the preset that follows GPR's paper, with the line of the paper that says so."""

import pytest

from ark_jax import config, schema

# Typed from the paper, not read from the preset. What follows a dash is ours.
PAPER = {
    # B: "two distilbert-base-uncased encoders" - the encoder is named by the user
    "retriever.path": "distilbert/distilbert-base-uncased",
    # 3: "prompt LLaMA-3.1-8B-Instruct ... with instructions" - named by the user
    "llm.backend": "none",
    "llm.model": "gemini-2.5-flash",
    # 3: the instructions are not printed
    "prompts.triple_questions": "",
    # B: "further evaluated in the zero-shot setting"
    "data.held_out": 1.0,
    # 3: "For each triplet τ = (h, r, t) ∈ G, we mask one entity"
    "questions.by": "triples",
    "questions.triples": 0,
    # Table 2: two questions of one triplet, one for each end
    "questions.per_triple": 1,
    # not said how many triplets a prompt has
    "questions.triples_per_prompt": 1,
    # 3: "separate encoders for natural language queries and knowledge triplets"
    "train.towers": "two",
    # eq. 5: M(z_τ, z_nb, z_q, γ1) + M(z_nb, z_neg, z_q, γ2)
    "train.loss": "triplet",
    # B: "Margins γ1 and γ2 in Eq. 5 are both set to 0.5"
    "train.margins": (0.5, 0.5),
    # eq. 2: "by randomly sampling triplets from G such that they do not overlap with τ"
    "train.negatives": "random",
    # eq. 1: "neighboring triplets τ_nb that share at least one entity with τ"
    "train.siblings": "neighbour",
    "train.neighbours": "triple",
    "train.hub": 0,
    # B: "for 5 epochs using AdamW, with a batch size of 512 and a learning rate of 2e-5"
    "train.epochs": 5,
    "train.learning_rate": 2e-5,
    "train.batch": 512,
    # 3: "retrieve top-K triplets to construct the subgraph S_q"
    "search.hops": 1,
    # Table 1 reads all questions - costs; K has no value
    "evaluate.read": 0,
    "evaluate.triples": 20,
}


@pytest.mark.parametrize("field", config.SOURCES["gpr"]["paper"].fields)
def test_the_preset_has_the_papers_value(field):
    assert schema.values(config.gpr("paper"))[field] == PAPER[field]


def test_every_line_has_a_row():
    assert list(config.SOURCES["gpr"]["paper"].fields) == list(PAPER)
