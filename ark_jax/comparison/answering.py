"""The answers of a language model to the questions of a test set, for each system, and a judge's
verdicts on them."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from ark_jax.comparison.questions import Task
from ark_jax.comparison.rankings import ALONE, DOCUMENT, ORACLE, STEPS, UNRANKED, System
from ark_jax.data.records import Question
from ark_jax.evaluate import judge
from ark_jax.evaluate.answers import LIKELIHOOD, needs_replies
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.index.reader import parse_answer
from ark_jax.index.writer import MAX_NEW_TOKENS, Writer
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.recipes.documents.corpus import Passages
from ark_jax.recipes.documents.reader import fit_all
from ark_jax.recipes.documents.reader_training import answer_likelihoods
from ark_jax.text import prompts

ANSWER_TOKENS = 32  # of a local reader without tags
JUDGED = {f"judge_{criterion}": criterion for criterion in judge.CRITERIA}  # metric -> criterion
Columns = dict[str, list]  # system -> a value for each question; None for one without a reference
Values = dict[str, dict[str, list]]  # metric -> its columns


@dataclasses.dataclass(frozen=True)
class Answering:
    """Who answers and who judges.

    Attributes:
        reader: answers from passages. None: nobody does.
        passages: how many of each ranking it reads.
        judge: compares the answers of each system with those of the reference. None: nobody does.
    """

    reader: Writer | None = None
    passages: int = 5
    judge: Writer | None = None

    @functools.cached_property
    def form(self) -> ReadingPrompt:
        """The form in which the reader reads passages: that of its training, or the plain one."""
        lm = self.reader.lm
        trained = ReadingPrompt.read(lm.folder) if lm else None
        return trained or ReadingPrompt(prompts.load_template("read"))

    def form_for(self, system: System) -> ReadingPrompt:
        """The form of the reader's prompts for a system."""
        if system.name == ALONE:
            return ReadingPrompt(prompts.load_template("alone"))
        if system.name == STEPS:
            return ReadingPrompt(prompts.load_template("steps"), cite=True)
        return self.form


@dataclasses.dataclass(frozen=True)
class Answered:
    """What systems answer.

    Attributes:
        answers: "" where there is no answer.
        passages: system -> what each question's answer rests on.
        values: of metrics that do not follow from the answers alone.
        remarks: sentences.
    """

    answers: Columns
    passages: Mapping[str, Sequence[Sequence[str]]]
    values: Values
    remarks: list[str]


def read_answers(
    answering: Answering,
    systems: Sequence[System],
    questions: Sequence[Question],
    task: Task | None,
    rankings: Mapping[str, Sequence[Sequence[str]]],
    metrics: Sequence[str],
) -> Answered:
    """The reader's answers to questions with references, from what each system gives it.

    Args:
        systems: those that rank, and `UNRANKED` ones.
        task: None if no system reads passages.
        rankings: system -> chunk ids of each question.
        metrics: of answers.
    """
    asked, shown, remarks = [x for x in questions if x.answers], {}, []
    answers: Columns = {}
    likelihoods: Columns = {}
    for form, group in _by_form(answering, systems):
        filled = {}
        for system in group:
            ranked = rankings[system.name]
            passages = _passages(system, questions, task, ranked, answering.passages)
            shown[system.name] = passages
            texts = dict(zip((x.id for x in questions), map(form.join, passages), strict=True))
            prompts_of_system, remark = _prompts(answering.reader, form, system, asked, texts)
            filled |= prompts_of_system
            remarks.append(remark)
        if needs_replies(metrics):
            replies, refused = answering.reader.ask(
                filled.values(), "read", form=form, max_new_tokens=_tokens(form)
            )
            parse = lambda x, form=form, replies=replies: (
                parse_answer(form, replies[x][-1], ()).text if x in replies else ""
            )
            answers |= _columns(group, questions, {key: parse(x) for key, x in filled.items()})
            if refused:
                reason = next(iter(refused.values()))
                remarks.append(f"{len(refused):,} prompts are refused, and count 0: {reason}")
        if LIKELIHOOD in metrics and group[0].name != STEPS:
            values = _likelihoods(answering.reader, form, filled, asked)
            likelihoods |= _columns(group, questions, values)
    values = {LIKELIHOOD: likelihoods} if likelihoods else {}
    return Answered(answers, shown, values, [_about(answering, systems), *filter(None, remarks)])


def _by_form(
    answering: Answering, systems: Sequence[System]
) -> Iterator[tuple[ReadingPrompt, list[System]]]:
    form = lambda system: dataclasses.astuple(answering.form_for(system))
    for key, group in itertools.groupby(sorted(systems, key=form), form):
        yield ReadingPrompt(*key), list(group)


def _passages(
    system: System,
    questions: Sequence[Question],
    task: Task | None,
    rankings: Sequence[Sequence[str]],
    count: int,
) -> list[list[str]]:
    """What the reader reads for each question.

    For `ORACLE` a passage for each that the question needs, for `DOCUMENT` its whole documents.
    """
    if task is None or system.name in (ALONE, STEPS):
        return [[]] * len(questions)
    if system.name == DOCUMENT:
        return [[task.texts.get(id, "") for id in question.documents] for question in questions]
    if system.name == ORACLE:
        needed = map(task.gold.__getitem__, (question.id for question in questions))
        rankings = [
            [id for id, grade in gold.items() if grade > 0]
            if isinstance(gold, Mapping)
            else list(dict.fromkeys(holders[0] for holders in gold if holders))
            for gold in needed
        ]
    else:
        rankings = [ids[:count] for ids in rankings]
    texts = Passages(task.index.chunks)
    return [[texts[id] for id in ids if id in texts] for ids in rankings]


