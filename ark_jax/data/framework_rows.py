"""Rows as other frameworks and data sets write them, as rows of ours: LangChain, TriviaQA, ..."""

import itertools
from collections.abc import Mapping

from ark_jax.data.records import with_title
from ark_jax.data.rows import InputRow

_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
# Fields of data sets that are not read.
_UNREAD = ("metadata", "EntityPages", "SearchResults", "entity_pages", "search_results", "s_pop")
# A field that tells whose row it is -> our names -> what that framework calls the fields.
_NAMES = {
    "page_content": {"text": "page_content"},
    "kwargs": {"text": "kwargs.page_content"},
    "doc_id": {"id": "doc_id", "text": "contents"},
    "contents": {"text": "contents"},
    "golden_answers": {"answers": "golden_answers"},
    "possible_answers": {"answers": "possible_answers"},
    "QuestionId": {"id": "QuestionId", "question": "Question", "answers": "Answer"},
    "question_id": {"id": "question_id", "answers": "answer"},
    "retrieval_gt": {
        "id": "qid",
        "question": "query",
        "documents": "retrieval_gt",
        "answers": "generation_gt",
    },
    "positive_passages": {"pos": "positive_passages", "neg": "negative_passages"},
    "instruction": {"question": "instruction", "answer": "output"},
}


def plain_row(row: InputRow) -> InputRow:
    """A row with the names of our fields; a row that no framework has is returned as it is."""
    values = _plain_values(row.values)
    if values is None:
        return row
    known = {name: value for name, value in values.items() if value is not None}
    names = next((names for name, names in _NAMES.items() if name in row.values), None)
    plain = row.with_values(known, names)
    if "question" in known and "question" not in plain.names:
        for name in _UNREAD:
            if row.values.get(name):
                plain.remark_unread(name, "is not read; question and answers are")
    if chat := _turns(row.values):
        turns = len([role for role, _ in chat if role == "user"]) - 1
        if turns:
            plain.add_remark("messages", f"{turns} further turns", "they are passed over")
    return plain


def _plain_values(values: Mapping[str, object]) -> dict[str, object] | None:
    """The fields of a row by our names; None for a row of ours."""
    if "page_content" in values:
        return _langchain(values)
    if "lc" in values and isinstance(values.get("kwargs"), dict):  # as `langchain_core.load.dumps`
        return _langchain(values["kwargs"])
    if {"doc_id", "contents"} <= values.keys():  # AutoRAG's corpus
        known = {"id": values["doc_id"], "text": values["contents"]}
        return known | {"metadata": values.get("metadata")}
    if "contents" in values and "question" not in values:  # Search-R1's and FlashRAG's corpus
        return {"id": _text_id(values.get("id")), **_contents(values["contents"])}
    for name in ("golden_answers", "possible_answers"):  # FlashRAG's and PopQA's
        if name in values and "question" in values:
            return {**values, "id": _text_id(values.get("id")), "answers": values[name]}
    for question, id, answer in (
        ("Question", "QuestionId", "Answer"),
        ("question", "question_id", "answer"),
    ):
        if question in values and isinstance(values.get(answer), dict):
            # Normalised aliases are the same words.
            lowered = {name.lower(): value for name, value in values[answer].items()}
            value, aliases = lowered.get("value"), _flat([lowered.get("aliases", [])])
            answers = [value, *(alias for alias in aliases if alias != value)]
            return {"id": values.get(id), "question": values[question], "answers": answers}
    if {"query", "retrieval_gt"} <= values.keys():  # AutoRAG's questions
        return {
            "id": values.get("qid"),
            "question": values["query"],
            "documents": _flat(values["retrieval_gt"]),
            "answers": _flat(values.get("generation_gt")),
        }
    if {"query", "reference_answer"} <= values.keys():  # LlamaIndex's LabelledRagDataset
        return {
            "user_input": values["query"],
            "reference": values["reference_answer"],
            "reference_contexts": values.get("reference_contexts"),
        }
    if {"query", "positive_passages"} <= values.keys():  # tevatron's
        return {
            "id": values.get("query_id"),
            "query": values["query"],
            "pos": _passages(values["positive_passages"]),
            "neg": _passages(values.get("negative_passages")),
        }
    if _is_alpaca(values):
        return _instruction(values)
    if _turns(values):
        return _chat(values)
    return None


