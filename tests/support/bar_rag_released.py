"""Writes golden/bar_rag_released.json: what BAR-RAG's released reward functions make of replies.

python tests/support/bar_rag_released.py CHECKOUT, of GasolSun36/BAR-RAG at 02c7b59.
"""

import importlib.util
import itertools
import json
import os
import sys
import types
from pathlib import Path

REFERENCES = ["Bob Saget", "Robert Saget"]
THOUGHTS = [
    None,
    "",
    "Doc [1] names the narrator.",
    "Doc [1] names him, and Doc [4] his voice.",
    "By doc[2],  DOC [ 3 ] and Doc [2].",
    "Doc [1], Doc [2] and Doc [3] agree with Doc [5].",
    "Doc [0], Doc [9] and [2] say so.",
    "Docs [1] and Doc 2 do; Doc [1, 3] does not.",
]
ANSWERS = [
    None,
    "Bob Saget",
    " bob saget. ",
    "The Bob\nSaget",
    "Saget",
    "It is Bob Saget, who narrates",
    "Robert Saget",
    "Ted Mosby",
    "the",
]
OTHERS = [
    "",
    "Bob Saget",
    "<answer>Bob Saget",
    "Bob Saget</answer>",
    "<think>Doc [1] and Doc [2]<answer>Bob Saget</answer>",
    "<answer></answer>",
    "<think>Doc [1], Doc [2]</think><answer> </answer>",
    "<answer>Ted</answer><answer>Bob Saget</answer>",
    "Sure! <answer>Bob Saget</answer> Anything else?",
]
CHOICES = [
    "[3], [5]",
    "[3],[5] , [1]",
    "[3], [3]",
    "3, 5",
    "[3] and [5]",
    "[9], [2]",
    "[9], [12]",
    "[0], [1]",
    "Doc [2], Doc [1]",
    "[2], [9], [9]",
    "none",
    "",
    " [4] ",
    "[1], [2], [3], [4], [5], [6], [7]",
]


def load(file: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def main(checkout: str) -> None:
    os.environ |= {"REWARD_DEBUG_ENABLE": "0"}
    sys.modules.setdefault("aiohttp", types.ModuleType("aiohttp"))  # only its server needs it
    folder = Path(checkout) / "verl/utils/reward_score"
    generator, selector = load(folder / "generator.py"), load(folder / "selector.py")
    block = lambda tag, text: "" if text is None else f"<{tag}>{text}</{tag}>"
    replies = [
        block("think", t) + block("answer", a) for t, a in itertools.product(THOUGHTS, ANSWERS)
    ]
    answers = [
        {
            "reply": reply,
            "reward": generator.compute_score(reply, "", extra_info={"answers": REFERENCES}),
            "citations": generator.count_unique_doc_cites_in_think(reply),
            "citations_of_five": generator.count_unique_doc_cites_in_think(reply, 5),
        }
        for reply in dict.fromkeys(replies + OTHERS)
    ]
    choices = []
    for thought, answer in itertools.product([None, "Doc [3] has it."], CHOICES):
        reply = block("think", thought) + block("answer", answer)
        chosen, valid, twice = selector.parse_selector_output_to_doc_indices(reply, 7)
        ok = valid and not twice
        row = {"reply": reply, "chosen": [i + 1 for i in chosen] if ok else [], "well_formed": ok}
        choices.append(row)
    lines = lambda rows: "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]"
    path = Path(__file__).parent / "golden/bar_rag_released.json"
    path.write_text(
        f'{{"references": {json.dumps(REFERENCES)},\n"answers": {lines(answers)},\n'
        f'"choices": {lines(choices)}}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main(sys.argv[1])
