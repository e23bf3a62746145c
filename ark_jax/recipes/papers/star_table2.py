"""Table 2 of STAR: Hits@1 of the first path and F1 of answers on WebQSP, CWQ and GrailQA.

    ark-jax sweep --config=papers/star_table2 --check
    ark-jax sweep --config=papers/star_table2 --workdir=DIR

A run is a data set, by the preset `paper`; those after a colon are run alone:
--config=papers/star_table2:webqsp. Llama-3.3-70B answers from the first path, at the endpoint of
--config.reader.base_url. The paper's seconds a question are left out. Of GrailQA 3,800 questions
train, and some 1,000 of its dev set test, since its test set hides the answers.
"""

from ark_jax.recipes.papers.sources import find
from ark_jax.recipes.star import config
from ark_jax.report.paper_table import PaperTable, Part

SETS = {"webqsp": "WebQSP", "cwq": "CWQ", "grailqa": "GrailQA"}
# Section 5.1: epochs; Table 1: hops, and how many questions of GrailQA are used.
CHANGES = {
    "webqsp": {"paths.hops": 2},
    "cwq": {"paths.hops": 4, "train.epochs": 100, "data.validation": 0.05},
    "grailqa": {"paths.hops": 4, "data.few": 3800, "evaluate.questions": 334},
}


def _run(name: str) -> dict[str, object]:
    files = {"path": "graph", "questions": "train", "test": "test"}
    data = {f"data.{field}": find(f"{name}-{kind}") for field, kind in files.items()}
    return data | CHANGES[name]


TABLE = PaperTable(
    title="STAR, Table 2: Hits@1 and F1 (%)",
    number="Table 2",
    parts={
        name: Part(heading, (f"{name}-train", f"{name}-test", f"{name}-graph"))
        for name, heading in SETS.items()
    },
    metrics={"hit@1": "Hits@1", "list_f1": "F1"},
    runs={name: _run(name) for name in SETS},
    quoted={
        "Qwen2.5-72B": (58.1, 39.4, 32.4, 27.3, 24.3, 18.3),
        "Llama3.3-70B": (62.5, 43.2, 39.5, 34.1, 26.3, 20.3),
        "DeepSeek-R1-70B": (75.2, 59.0, 55.3, 50.3, 41.9, 34.2),
        "RoG": (87.1, 71.6, 83.3, 64.8, 73.1, 63.8),
        "Graph CoT": (85.3, 73.5, 66.1, 61.4, 78.3, 73.1),
        "ToG": (67.6, 61.3, 52.1, 43.1, 69.8, 60.4),
        "DALK": (58.9, 50.2, 45.8, 35.3, 56.7, 49.1),
        "G-Retriever": (63.1, 69.3, 42.1, 40.8, 48.5, 49.8),
        "RD-P": (88.1, 73.1, 83.8, 66.2, 71.3, 67.9),
        "GRAG": (60.5, 52.8, 45.6, 42.2, 49.5, 53.2),
        "STAR": (88.7, 74.1, 86.3, 69.1, 80.4, 76.3),
    },
)


def get_config(words: str = ""):
    """The settings that all runs share; `words` after the colon are data sets."""
    TABLE.choose([word for word in words.split(",") if word])
    c = config.star("paper")
    c.reader.backend, c.reader.model = "openai", "meta-llama/Llama-3.3-70B-Instruct"
    c.evaluate.read = -1
    return c
