"""The two prompts whose ends a language model scores: the answer, and the question."""

from collections.abc import Mapping

from ark_jax.text import prompts

# A scored template -> the slot at its end, whose tokens the model scores.
TARGETS = {"forward": "answer", "backward": "question"}


def load_templates(paths: Mapping[str, str]) -> dict[str, str]:
    """The two scored templates; `paths` is `config.prompts`, or empty for the packaged ones."""
    return {
        name: prompts.load_template(name, paths.get(name, ""), target=target)
        for name, target in TARGETS.items()
    }


def scored_pairs(
    templates: Mapping[str, str], *, passage: str, question: str, answer: str
) -> list[tuple[str, str]]:
    """(prompt, target) of each template, in the order of TARGETS."""
    values = {"passage": passage, "question": question, "answer": answer}
    return [
        prompts.split_target(templates[name], target, **values) for name, target in TARGETS.items()
    ]
