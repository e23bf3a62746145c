"""The judge stage over HTTP: what judges are shown, and what becomes of their replies."""

import json
import re

import pyarrow.parquet as pq
import pytest
from support import llm_server
from support.world import make_world, tiny_config

from ark_jax.data.records import Chunk, Question
from ark_jax.data.spool import save_chunks
from ark_jax.estimate import plan
from ark_jax.evaluate import judge
from ark_jax.llm import endpoint
from ark_jax.pipeline import engine
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.curriculum import systems
from ark_jax.recipes.ark.recipe import RECIPE, stages
from ark_jax.recipes.documents import judge as judge_stage
from ark_jax.recipes.documents import plan as shared_plan
from ark_jax.runtime.log import Metrics
from ark_jax.text import prompts
from ark_jax.text.tokens import load_tokenizer

KEY = "sk-the-judge-and-nobody-else"
QUESTIONS = [f"q{i}" for i in range(6)]


GIVEN = {
    "base": ["a long answer", "1802", "no", "the salt works", "x", "same"],
    "stage1": ["by nobody"] * 6,
    "stage3": ["short", "in the year 1802", "it is not so", "salt", "y z", "same"],
}


RANKED = {
    "base": ["d#0002", "d#0000", "d#0001"],
    "stage1": ["d#0003"],
    "stage3": ["d#0000", "d#0001", "d#0003"],
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    monkeypatch.setenv("ARK_TEST_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoint, "BACKOFF", 0.02)


def answered(workdir, url: str, **changes) -> engine.Context:
    """What an evaluation leaves: six questions, the last answered alike by base and stage3."""
    c = config.ark()
    c.train.stages, c.evaluate.passages = (1, 2, 3), 2
    c.judge.repeats, c.judge.backend, c.judge.base_url, c.judge.model, c.judge.key_env = (
        2,
        "openai",
        url,
        "toy",
        "ARK_TEST_KEY",
    )
    c.judge.price, c.llm.retries = (1.0, 2.0), 1
    c.judge.update(changes)
    for stage in ("data", "evaluate"):
        (workdir / stage).mkdir(parents=True, exist_ok=True)
    save_chunks(
        [Chunk(f"d#{i:04d}", "d", 0, 1, 1, f"Passage {i}.") for i in range(4)], workdir / "data"
    )
    save_rows(
        [Question(q, f"What of {q}?", (f"right {q}",), ("d",)) for q in QUESTIONS],
        workdir / "data" / "questions_held_out.parquet",
    )
    save_rows(
        [
            {"system": name, "question": q, "answer": answer, "ranked": RANKED[name]}
            for name, sample in GIVEN.items()
            for q, answer in zip(QUESTIONS, sample, strict=True)
        ],
        workdir / "evaluate" / "questions.parquet",
    )
    return engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))


def compare(workdir, server, **changes) -> tuple[dict, list[dict], dict]:
    """judge.json, the verdicts, and the counts."""
    context, folder = answered(workdir, server.url, **changes), workdir / "judge"
    folder.mkdir(exist_ok=True)
    counts = judge_stage.judge_answers(context, folder, system="stage3")
    return (
        json.loads((folder / "judge.json").read_text()),
        pq.read_table(folder / "verdicts.parquet").to_pylist(),
        counts,
    )


def shown(messages: list[dict]) -> tuple[str, str]:
    return tuple(
        re.search(rf"^Answer {i}: <answer>(.*)</answer>$", messages[0]["content"], re.MULTILINE)[1]
        for i in (1, 2)
    )


def says(choice: str) -> str:
    return json.dumps({"reason": "so", **dict.fromkeys(judge.CRITERIA, choice)})


def by_length(messages: list[dict]) -> str:
    first, second = map(len, shown(messages))
    return says("1" if first < second else "2" if second < first else "tie")


