"""What ARK's publication and released code ask of language models, and the graphs they build.

Sources: the paper's sections and listings; valleysprings/ARK at a5c127b, by file.
"""

import collections
import dataclasses
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from support import llm_server
from support.world import make_world, tiny_config

from ark_jax import config
from ark_jax.data.records import Chunk, Question
from ark_jax.data.spool import save_chunks
from ark_jax.estimate import plan
from ark_jax.evaluate import judge
from ark_jax.graph.extract import Entity, Relation, parse_reply
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.llm import endpoint, rule_based
from ark_jax.llm.pricing import PRICES
from ark_jax.pipeline import engine
from ark_jax.pipeline.tables import load_rows, read_table, save_rows
from ark_jax.recipes.ark import extract
from ark_jax.recipes.ark import graph as graph_stages
from ark_jax.recipes.ark.alignment import load_templates, scored_pairs
from ark_jax.recipes.ark.graph import find_communities
from ark_jax.recipes.ark.recipe import RECIPE, check_ark, stages
from ark_jax.recipes.core.ask import llm_settings
from ark_jax.recipes.documents import reader
from ark_jax.runtime.log import Metrics, read_rows
from ark_jax.schema import setting
from ark_jax.text import prompts

FACTS = ("entities", "relations")
STAGES = ("data", "candidates", "extract", "graph", "seeds", "communities", "rewrite")
EXTRACT, SEEDS = prompts.load_template("extract", "ark"), prompts.load_template("seeds")


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", "sk-of-the-sources")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoint, "BACKOFF", 0.02)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def model(messages: list[dict]) -> str:
    """Replies in the forms of the sources, by statistics and templates."""
    prompt = messages[0]["content"]
    if prompt.startswith(EXTRACT[:40]):
        passage = prompt.partition("Passage:\n")[2]
        frequency = collections.Counter(rule_based.candidate_terms(passage))
        return rule_based.extract_graph(passage, frequency)
    if prompt.startswith(SEEDS[:40]):
        return json.dumps([prompt.partition("Text: ")[2].upper()])
    given = json.loads(prompt.partition("Input:\n")[2])
    names = [entity["name"] for entity in given["entities"]]
    said = json.loads(rule_based.rewrite_question(given["original_question"], names, 10))
    return json.dumps({"confusing_questions": said["questions"]})


def context_of(world, workdir, **changes) -> engine.Context:
    """A run with the paper's graph, prompts and models."""
    c, paper = tiny_config(world), config.ark("paper")
    for section in ("graph", "prompts", "rewriter"):
        c[section].update(paper[section])
    c.data.chunk_tokens, c.llm.model, c.llm.key_env = 200, "gemini-2.5-flash", "ARK_TEST_KEY"
    c.graph.similarity = 0.9999  # to a random model all texts are alike
    c.llm.update(changes)
    return engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))


def run(context: engine.Context) -> dict[str, bytes]:
    """Runs the stages of the language models; their files' bytes by name."""
    for stage in STAGES:
        engine.run(stages(context.config), context, only=stage)
    return {
        path.relative_to(context.workdir).as_posix(): path.read_bytes()
        for stage in STAGES
        for path in sorted((context / stage).rglob("*.parquet"))
    }


@pytest.fixture(scope="module")
def sound(world, tmp_path_factory):
    """A run over HTTP without faults: its context, its files and its requests."""
    pytest.importorskip("openai", reason="needs the openai client: pip install 'ark-jax[llm]'")
    with pytest.MonkeyPatch.context() as patch, llm_server.serving(model) as server:
        patch.setenv("ARK_TEST_KEY", "sk-of-the-sources")
        context = context_of(
            world, tmp_path_factory.mktemp("sound"), backend="openai", base_url=server.url
        )
        return context, run(context), list(server.requests)


def test_one_model_extracts_and_another_rewrites(sound):
    # Section 4.2: Gemini-2.5-Flash for OpenIE, Gemini-2.5-Pro for the injected queries.
    context, _, requests = sound
    asked = {(request.body["model"], request.prompt[:40]) for request in requests}
    rewrite = prompts.load_template("rewrite", "ark")[:40]
    assert {name for name, _ in asked} == {"gemini-2.5-flash", "gemini-2.5-pro"}
    assert {start for name, start in asked if name == "gemini-2.5-pro"} == {rewrite}
    costs = collections.Counter()
    for row in read_rows(context.workdir / "llm" / "replies.jsonl"):
        usage, is_pro = row["reply"]["usage"], row["kind"] == "rewrite"
        prices = PRICES["gemini-2.5-pro" if is_pro else "gemini-2.5-flash"]
        tokens = usage["prompt_tokens"], usage["completion_tokens"]
        costs[row["kind"]] += sum(n * price for n, price in zip(tokens, prices, strict=True)) / 1e6
    stored = {
        stage: engine.read_manifest(context / folder)["counts"]["llm"]["cost"]
        for stage, folder in (("extract", "extract"), ("seeds", "seeds"), ("rewrite", "rewrite"))
    }
    assert stored == pytest.approx(dict(costs)) and all(stored.values())