def _langchain(values: Mapping[str, object]) -> dict[str, object]:
    """A document; a chunk of `metadata.source` if `add_start_index` has told where it starts."""
    metadata = values.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    title, source = metadata.get("title"), metadata.get("source")
    plain = {
        "id": values.get("id"),
        "title": title if isinstance(title, str) else None,
        "text": values.get("page_content"),
        "metadata": metadata,
    }
    start = metadata.get("start_index")
    if isinstance(source, str) and isinstance(start, int) and start >= 0:
        plain |= {"document": source, "start": start, "id": plain["id"] or f"{source}:{start}"}
    return plain


def _text_id(id: object) -> object:
    """An id, which may be written as a number, as a string."""
    return str(id) if isinstance(id, int) else id


def _contents(contents: object) -> dict[str, object]:
    """Title and text of a passage of Search-R1: the first line is the title, in quotes."""
    if not isinstance(contents, str) or "\n" not in contents:
        return {"text": contents}
    title, _, text = contents.partition("\n")
    return {"title": title.strip().strip('"'), "text": text}


def _is_alpaca(values: Mapping[str, object]) -> bool:
    """Whether a row is an instruction and what a model should write, without a context."""
    others = {"question", "context", "contexts", "answers", "documents", "paragraphs"}
    is_text = isinstance(values.get("input") or "", str)
    return {"instruction", "output"} <= values.keys() and is_text and not others & values.keys()


def _instruction(values: Mapping[str, object]) -> dict[str, object]:
    """A question of an instruction and its input; `text`, the prompt, shows a second reading."""
    instruction, context = values["instruction"], values.get("input") or ""
    has_both = isinstance(instruction, str) and context.strip()
    question = f"{instruction}\n{context}" if has_both else instruction
    plain = {name: values.get(name) for name in ("id", "group", "text")}
    return {**plain, "question": question, "answer": values["output"]}


def _passages(items: object) -> object:
    """The texts of passages, each below its title; anything but objects as it is."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return items
    pairs = [(item.get("title"), item.get("text")) for item in items]
    return [with_title(title, text) if title and text else text for title, text in pairs]


def _flat(items: object) -> object:
    """A list of strings or of lists of them as one list; anything else as it is."""
    if not isinstance(items, list):
        return items
    return list(itertools.chain.from_iterable(x if isinstance(x, list) else [x] for x in items))


def _turns(values: Mapping[str, object]) -> list[tuple[str, object]]:
    """Who said what in a chat, as OpenAI (`messages`) or ShareGPT (`conversations`) has it."""
    messages = values.get("messages", values.get("conversations"))
    if "question" in values or not (isinstance(messages, list) and messages):
        return []
    if not all(isinstance(message, dict) for message in messages):
        return []
    return [
        (
            _ROLES.get(str(message.get("role", message.get("from"))), ""),
            _said(message.get("content", message.get("value"))),
        )
        for message in messages
    ]


def _said(content: object) -> object:
    """The text of a message, whose content may be a list of parts."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _chat(values: Mapping[str, object]) -> dict[str, object]:
    """The first question of a chat and the reply to it."""
    turns = _turns(values)
    place = next((i for i, (role, _) in enumerate(turns) if role == "user"), len(turns))
    replies = [text for role, text in turns[place + 1 :][:1] if role == "assistant"]
    question = turns[place][1] if place < len(turns) else None
    return {"id": values.get("id"), "question": question or "", "answers": replies}