def test_a_judge_that_prefers_short_answers_finds_them_in_both_orders(tmp_path):
    with llm_server.serving(by_length) as server:
        results, rows, counts = compare(tmp_path, server)
        asked = [
            (
                *shown(request.body["messages"]),
                request.body["temperature"],
                request.body["max_tokens"],
            )
            for request in server.requests
        ]
    [pair] = results.pop("pairs")
    assert results == {
        "judge": "toy",
        "repeats": 2,
        "temperature": 0.7,
        "verdicts": 20,
        "disqualified": {},
    }
    assert {name: pair[name] for name in ("system", "against", "questions", "same")} == {
        "system": "stage3",
        "against": "base",
        "questions": 6,
        "same": 1,
    }
    assert list(pair["criteria"]) == list(judge.CRITERIA)
    for tally in pair["criteria"].values():
        # short and salt win and the other three lose. The last question is a tie that no
        # judge sees.
        assert (
            tally["won"],
            tally["lost"],
            tally["tied"],
            tally["inconsistent"],
            tally["disqualified"],
        ) == (4, 6, 0, 0, 0)
        assert (
            tally["win_rate"]["mean"] == pytest.approx(2.5 / 6)
            and tally["by_repeat"] == [pytest.approx(2.5 / 6)] * 2
        )
        assert tally["position_bias"] == 0 and tally["agreement"] == 1 and tally["decided"] == 0.4
    different = [(a, b) for a, b in zip(GIVEN["stage3"], GIVEN["base"], strict=True) if a != b]
    assert sorted(asked) == sorted(
        (*order, 0.7, 512) for a, b in different for order in ((a, b), (b, a)) for _ in range(2)
    )
    assert [
        (r["first"], r["second"], r["question"], r["repeat"], r["overall"]) for r in rows[:4]
    ] == [
        ("stage3", "base", "q0", 0, "first"),
        ("stage3", "base", "q0", 1, "first"),
        ("base", "stage3", "q0", 0, "second"),
        ("base", "stage3", "q0", 1, "second"),
    ]
    assert counts["verdicts"] == counts["llm"]["requests"] == 20
    assert counts["llm"]["cost"] == pytest.approx(
        (counts["llm"]["input_tokens"] + 2 * counts["llm"]["output_tokens"]) / 1e6
    )
    assert counts["llm"]["cost"] > 0


def test_a_judge_that_prefers_the_first_place_is_detected(tmp_path):
    with llm_server.serving(lambda messages: says("1")) as server:
        results, rows, _ = compare(tmp_path, server)
    for tally in results["pairs"][0]["criteria"].values():
        assert (
            tally["position_bias"] == 1.0
            and tally["agreement"] == 0
            and tally["inconsistent"] == 10
        )
        assert (
            tally["win_rate"] == {"mean": 0.5, "low": 0.5, "high": 0.5} and tally["decided"] is None
        )
    assert {row["overall"] for row in rows} == {"first"}


def test_the_judge_sees_the_passages_of_both_systems_without_their_names(tmp_path):
    with llm_server.serving(by_length) as server:
        compare(tmp_path, server, repeats=1)
        text = next(
            r.prompt
            for r in server.requests
            if "What of q1?" in r.prompt and "Answer 1: <answer>1802</answer>" in r.prompt
        )
    # The prompt has what either system found among its first two, each once and in document order.
    # It names no system.
    assert re.findall(r"Passage \d", text) == ["Passage 0", "Passage 1", "Passage 2"]
    assert "right q1" in text and "Answer 2: <answer>in the year 1802</answer>\n" in text
    assert not re.search(r"stage|base", text)


def test_unreadable_verdicts_are_disqualified_after_one_correction(tmp_path):
    def judge_of_moods(messages: list[dict]) -> str:
        text = messages[0]["content"]
        if "q0" in text:
            return "The first one, I should say."
        return says("maybe") if "q1" in text and len(messages) < 3 else by_length(messages)

    refuse = lambda conversation, attempt: "refusal" if "q2" in conversation else None
    with llm_server.serving(judge_of_moods, refuse) as server:
        results, rows, counts = compare(tmp_path, server)
    lost = {row["question"]: row for row in rows if row["disqualified"]}
    assert sorted(lost) == ["q0", "q2"] and results["disqualified"] == counts["reasons"] == {
        "no reply": 4,
        "unreadable": 4,
    }
    assert (
        lost["q0"]["disqualified"] == "unreadable"
        and "I should say" in lost["q0"]["reply"]
        and lost["q0"]["overall"] == ""
    )
    assert lost["q2"]["disqualified"].startswith("no reply: refused")
    tally = results["pairs"][0]["criteria"]["overall"]
    assert (tally["disqualified"], tally["unjudged"], tally["won"], tally["lost"]) == (4, 2, 2, 4)
    assert tally["win_rate"]["mean"] == pytest.approx((0 + 1 + 0 + 0.5) / 4)
    assert counts["llm"]["asked_again"] == 8


def test_without_any_readable_verdict_there_is_no_win_rate(tmp_path):
    with llm_server.serving(lambda messages: "no") as server:
        results, _, _ = compare(tmp_path, server, against=("stage1",))
    tally = results["pairs"][0]["criteria"]["faithfulness"]
    assert tally["win_rate"] is None and tally["position_bias"] is None and tally["unjudged"] == 6
    assert tally["by_repeat"] == [None, None]