def test_a_replay_of_both_models_gives_the_same_bytes(sound, world, tmp_path):
    context, files, _ = sound
    recording = str(context.workdir / "llm" / "replies.jsonl")
    replayed = context_of(world, tmp_path, backend="replay", replies=recording)
    assert run(replayed) == files and len(files) > 8
    for stage in ("extract", "seeds", "rewrite"):
        assert engine.read_manifest(replayed / stage)["counts"]["drifted_prompts"] == 0


def test_a_run_that_broke_off_among_the_seeds_ends_with_the_same_bytes(sound, world, tmp_path):
    _, files, requests = sound
    asked = [request.prompt for request in requests]
    last = max(prompt for prompt in asked if prompt.startswith(SEEDS[:40]))
    answer, broken = last.partition("Text: ")[2], True
    faults = lambda said, attempt: "401" if broken and f"Text: {answer}" in said else None
    with llm_server.serving(model, faults) as server:
        arguments = {"backend": "openai", "base_url": server.url, "concurrency": 1}
        with pytest.raises(RuntimeError, match="run the same command"):
            run(context_of(world, tmp_path, **arguments))
        assert 0 < len(server.requests) < len(asked)
        broken = False
        assert run(context_of(world, tmp_path, **arguments)) == files
        repeated = collections.Counter(request.prompt for request in server.requests)
    assert repeated - collections.Counter(asked) == {last: 1}


def test_each_context_has_a_graph_of_its_own(sound):
    # Section 3.1: "from the context"; src/kg/graph_builder.py: a graph of each distinct context.
    context, _, _ = sound
    graph = KnowledgeGraph.load(context / "graph")
    document = lambda chunk: chunk.partition("#")[0]
    of_node = [{document(chunk) for chunk in chunks} for chunks in graph.chunks]
    assert all(len(documents) == 1 for documents in of_node)
    for a, b in [*graph.edges.tolist(), *graph.similar.tolist()]:
        assert of_node[a] == of_node[b]
    facts = [read_table(context / "extract" / f"{name}.parquet") for name in FACTS]
    documents = sorted(set().union(*of_node))
    assert len(documents) == 2
    for name in documents:
        own = [
            table.filter(
                pa.array([document(chunk) == name for chunk in table["chunk"].to_pylist()])
            )
            for table in facts
        ]
        alone = KnowledgeGraph.from_tables(*own)
        nodes = [node for node, documents in enumerate(of_node) if documents == {name}]
        assert [graph.names[node] for node in nodes] == list(alone.names)
        ends = {(graph.names[a], graph.names[b]) for a, b in graph.edges if a in nodes}
        assert ends == {(alone.names[a], alone.names[b]) for a, b in alone.edges}
    # Some names are in both: with one graph for the corpus they would be one node.
    assert len(set(graph.names)) < len(graph)


def test_communities_come_from_the_contexts_of_their_questions(sound):
    context, _, _ = sound
    graph = KnowledgeGraph.load(context / "graph")
    questions = load_rows(context / "data" / "questions_train.parquet")
    documents = {row["id"]: set(row["documents"]) for row in questions}
    rows = load_rows(context / "communities" / "communities.parquet")
    assert "model" in {row["rule"] for row in rows} and len(rows) == 2 * len(questions)
    for row in rows:
        chunks = {chunk for node in row["nodes"] for chunk in graph.chunks[node]}
        assert row["nodes"] and {c.partition("#")[0] for c in chunks} <= documents[row["question"]]


