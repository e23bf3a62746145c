"""Table 1 of GPR: answers from retrieved triples on WebQSP and CWQ.

    ark-jax sweep --config=papers/gpr_table1 --check
    ark-jax sweep --config=papers/gpr_table1 --workdir=DIR

A run is a data set, by the preset `paper`: a retriever is trained on its graph, without a question
of it, and the reader answers from its triples. Those after a colon are run alone:
--config=papers/gpr_table1:webqsp. The language model that writes questions is that of
--config.llm.backend, the reader that of --config.reader.model: GPT-3.5, or another of the quoted.
"""

from ark_jax.recipes.gpr import config
from ark_jax.recipes.papers.sources import find
from ark_jax.report.paper_table import PaperTable, Part

SETS = {"webqsp": "WebQSP", "cwq": "CWQ"}
TABLE = PaperTable(
    title="GPR, Table 1: accuracy, precision, recall and F1 of answers (%)",
    number="Table 1",
    parts={
        name: Part(heading, (f"{name}-test", f"{name}-graph")) for name, heading in SETS.items()
    },
    metrics={
        "answer_accuracy": "accuracy",
        "list_precision": "precision",
        "list_recall": "recall",
        "list_f1": "F1",
    },
    runs={
        name: {"data.path": find(f"{name}-graph"), "data.questions": find(f"{name}-test")}
        for name in SETS
    },
    quoted={
        "ChatGPT": (46.62, 65.97, 39.48, 49.40, 37.88, 42.19, 35.63, 38.63),
        "ChatGPT + G-Retriever": (42.70, 63.32, 36.44, 46.26, 33.51, 39.42, 31.84, 34.99),
        "ChatGPT + Two Tower": (39.14, 57.30, 34.30, 42.67, 30.85, 36.34, 29.60, 32.64),
        "ChatGPT + GPR": (62.40, 73.46, 46.31, 56.79, 43.25, 47.59, 39.59, 43.22),
        "LLaMA2-Chat-7B": (40.16, 59.82, 34.85, 43.76, 28.23, 9.99, 28.23, 14.70),
        "LLaMA2-Chat-7B + Two Tower": (38.51, 58.23, 33.54, 42.44, 27.38, 32.57, 26.12, 29.01),
        "LLaMA2-Chat-7B + GPR": (61.90, 77.57, 47.44, 58.76, 44.27, 15.41, 44.27, 22.93),
        "Flan-T5-xl": (10.86, 19.16, 10.40, 13.41, 12.22, 16.94, 12.22, 14.21),
        "Flan-T5-xl + Two Tower": (18.00, 33.05, 17.58, 22.83, 16.23, 20.22, 15.90, 17.81),
        "Flan-T5-xl + GPR": (39.48, 56.94, 35.23, 43.51, 28.20, 38.54, 28.20, 32.47),
    },
)


def get_config(words: str = ""):
    """The settings that all runs share; `words` after the colon are data sets."""
    TABLE.choose([word for word in words.split(",") if word])
    c = config.gpr("paper")
    c.llm.backend = "openai"
    c.reader.backend, c.reader.model = "openai", "gpt-3.5-turbo"
    c.evaluate.read = -1
    return c