def _prompts(
    reader: Writer,
    form: ReadingPrompt,
    system: System,
    questions: Sequence[Question],
    texts: Mapping[str, str],
) -> tuple[dict[tuple[str, str], str], str]:
    """(system, question) -> its prompt, and a remark on texts that are cut, or ""."""
    fitting, cut = {(system.name, x.id): texts[x.id] for x in questions}, 0
    if reader.lm:  # an endpoint refuses a prompt that is too long
        fitting, cut = fit_all(reader.lm, form, list(questions), fitting, _tokens(form))
    filled = {
        (system.name, x.id): form.fill(x.question, fitting[system.name, x.id]) for x in questions
    }
    blank = sum(not texts[x.id] for x in questions) if system.name in (ORACLE, DOCUMENT) else 0
    cuts = f"what is read for {cut:,} of {len(questions):,} questions is cut to what fits"
    counts = {cuts: cut, f"{blank:,} questions have none, and are answered without": blank}
    message = "; ".join(text for text, count in counts.items() if count)
    return filled, message and f"{system.name}: {message}"


def _tokens(form: ReadingPrompt) -> int:
    return MAX_NEW_TOKENS if form.cite else ANSWER_TOKENS


def _columns(
    systems: Sequence[System],
    questions: Sequence[Question],
    values: Mapping[tuple[str, str], object],
) -> Columns:
    return {x.name: [values.get((x.name, q.id)) for q in questions] for x in systems}


def _likelihoods(
    reader: Writer,
    form: ReadingPrompt,
    filled: Mapping[tuple[str, str], str],
    questions: Sequence[Question],
) -> dict[tuple[str, str], float]:
    """(system, question) -> `answer_likelihood`; kept beside the replies."""
    names = list(dict.fromkeys(name for name, _ in filled))
    numbered = {(str(names.index(name)), id): prompt for (name, id), prompt in filled.items()}
    references = {question.id: question.answers for question in questions}
    inputs = [
        reader.settings.model,
        dataclasses.astuple(form),
        sorted(numbered.items()),
        references,
    ]
    folder = reader.cache.parent / "likelihoods" / fingerprint(inputs)[:16]
    folder.mkdir(parents=True, exist_ok=True)
    values = answer_likelihoods(reader.lm, form, numbered, questions, folder, 0)
    return {(names[int(number)], id): value for (number, id), value in values.items()}


def _about(answering: Answering, systems: Sequence[System]) -> str:
    """A sentence on what the reader reads."""
    ranks = any(system.name not in UNRANKED for system in systems)
    read = f" from the first {answering.passages} passages" if ranks else ""
    return f"{answering.reader.name} answers{read}"


def judge_answers(
    writer: Writer, answered: Answered, questions: Sequence[Question], reference: str
) -> tuple[Values, str]:
    """The metrics of `JUDGED`, and a remark.

    A value is what a system's answer is worth against that of the reference: 1 won, 0 lost; half
    for equal answers, ties, and pairs whose verdicts differ by order or cannot be read. The judge
    sees the passages of both, in the order of the alphabet.

    Args:
        reference: a system that answers.
    """
    template = prompts.load_template("judge")
    shown = lambda name, i: answered.passages[name][i] if name in answered.passages else []
    calls = {}  # (system, number of the question) -> its prompts, in both orders
    for name, (i, question) in itertools.product(answered.answers, enumerate(questions)):
        pair = [answered.answers[system][i] for system in (name, reference)]
        if question.answers and pair[0] != pair[1]:
            fill = functools.partial(
                judge.judge_prompt,
                template,
                question=question.question,
                references=question.answers,
                passages=sorted({*shown(name, i), *shown(reference, i)}),
            )
            calls[name, i] = [fill(first=a, second=b) for a, b in (pair, pair[::-1])]
    accept = lambda texts: judge.missing_verdicts_remark(judge.parse_verdicts(*texts))
    replies, _ = writer.ask(itertools.chain(*calls.values()), "judge", accept=accept)
    verdicts = {
        x: judge.parse_verdicts(*replies.get(x, ())) for pair in calls.values() for x in pair
    }

    def worth(name: str, i: int, criterion: str) -> float | None:
        """What an answer is worth; None without a reference."""
        if not questions[i].answers:
            return None
        pair = [verdicts[x].get(criterion, "") for x in calls.get((name, i), ())]
        return judge.WORTH.get(judge.outcome(*pair), 0.5) if pair else 0.5

    values = {
        metric: {
            name: [worth(name, i, criterion) for i in range(len(questions))]
            for name in answered.answers
        }
        for metric, criterion in JUDGED.items()
    }
    unread = sum(not verdicts[x].keys() >= {*judge.CRITERIA} for x in verdicts)
    remark = (
        f"{writer.name} judges answers against those of {reference}, each pair in both orders: 1 "
        f"is won, .5 as good; of {len(verdicts):,} verdicts {unread:,} cannot be read"
    )
    return values, remark