def two_contexts(tmp_path, questions: list[Question]) -> engine.Context:
    """The Mill is in two documents, one of which has the Ford, too; a third has no entity."""
    names = {"a#0": ["Mill", "Ford"], "b#0": ["Mill"], "c#0": []}
    entities = [Entity(name, "place", "", chunk) for chunk in names for name in names[chunk]]
    relations = [Relation("Mill", "Ford", "", 1.0, "a#0")]
    tables = [
        pa.Table.from_pylist(list(map(dataclasses.asdict, rows))) for rows in (entities, relations)
    ]
    contexts = {chunk: chunk[0] for chunk in names}
    for stage in ("data", "candidates", "seeds", "communities"):
        (tmp_path / stage).mkdir()
    graph = KnowledgeGraph.from_tables(*tables, contexts=contexts)
    graph.with_similar(np.eye(len(graph)), 0.5, contexts=contexts).save(tmp_path / "graph")
    np.save(tmp_path / "graph" / "vectors.npy", np.eye(len(graph), dtype=np.float32))
    save_chunks([Chunk(id, id[0], 0, 1, 1, "Nothing.") for id in names], tmp_path / "data")
    save_rows(questions, tmp_path / "data" / "questions_train.parquet", Question)
    save_rows([], tmp_path / "candidates" / "candidates.parquet")
    seeds = [{"question": question.id, "names": ["MILL"]} for question in questions]
    save_rows(seeds, tmp_path / "seeds" / "seeds.parquet")
    return context_of(tmp_path, tmp_path)


def test_a_question_without_documents_takes_seeds_from_any_context(mesh, monkeypatch, tmp_path):
    asked = {"one": ("b",), "any": (), "both": ("a", "b"), "none": ("c",)}
    questions = [Question(id, "Where?", ("At the Mill",), names) for id, names in asked.items()]
    context = two_contexts(tmp_path, questions)
    monkeypatch.setattr(graph_stages, "_encode_one_vector", lambda *_: np.zeros((1, 3)))
    find_communities(context, tmp_path / "communities", by_model=True)
    rows = load_rows(tmp_path / "communities" / "communities.parquet")
    seeds = {row["question"]: (row["rule"], row["seeds"]) for row in rows}
    # The nodes are the Mill and the Ford of a, and the Mill of b.
    assert KnowledgeGraph.load(tmp_path / "graph").names == ["Mill", "Ford", "Mill"]
    assert seeds["one"] == ("model", [2]) and seeds["none"] == ("embedding", [])
    assert seeds["any"] == seeds["both"] == ("model", [0, 2])
    nodes = {row["question"]: row["nodes"] for row in rows if row["size"] == "large"}
    assert nodes["one"] == [2] and nodes["none"] == [] and sorted(nodes["any"]) == [0, 1, 2]


def test_a_graph_of_contexts_is_exported_with_different_names(tmp_path):
    context = two_contexts(tmp_path, [])
    graph = KnowledgeGraph.load(context / "graph")
    named = graph.to_networkx()
    assert set(named) == {"Mill [a#0]", "Ford", "Mill [b#0]"}
    graph.to_graphrag(tmp_path / "graphrag")
    titles = read_table(tmp_path / "graphrag" / "entities.parquet")["title"].to_pylist()
    assert titles == ["Mill [a#0]", "Ford", "Mill [b#0]"]


# --- prompts --------------------------------------------------------------------------------------

VARIANTS = {  # packaged variant -> the slots that it fills, in the order of its source
    "extract_ark": ("passage",),  # Listing 1
    "extract_ark_code": ("passage",),  # src/kg/prompts/entity_extraction.py
    "rewrite_ark": ("count", "input"),  # Listing 2
    "forward_ark": ("passage", "question", "answer"),  # Listing 3
    "backward_ark": ("passage", "answer", "question"),  # generate_pos.py:431
    "read_ark": ("passages", "question"),  # Listing 4; UltraDomain's in dataset_prompts.py
    "read_qasper": ("passages", "question"),  # LongBench, config/dataset2prompt.json
    "read_narrativeqa": ("passages", "question"),
    "read_multihop": ("passages", "question"),  # hotpotqa, 2wikimqa, musique
    "judge_ark": ("question", "references", "first", "second"),  # Listing 5
}


@pytest.mark.parametrize("name, slots", VARIANTS.items())
def test_prompts_of_the_sources_have_the_slots_of_their_callers(name, slots):
    role, _, variant = name.partition("_")
    text = prompts.load_template(role, variant)
    found = re.findall(r"\{(\w+)\}", text)
    assert tuple(dict.fromkeys(found)) == slots


def test_records_are_asked_for_and_read_in_the_form_of_the_listing():
    # Listing 1, and "##" and "<|COMPLETE|>" of src/kg/construction.py:239.
    for variant in ("ark", "ark_code"):
        asked = prompts.load_template("extract", variant)
        assert all(mark in asked for mark in ('("entity"<|>', '("relationship"<|>', "##"))
    reply = (
        '("entity"<|>THE MILL<|>place<|>It stood by a ford.)##\n'
        '("relationship"<|>THE MILL<|>THE FORD<|>One is by the other.<|>7)<|COMPLETE|>'
    )
    (entity,), (relation,), lost = parse_reply(reply, "c")
    assert (entity.name, entity.type, relation.weight, lost) == ("THE MILL", "place", 7.0, [])


