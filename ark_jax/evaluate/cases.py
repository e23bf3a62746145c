"""What the report shows one by one: a community, training examples, questions won and lost, answers."""

from collections.abc import Mapping, Sequence

from ark_jax.evaluate import figures
from ark_jax.evaluate.page import box, escape, marked, none, number, passage, references, span, table

MARKS = (('<path class="seed" d="M10 1L19 10L10 19L1 10Z"/>', "seed: found from the answer"),
         ('<circle class="small" cx="10" cy="10" r="7"/>', "small community"),
         ('<circle class="large" cx="10" cy="10" r="7"/>', "large community only"),
         ('<path class="relation" d="M0 10L20 10"/>', "relation"),
         ('<path class="similar" d="M0 10L20 10"/>', "similar names or descriptions"))


def community(data: Mapping) -> str:
    """One question's community as a drawing and as a table."""
    c = data["community"]
    if not c or not c["nodes"]:
        return none("No knowledge-graph community was recorded for drawing.")
    key = "".join(f'<li><svg viewBox="0 0 20 20" aria-hidden="true">{mark}</svg>{meaning}</li>'
                  for mark, meaning in MARKS)
    drawing = figures.graph("graph", f"Community around {c['answer']}", c["nodes"], c["edges"])
    rows = [[escape(n["name"]), escape(n["type"]), figures.membership(n), number(n["rank"], 5)]
            for n in sorted(c["nodes"], key=lambda n: -n["rank"])]
    listed = table("Entities by rank", ["entity", "type", "community", "#PageRank"], rows, "entities")
    return ("<p>What stands near the answer in the knowledge graph. The larger a mark, the higher its "
            "personalised PageRank. Rewritten questions draw on these entities. Names that find no room "
            "are in the table below.</p>"
            f'<p class="question" dir="auto">{escape(c["question"])}</p>{references([c["answer"]])}'
            f'<figure class="wide"><figcaption><ul class="key">{key}</ul></figcaption>'
            f'{box("Graph of the community", drawing)}</figure>'
            f'<details class="note"><summary>All {len(rows)} entities as a table</summary>{listed}</details>')


def scored(caption: str, rows: Sequence[Mapping], answers: Sequence[str]) -> str:
    """Passages with the scores they were chosen by."""
    scores = ("forward", "backward", "retriever", "score")
    body = [[f"<code>{escape(row['chunk'])}</code>", passage(row["text"], answers),
             *(number(row[score]) for score in scores)] for row in rows]
    return table(caption, ["chunk", "passage", *("#" + score for score in scores)], body, "passages")


def example(e: Mapping, shown: bool) -> str:
    """One question with its rewrites, positives and hard negatives; folded unless `shown`."""
    rewrites = ""
    for size, texts in e["rewritten"].items():
        items = "".join(f'<li dir="auto">{escape(text)}</li>' for text in texts)
        rewrites += (f"<div><h4>Rewritten with the {escape(size)} community</h4>"
                     + (f"<ol>{items}</ol>" if texts else none("No rewrite was accepted.")) + "</div>")
    passages = (scored("Positives", e["positives"], e["answers"]) if e["positives"]
                else none("No positives were chosen."))
    for stage, rows in e["negatives"].items():
        passages += (scored(f"Hard negatives of {stage}", rows, e["answers"]) if rows
                     else none(f"No hard negatives were mined for {stage}."))
    return (f'<details class="card"{" open" if shown else ""}>'
            f'<summary><h3 dir="auto">{escape(e["question"])}</h3></summary>'
            f'{references(e["answers"])}<div class="two">{rewrites}</div>{passages}</details>')


def examples(data: Mapping) -> str:
    """What training saw, question by question; the first is unfolded."""
    if not data["examples"]:
        return none("No example questions were recorded.")
    return ("<p>What training saw: the question, its rewrites, the passages chosen as positives and the hard "
            "negatives mined with the rewrites. Forward scores the answer given passage and question, "
            "backward the question given passage and answer, retriever is the cosine. Reference answers are "
            "<mark>marked</mark>.</p>" + "".join(example(e, i == 0) for i, e in enumerate(data["examples"])))


def moved(m: Mapping, shown: bool) -> str:
    """One question whose first gold passage rose or fell, what stood first before and after, and what was answered."""
    ranks = " → ".join("beyond the list" if r is None else f"{r:,}" for r in (m["before"], m["after"]))
    sides = ""
    for system, first in m["first"].items():
        text = (none("No passage was found.") if first is None else '<p class="text">the gold passage</p>'
                if first["text"] == m["passage"] else passage(first["text"], m["answers"]))
        sides += (f"<div><h4>{escape(system)} puts first</h4>{text}"
                  + (f'<p class="given">and answers: {span(marked(m["given"][system], m["answers"]))}</p>'
                     if m["given"].get(system) else "") + "</div>")
    return (f'<details class="card"{" open" if shown else ""}><summary><h3 dir="auto">{escape(m["question"])}</h3> '
            f'<span class="ranks">rank {ranks}</span></summary>{references(m["answers"])}'
            f'<h4>Gold passage</h4>{passage(m["passage"], m["answers"])}<div class="two">{sides}</div></details>')


def moves(data: Mapping) -> str:
    """Questions whose first gold passage rose or fell between base and the last stage; the first of each is unfolded."""
    tally = ", ".join(f"{n:,} {what}" for what, n in data["tally"].items())
    out = (f"<p>Rank of the first gold passage, base → last stage. Of all held-out questions: {escape(tally)}. The largest "
           "moves:</p>" if tally else "")
    for key, head, way in (("wins", "Gains", "rose"), ("losses", "Losses", "fell")):
        out += f"<h3>{head}</h3>" + ("".join(moved(m, i == 0) for i, m in enumerate(data[key]))
                                     or none(f"No question is listed whose first gold passage {way}."))
    return out


def answers(data: Mapping) -> str:
    """Read answers of several systems beside the reference."""
    if not data["answers"]:
        return none("No answers were read in this run.")
    systems = list(dict.fromkeys(system for row in data["answers"] for system in row["given"]))
    rows = []
    for row in data["answers"]:
        given = [row["given"].get(system) for system in systems]
        rows.append([span(escape(row["question"])), references(row["answers"]),
                     *("–" if text is None else span(marked(text, row["answers"])) for text in given)])
    return ("<p>What the generator answers from the passages that each system retrieves. Reference answers "
            "are <mark>marked</mark>.</p>"
            + table("Answers by system", ["question", "reference", *systems], rows, "read"))
