"""What the paper of STAR says, line by line, and what the preset does.

Our copy of it has lost the numbers in its text. Where one is lost, the value is ours, or that of
the nearest published code: RD-P (github.com/yooboh/RD-P), or SRTK
(github.com/happen2me/subgraph-retrieval-toolkit).
"""

from ark_jax.recipes.core.presets import Row, Source, Step

HITS = tuple(f"hit@{k}" for k in (1, 3, 5, 7))
PAPER = Source(
    "STAR: Semantic-Tuned and Tail-Adaptive Retriever (arXiv 2605.18765)",
    {
        "retriever.path": Row("princeton-nlp/sup-simcse-roberta-base", "sections 4.1, 5.1: SimCSE"),
        "data.held_out": Row(0.4, "Table 1: the sets' own parts", "without `data.test`"),
        "data.validation": Row(0.1, "section 5.1: 90:10; 95:5 on CWQ"),
        "paths.hops": Row(2, "Table 1: WebQSP; CWQ, GrailQA 4"),
        "paths.inverse": Row(True, "not given", "Freebase names its inverses; others need them"),
        "paths.seconds": Row(150.0, "not given", "RD-P's"),
        "mine.positives": Row("similar", "section 4.1: at least the mean; algorithm 1"),
        "mine.pool": Row("all", "section 4.1: the entire relation set; algorithm 2"),
        "mine.choose": Row("similar", "section 4.1: the highest-scoring incorrect paths"),
        "mine.by": Row("base", "section 4.1: prior to model training"),
        "mine.negatives": Row(7, "section 5.1: lost", "ours"),
        "mine.spare": Row(1.0, "section 4.1: incorrect paths"),
        "train.head": Row("star", "section 4.1: cross-attentive architecture"),
        "train.loss": Row("lists", "section 4.2: the final loss"),
        "train.weights": Row("both", "section 4.2: both classes"),
        "train.weight_scale": Row("inverse", "section 4.2: inverse occurrence count"),
        "train.weight_range": Row((0.5, 2.0), "section 5.1: lost", "ours"),
        "train.temperature": Row(1.0, "section 4.1: none in the loss"),
        "train.epochs": Row(50, "section 5.1: WebQSP, GrailQA; 100 on CWQ"),
        "train.learning_rate": Row(5e-5, "section 5.1: lost", "RD-P's on WebQSP; CWQ 2e-5"),
        "train.batch": Row(16, "not given", "RD-P's on CWQ; WebQSP 32"),
        "search.beam": Row(5, "section 5.1: lost", "ours; SRTK's is 10"),
        "search.keep": Row(1_000_000, "section 4.2: all new paths are scored"),
        "search.k": Row(7, "Table 6: K up to 7"),
        "evaluate.metrics": Row((*HITS, "path_hit@1", "f1"), "Table 6"),
        "evaluate.read": Row(0, "Table 2: all questions", "a model that you name: set -1"),
        "evaluate.paths": Row(1, "section 5.1: the top-1 path"),
        "evaluate.similar_at": Row(0.0, "section 3.1: lost", "the mean of the shortest paths"),
        "prompts.triple_reader": Row("", "not printed", "ours"),
    },
    (
        Step("section 4.1", "input and markers", "models/pair_tokens.py"),
        Step("section 4.1", "attention, network", "models/pair_heads.py", "the network's size"),
        Step(
            "section 4.1",
            "sigmoid of the score",
            "models/pair_heads.py",
            "none, since a softmax follows",
        ),
        Step("section 4.1", "all shortest paths", "graph/relation_paths.py"),
        Step("algorithm 1", "those above the mean", "recipes/star/mine.py"),
        Step("algorithm 2", "near and drawn negatives", "recipes/star/mine.py", "END is one, too"),
        Step("section 4.1", "softmax over a list", "train/losses.py"),
        Step("section 4.2", "share of the class", "recipes/star/mine.py"),
        Step("algorithm 3", "beam search, END", "graph/beam.py"),
        Step("section 5.1", "best epoch by validation", "recipes/star/train.py"),
        Step("section 5.1", "WebQSP, CWQ in RoG's rows", "graph/triple_rows.py"),
        Step("Table 2", "three data sets", "recipes/papers/star_table2.py"),
        Step("section 5.1", "Hits@1", "recipes/star/evaluate.py"),
        Step("section 5.1", "F1 of replies", "evaluate/answer_lists.py"),
        Step("section 5.1", "RT, seconds a question", "recipes/star/evaluate.py", "of all at once"),
        Step("Table 2", "models without a graph", "recipes/graphs/fact_reader.py"),
        Step("Table 2", "RoG, Graph CoT, ToG", "compare/imported.py", "imported, not run"),
        Step("Table 2", "DALK, G-Retriever, GRAG", "compare/imported.py", "imported, not run"),
        Step("Table 2", "RD-P: `dual` of the study", "recipes/star/config.py", "by our lists"),
        Step("Table 3", "sweep ablations", "recipes/star/config.py", "all shortest paths, not one"),
        Step("Table 3", "TweetNLP, BERT: `retriever.path`", "models/retriever.py"),
        Step("Table 4", "sweep ablations", "recipes/star/config.py"),
        Step("section 3.1", "tail: the rarest fifth", "recipes/star/evaluate.py"),
        Step("section 3.1", "shortcut errors by similarity", "recipes/star/measures.py"),
        Step("Figure 3", "biases of right and wrong", "recipes/star/measures.py"),
        Step("Table 5", "other readers: `reader.path`", "recipes/graphs/fact_reader.py"),
        Step("Figure 5", "map of attention", "", "weights are not stored"),
    ),
)