def test_repeated_judging_reuses_verdicts_and_gives_the_same_files(tmp_path):
    with llm_server.serving(by_length) as server:
        compare(tmp_path / "a", server, against=("base", "stage1"))
        requests = len(server.requests)
        first = [
            (tmp_path / "a" / "judge" / name).read_bytes()
            for name in ("judge.json", "verdicts.parquet")
        ]
        compare(tmp_path / "a", server, against=("base", "stage1"))
        assert len(server.requests) == requests == 2 * 2 * (5 + 6)
        assert first == [
            (tmp_path / "a" / "judge" / name).read_bytes()
            for name in ("judge.json", "verdicts.parquet")
        ]
        # A third repeat asks for no more than itself.
        results, _, _ = compare(tmp_path / "a", server, against=("base", "stage1"), repeats=3)
        assert len(server.requests) == 3 * 2 * (5 + 6)
        compare(tmp_path / "b", server, against=("base", "stage1"), repeats=3)
        assert json.loads((tmp_path / "b" / "judge" / "judge.json").read_text()) == results
    assert [pair["against"] for pair in results["pairs"]] == ["base", "stage1"]


def test_equal_answers_are_not_sent_to_the_judge(tmp_path):
    with llm_server.serving(by_length) as server:
        context = answered(tmp_path, server.url)
        rows = pq.read_table(tmp_path / "evaluate" / "questions.parquet").to_pylist()
        save_rows(
            [{**row, "answer": "one"} for row in rows], tmp_path / "evaluate" / "questions.parquet"
        )
        (tmp_path / "judge").mkdir()
        assert (
            judge_stage.judge_answers(context, tmp_path / "judge", system="stage3")["verdicts"]
            == 0
            == len(server.requests)
        )
    pair = json.loads((tmp_path / "judge" / "judge.json").read_text())["pairs"][0]
    assert pair["same"] == 6 and pair["criteria"]["overall"]["win_rate"]["mean"] == 0.5


def test_comparing_with_a_system_without_answers_is_refused(tmp_path):
    for other in ("bm25", "stage3"):
        with pytest.raises(
            ValueError,
            match=rf"judge.against: no system '{other}' .* stage3 with; there are base, stage1$",
        ):
            judge_stage.judge_calls(answered(tmp_path, "", against=(other,)), "stage3")


def test_the_judge_stage_is_added_only_on_request(tmp_path):
    c = answered(tmp_path, "http://x", repeats=0).config
    c.data.path = c.retriever.path = c.generator.path = str(tmp_path)
    names = lambda: [stage.name for stage in stages(c)]
    assert "judge" not in names()
    c.judge.repeats = 5
    assert names()[-5:] == ["evaluate", "choice", "judge", "export", "report"]


def test_a_plan_counts_the_calls_of_judge_and_reader(tmp_path):
    context = answered(tmp_path, "http://x", against=("base", "stage1"), price=(5.0, 7.0))
    c, world = context.config, tmp_path / "world"
    world.mkdir()
    c.generator.path = str(make_world(world) / "generator")
    c.evaluate.baselines, c.evaluate.hybrids = (), ()
    tokenizer = load_tokenizer(c.generator.path)
    words = lambda text: len(tokenizer(text)["input_ids"])
    [judged] = [x for x in shared_plan.answer_works(context, systems(c))[0] if x.kind == "ask"]
    # 2 orders, repeats, systems; 6 questions
    assert (judged.label, judged.stage, judged.total, judged.items) == ("judge", "judge", 48, 48)
    shown = words(prompts.load_template("judge"))
    assert shown < judged.read < shown + 2 * words(prompts.load_template("read")) + 200
    assert judged.written == shared_plan.VERDICT
    each = (5 * judged.read + 7 * judged.written) / 1e6
    assert judged.cost == pytest.approx(48 * each) and judged.waiting > 0
    c.judge.update({"repeats": 0})
    c.reader.update({"backend": "openai", "model": "nobody-knows"})
    [read] = shared_plan.answer_works(context, systems(c))[0]
    assert (read.label, read.model, read.items, read.written) == ("reading", "reader", 24, 32)
    assert read.cost is None


def test_a_judge_above_the_cost_limit_is_not_started(tmp_path):
    world = tmp_path / "world"
    world.mkdir()
    c = tiny_config(make_world(world))
    c.judge.repeats, c.llm.max_cost, c.judge.price = 5, 0.1, (100.0, 100.0)
    for verb in ("run", "judge"):
        with pytest.raises(
            ValueError, match=r"the [\d,]+ calls still to be made .* the \$0\.10 of llm\.max_cost"
        ):
            plan.check_cost(RECIPE, c, tmp_path / "nowhere", verb)
    plan.check_cost(RECIPE, c, tmp_path / "nowhere", "extract")
    c.judge.price, c.judge.model = (), "nobody-knows"
    with pytest.raises(
        ValueError, match=r"the price of 'nobody-knows' is unknown: .*--config\.judge\.price="
    ):
        plan.check_cost(RECIPE, c, tmp_path / "nowhere")
    c.judge.backend = "none"
    with pytest.raises(
        ValueError, match=r"config\.judge\.backend='none': must be openai, local or replay"
    ):
        stages(c)
