"""`ark-jax init`: a config file for the data that it is shown."""

import shlex
from pathlib import Path

from ark_jax.cli.check import DataFlags
from ark_jax.cli.flags import flag
from ark_jax.runtime.log import say


class Init(DataFlags):
    """Writes a config file for data; 1 if they have problems."""

    data: str = flag("DATA", "what `ark-jax check` reads")
    out: str = flag("--out=FILE", "the config file, which must not exist", "config.py")

    example = "ark-jax init my_documents/ --questions=questions.csv"
    prints = False

    def run(self) -> int:
        from ark_jax.new_config import (
            TITLES,
            config_text,
            draft_config,
            few_questions,
            folds_command,
        )

        out = Path(self.out).expanduser()
        if out.exists():
            raise ValueError(f"{out} is there already; give another --out, or move it away")
        if not out.parent.is_dir():
            raise ValueError(f"--out={self.out}: {out.parent} is no folder; make it first")
        draft = draft_config(self.data, self.files(), self.reading())
        for line in draft.lines:
            say(line)
        if not draft.good:
            say("no config is written: mend the data first")
            return 1
        with out.open("x", encoding="utf-8") as file:
            file.write(config_text(draft, self.out))
        say(f"{out}: {TITLES[draft.recipe]}")
        say(f"run it: ark-jax run --config={shlex.quote(self.out)} --workdir=DIR")
        if folds := folds_command(draft, self.out):
            say(f"{few_questions(draft)}: {folds}")
        return 0
