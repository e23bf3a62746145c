"""`ark-jax check`: what is understood of an input, and every bad row."""

import re
import sys
from collections.abc import Mapping

from ark_jax.runtime.log import say

FLAG = r"--?(names|relation-names|questions)=(.+)"


def check(verb: str, args: list[str]) -> int:
    """Prints what a file or folder holds; the exit status is 1 if it has problems."""
    from ark_jax.data import readers
    from ark_jax.evaluate.significance import what_can_be_told
    from ark_jax.graph import triple_check

    paths = [arg for arg in args if not arg.startswith("-")]
    matches = [re.fullmatch(FLAG, arg) for arg in args if arg.startswith("-")]
    if len(paths) not in (1, 2) or not all(matches) or (matches and len(paths) > 1):
        print(
            "usage: ark-jax check FILE_OR_FOLDER [TEST], or with --questions=FILE, and for a graph "
            "of triples --names=FILE and --relation-names=FILE",
            file=sys.stderr,
        )
        return 2
    path, *tests = paths
    files = {match[1].replace("-", "_"): match[2] for match in matches}
    if not tests and triple_check.is_meant(path, **files):
        lines, good = triple_check.check(path, **files)
        say("\n".join(lines))
        return 0 if good else 1
    corpus, problems = readers.read(path, files.get("questions", ""))
    for line in (*corpus.remarks, *problems):
        say(str(line))
    say(readers.summary(corpus))
    if corpus.questions and not tests:
        fifth = max(len(corpus.questions) // 5, 1)
        say(f"a test on a fifth, {fifth:,} questions: {what_can_be_told(fifth)}")
    say(readers.verdict(problems))
    return int(any([bool(problems), *(_check_test(test, corpus.texts) for test in tests)]))


def _check_test(path: str, texts: Mapping[str, str]) -> bool:
    """Prints what is understood of a test set on a corpus; whether it has problems."""
    from ark_jax.data import readers
    from ark_jax.evaluate.significance import what_can_be_told

    test, problems = readers.read_test(path, texts)
    for line in (*test.remarks, *problems):
        say(str(line))
    count = len(test.questions)
    remark = what_can_be_told(count) if count else "none can be read"
    say(f"test set: {count:,} questions: {remark}")
    say(readers.verdict(problems))
    return bool(problems)
