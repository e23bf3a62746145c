"""Data for the report's page: a small sample of every part, an empty one, one with hostile text."""

from ark_jax.recipes.ark import report
from ark_jax.report import page, questions, results, sections

HOSTILE = "</title></style></p><script>alert(1)</script>\"' onload=x <b>&lt;"
HEADINGS = [
    "The run",
    "Results",
    "Training",
    "Positives and hard negatives",
    "Examples",
    "All questions",
    "The judge",
    "Set aside",
    "Time and cost",
    "Manifest",
]
LONG = (
    "The gauge stood on the quay. " * 30
    + "It was the tide that broke it, not the tidewater mill. "
    + "Later. " * 40
)


def sample() -> dict:
    """Small data for every part of the page."""
    interval = lambda mean: {"mean": mean, "low": mean - 0.05, "high": mean + 0.05}
    scored = {
        "chunk": "d#0001",
        "text": LONG,
        "forward": -1.25,
        "backward": -2.0,
        "retriever": 0.5,
        "score": -3.0,
    }
    unscored = scored | {"text": "Short text.", "forward": None, "backward": None, "score": None}
    tested = lambda mean, difference, p: (
        interval(mean)
        | {
            "against_base": {
                "difference": difference,
                "low": difference - 0.02,
                "high": difference + 0.02,
                "p": p / 4,
                "p_holm": p,
            }
        }
    )
    verdicts = {
        "won": 12,
        "lost": 5,
        "tied": 3,
        "inconsistent": 4,
        "disqualified": 1,
        "decided": 0.7,
        "unjudged": 0,
        "win_rate": interval(0.64),
        "by_repeat": [0.6, None, 0.68],
        "position_bias": -0.125,
        "agreement": 0.8333,
    }
    nothing = (
        dict.fromkeys(verdicts, 0)
        | dict.fromkeys(("win_rate", "position_bias", "agreement"))
        | {"by_repeat": [None]}
    )
    mined = lambda **more: {
        "model": "stage1",
        "negatives": 1569,
        "questions_without": 3,
        "holding_the_answer": 38,
        "dropped": {"copies": 7, "margin": 0, "aligned": 21},
        **more,
    }
    curve = [{"step": i + 1, "loss": 2.0 / (i + 1), "learning_rate": 1e-5} for i in range(50)]
    return {
        "title": "A run",
        "verdict": "Training helped: recall@5 +0.100.",
        "facts": [["documents", 1234], ["model", "MiniLM"], ["share", 0.25], ["cached", True]],
        "metrics": ["recall@5", "mrr"],
        "table": [
            {"system": "base", "values": {"recall@5": interval(0.5), "mrr": interval(0.4)}},
            {
                "system": "stage1",
                "values": {"recall@5": tested(0.6, 0.1, 0.0002), "mrr": tested(0.3, -0.1, 0.0625)},
            },
            {
                "system": "stage2",
                "values": {"recall@5": tested(0.6002, 0.1002, 0.04), "mrr": tested(0.4, 0.0, 1.0)},
            },
            {"system": "stage3", "values": {"recall@5": tested(0.45, -0.05, 0.5)}},
        ],
        "curves": {"stage1": curve, "stage2": curve[:3]},
        "distributions": {"stage2": {"positive": [0.9, 0.5], "negative": [0.6, 0.4, 0.5]}},
        "difficulty": {
            "stage2": mined(
                mean_gap_to_hardest=0.0593,
                share_above_the_positive=0.0387,
                gap_to_hardest={"p10": -0.0318, "p50": 0.0642, "p90": 0.1604},
            ),
            "stage3": mined(),
        },
        "examples": [
            {
                "question": "What broke the gauge?",
                "answers": ["tide", "the tide"],
                "rewritten": {"large": ["What, beside the mill, broke it?"], "small": []},
                "positives": [scored],
                "negatives": {"stage2": [unscored], "stage3": []},
            },
            {"question": "Who?", "answers": [], "rewritten": {}, "positives": [], "negatives": {}},
        ],
        "asked": [
            {
                "id": "q1",
                "question": "Which?",
                "answers": ["Quay"],
                "values": {"base": None, "stage1": 3, "stage3": 2},
                "found": {
                    "base": [["In the fen.", False]],
                    "stage3": [[LONG, False], ["Quay", True]],
                },
                "given": {"base": "fen", "stage3": "the quay"},
            },
            {
                "id": "q2",
                "question": "When?",
                "answers": ["1784"],
                "values": {"base": 1, "stage1": 1, "stage3": 1200},
                "found": {"base": [], "stage3": [["In 1785.", False]]},
                "given": {"base": None, "stage3": "1785"},
            },
        ],
        "judge": {
            "judge": "a judge",
            "repeats": 3,
            "temperature": 0.7,
            "verdicts": 144,
            "disqualified": {"unreadable": 1},
            "pairs": [
                {
                    "system": "stage3",
                    "against": "base",
                    "questions": 60,
                    "same": 9,
                    "criteria": {"overall": verdicts, "conciseness": nothing},
                }
            ],
        },
        "counts": [["cut passages", 1204]],
        "quarantine": [
            {"stage": "extract", "item": "d#0007", "reason": "no record", "text": "I cannot."}
        ],
        "usage": [
            {
                "stage": "rewrite",
                "calls": 144,
                "requests": 151,
                "asked_again": 7,
                "retries": 3,
                "cached": 20,
                "input_tokens": 190_200,
                "output_tokens": 61_300,
                "cost": 0.034,
            }
        ],
        "times": [["extract", 1.26], ["stage1", 74.8]],
        "manifest": {"version": "0.1.0", "seeds": [0, 1]},
    }


def empty() -> dict:
    """The data of a run that did nothing."""
    data = {key: type(value)() for key, value in sample().items()}
    return data | {"title": "A run", "verdict": "Nothing was run."}


def poisoned(value, keys: bool = False):
    """The data with HOSTILE before every text and every name of a stage, system or metric."""
    dicts_with_names = {
        "curves",
        "distributions",
        "difficulty",
        "dropped",
        "values",
        "rewritten",
        "negatives",
        "given",
        "found",
        "criteria",
        "manifest",
    }
    if isinstance(value, dict):
        return {
            HOSTILE + key if keys else key: poisoned(v, key in dicts_with_names)
            for key, v in value.items()
        }
    if isinstance(value, list):
        return [poisoned(v) for v in value]
    return HOSTILE + value if isinstance(value, str) else value


def sections_of(data: dict) -> list[page.Section]:
    """The sections of an ARK run with this data."""
    return [
        sections.facts(data["facts"]),
        results.results(data["table"], data["metrics"]),
        sections.training(data["curves"]),
        report.separation(data["distributions"], data["difficulty"]),
        report.examples(data["examples"]),
        questions.question_section(
            [questions.Asked(**asked) for asked in data["asked"]],
            tuple(list(data["asked"][0]["values"])[::2]) if data["asked"] else ("", ""),
            "rank of the first needed passage",
        ),
        results.judge_verdicts(data["judge"]),
        sections.set_aside(data["counts"], data["quarantine"]),
        sections.time_and_cost(data["times"], data["usage"]),
        sections.manifest(data["manifest"]),
    ]


def render(data: dict) -> str:
    """The page of an ARK run with this data."""
    return page.render(data["title"], [data["verdict"]], sections_of(data))