def test_the_rewriter_gets_the_json_of_the_listing(sound):
    # Listing 2: original_question, answer, entities of name, type and descriptions.
    context, _, requests = sound
    calls = {call.turns[0]: call for call in extract.rewriting_calls(context)}
    shown = [request for request in requests if request.body["model"] == "gemini-2.5-pro"]
    assert len(shown) == len(calls)
    for request in shown:
        given = json.loads(request.prompt.partition("Input:\n")[2])
        assert list(given) == ["original_question", "answer", "entities"]
        assert given["original_question"] == calls[request.prompt].fields["question"]
        assert [x["name"] for x in given["entities"]] == calls[request.prompt].fields["names"]
        assert all(list(x) == ["name", "type", "descriptions"] for x in given["entities"])
        assert all(isinstance(x["descriptions"], list) for x in given["entities"])
    assert len({row["text"] for row in load_rows(context / "rewrite" / "rewritten.parquet")}) > 9


def test_the_scored_target_ends_the_alignment_prompts():
    # Listing 3; generate_pos.py:399-440.
    filled = scored_pairs(
        load_templates({"forward": "ark", "backward": "ark"}),
        passage="The Mill.",
        question="What stood there?",
        answer="A mill",
    )
    (forward, answer), (backward, question) = filled
    assert answer == "A mill" and question == "What stood there?"
    assert forward.endswith("Context: The Mill.\n\nQuestion: What stood there?\n\nAnswer: ")
    assert backward.endswith("Context: The Mill.\n\nAnswer: A mill\n\nQuestion: ")


def test_the_judge_disqualifies_and_replies_in_the_form_of_the_listing():
    # Listing 5: "Disqualification Rule (Primary Check)", and its output format.
    asked = judge.judge_prompt(
        prompts.load_template("judge", "ark"),
        question="Who?",
        references=["Ada"],
        passages=["unseen"],
        first="Ada",
        second="There is not enough information.",
    )
    rule, faithfulness = asked.index("disqualified"), asked.index("Faithfulness")
    assert asked.index("Ground truth: Ada") < rule and "unseen" not in asked
    assert rule < asked.index("- Faithfulness") < asked.index("- Conciseness") and faithfulness
    winner = lambda name: {"Winner": name, "Explanation": "So."}
    reply = {"Faithfulness": winner("Answer 1"), "Conciseness": winner("None")}
    verdicts = judge.parse_verdicts(json.dumps(reply | {"Overall Winner": winner("Tie")}))
    assert verdicts == {"faithfulness": "first", "conciseness": "tie", "overall": "tie"}


@pytest.mark.parametrize(
    "reply, names",
    [('```json\n["THE MILL", "1802"]\n```', ["THE MILL", "1802"]), ("[]", []), ("None.", [])],
)
def test_entities_of_an_answer_are_read_from_a_json_list(reply, names):
    # src/community/extraction.py: the reply is a JSON list.
    assert extract.parse_questions(reply) == names
    assert bool(extract._seeds_remark(None, [reply], False)) == (reply == "None.")


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset, tokens", [("paper", 128), ("official", 512)])
def test_published_readers_continue_a_text_and_are_not_cut_at_a_line_break(
    preset, tokens, mesh, tmp_path
):
    # LongBench, config/dataset2maxlen.json: 128 at most for QA; llm.yaml:63-69: 512, T = .1.
    c = config.ark(preset)
    assert c.evaluate.max_new_tokens == tokens
    assert c.reader.temperature == (0.1 if preset == "official" else 0)
    form = reader.reading_prompt(c)
    assert (form.chat, form.stop) == (False, ()) and form.template.endswith("\n\nAnswer:")
    prompt = form.fill("Who?", form.join(["One.", "Two."]))
    assert "Context: One.\n\nTwo.\n\nQuestion: Who?" in prompt
    with llm_server.serving(lambda messages: "Ada,\nand Ida.\n") as server:
        c.reader.update(backend="openai", base_url=server.url, key_env="ARK_TEST_KEY")
        context = engine.Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
        replies, _ = reader.answer_prompts(context, [prompt], form)
        c.reader.form = "chat"
        first_lines, _ = reader.answer_prompts(context, [prompt], reader.reading_prompt(c))
        assert server.requests[0].body["max_tokens"] == tokens
    assert (replies, first_lines) == ({prompt: "Ada,\nand Ida."}, {prompt: "Ada,"})


# --- settings -------------------------------------------------------------------------------------


def test_what_a_rewriter_leaves_empty_is_that_of_the_extracting_model():
    c = config.ark()
    c.llm.update(backend="openai", model="small", base_url="http://h/v1", price=(1.0, 2.0))
    c.llm.temperature = 0.2
    assert llm_settings(c, "rewriter") == llm_settings(c, "llm")
    c.rewriter.update(model="large", temperature=0.7)
    mixed = llm_settings(c, "rewriter")
    assert (mixed.model, mixed.base_url, mixed.temperature) == ("large", "http://h/v1", 0.7)
    assert mixed.price == ()  # the table knows it, or nobody does
    c.rewriter.update(backend="openai", base_url="http://other/v1", price=(3.0, 4.0))
    other = llm_settings(c, "rewriter")
    assert (other.base_url, other.price, other.max_tokens) == ("http://other/v1", (3.0, 4.0), 4096)
    c.llm.backend = "none"  # rules extract, and a model rewrites
    assert llm_settings(c, "rewriter").backend == "openai"


@pytest.mark.parametrize("field, value", [("base_url", "http://h/v1"), ("path", "folder")])
def test_an_address_of_a_rewriter_that_nothing_reads_is_refused(field, value):
    c = config.ark()
    c.rewriter[field] = value
    with pytest.raises(ValueError, match=rf"^config\.rewriter\.{field}=.*set config\.rewriter\.b"):
        check_ark(c)


def test_a_rewriter_behind_its_own_address_needs_a_model():
    c = config.ark()
    c.rewriter.backend = "openai"
    with pytest.raises(ValueError, match=r"^config\.rewriter\.model is empty: name"):
        check_ark(c)


def test_a_plan_counts_and_prices_the_calls_of_both_models(world, mesh, tmp_path):
    c = context_of(world, tmp_path, backend="openai").config
    planned = plan.estimate(RECIPE, c)
    calls = {x.label: x for x in planned.calls}
    questions = planned.inputs["training questions"]
    assert (calls["seeds"].total, calls["rewrite"].total) == (questions, 2 * questions)
    models = {label: x.settings.model for label, x in calls.items()}
    flash, pro = "gemini-2.5-flash", "gemini-2.5-pro"
    assert models == {"extract": flash, "seeds": flash, "rewrite": pro}
    assert calls["rewrite"].price == PRICES[pro] and calls["seeds"].price == PRICES[flash]
    c.llm.backend, c.graph.rules = "none", True
    assert not plan.estimate(RECIPE, c).calls
    c.rewriter.update(backend="openai", model="unheard-of")
    c.llm.max_cost = 1.0
    with pytest.raises(ValueError, match=r"--config\.rewriter\.price"):
        plan.check_cost(RECIPE, c, None)


ROWS = {  # field -> (paper, official); each with its source
    "graph.per": ("context", "context"),  # section 3.1; generate_kg_openai.sh
    "graph.seeds": ("model", "model"),  # section 3.2.2; generate_neg.py:261
    "prompts.extract": ("ark", "ark_code"),  # Listing 1; prompts/entity_extraction.py
    "prompts.rewrite": ("ark", "ark"),  # Listing 2; prompts/query_gen.py
    "prompts.forward": ("ark", "ark"),  # Listing 3; generate_pos.py:399
    "prompts.backward": ("ark", "ark"),  # not printed; generate_pos.py:431
    "prompts.read": ("ark", "ark"),  # Listing 4; dataset_prompts.py
    "prompts.judge": ("ark", "ark"),  # Listing 5; run_pairwise_eval.py
    "llm.model": ("gemini-2.5-flash", "gemini-2.5-flash"),  # section 4.2; llm.yaml
    "rewriter.model": ("gemini-2.5-pro", ""),  # section 4.2; alignment.yaml: the same model
    "rewriter.temperature": (-1.0, 0.7),  # silent; alignment.yaml:56
    "judge.model": ("gpt-4.1", "gpt-4.1"),  # section 4.2; run_pairwise_eval.py prints it
    "reader.form": ("text", "text"),  # Listing 4; llm.yaml:63, no chat template
}


@pytest.mark.parametrize("field", ROWS)
def test_presets_hold_the_values_of_their_sources(field):
    assert tuple(setting(config.ark(name), field) for name in ("paper", "official")) == ROWS[field]
