"""The command line: `ark-jax VERB [--config=FILE] [--workdir=DIR] [--config.field=value ...]`."""

import errno
import logging
import os
import re
import signal
import sys
from pathlib import Path

from ark_jax import preemption

USAGE = """\
ark-jax: answer-centric retriever tuning

  ark-jax demo                       the whole pipeline on the embedded corpus with small real models
  ark-jax plan   --config=configs/ark.py --config.data.path=FILE [--workdir=DIR]
                                     what a run would ask, cost, take and fill; it writes nothing and asks nobody
  ark-jax run    --config=configs/ark.py --config.data.path=FILE --workdir=DIR
                                     the same on your own documents and questions; run again to resume
  ark-jax STAGE  --config=... --workdir=DIR
                                     one stage: data extract graph communities rewrite score positives
                                     stage1 mine2 stage2 mine3 stage3 baselines evaluate judge export
                                     report
  ark-jax export --format=NAME --config=... --workdir=DIR
                                     no stage: what the stages are trained on, as JSONL in DIR/export-NAME for another trainer:
                                     sentence-transformers, flagembedding or ms-swift
  ark-jax status --config=... --workdir=DIR
                                     what is done, stale (and why), missing
  ark-jax check  FILE                what is understood of an input, and every bad row
  ark-jax doctor [--config=... --workdir=DIR]
                                     whether this machine, and what a config names, are fit for a run; spends nothing
  ark-jax --version

Every field of a config is a flag: --config.train.batch=32. --max-cost=USD is short for --config.llm.max_cost=USD.
configs/ark.py:paper and :official are presets.
The demo keeps its models in $ARK_CACHE (else the XDG cache) and works in ./ark_demo unless --workdir says otherwise.
"""


def main() -> None:
    """Entry point of the console script."""
    signal.signal(signal.SIGTERM, preemption.stop)
    try:
        sys.exit(_main(sys.argv[1:]))
    except preemption.Stopped as stopped:
        print(f"\nstopped{f' ({stopped})' if str(stopped) else ''}: run the same command again to go on", file=sys.stderr)
        sys.stdout.flush()
        os._exit(0)
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is lost, run the same command again to go on", file=sys.stderr)
        # Threads of a library may still hold the interpreter; everything worth keeping is on disk.
        sys.stdout.flush()
        os._exit(130)


def _main(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if args else 2
    if args[0] == "--version":
        from ark_jax import __version__

        print(__version__)
        return 0
    verb, rest = args[0], args[1:]
    if verb == "doctor":
        from ark_jax import doctor

        return doctor.run(lambda: _given(verb, rest)[:2])
    try:
        return _check(rest) if verb == "check" else _pipeline(verb, rest)
    except (ValueError, RuntimeError, OSError, ArithmeticError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _check(args: list[str]) -> int:
    from ark_jax.data import readers

    if len(args) != 1 or args[0].startswith("-"):
        print("usage: ark-jax check FILE_OR_FOLDER", file=sys.stderr)
        return 2
    corpus, problems = readers.read(args[0])
    for found in (*corpus.remarks, *problems):
        print(found)
    print(readers.summary(corpus))
    print(f"{len(problems)} problem(s)" if problems else "no problem found")
    return 1 if problems else 0


def _pipeline(verb: str, args: list[str]) -> int:
    config, workdir, store, form = _given(verb, args)
    if config is None or not (workdir or verb == "plan"):
        raise ValueError(f"ark-jax {verb} needs --config=FILE and --workdir=DIR; `ark-jax --help` shows an example")
    if not config.data.path:
        raise ValueError("config.data.path is empty: give --config.data.path=FILE_OR_FOLDER; `ark-jax check` tests it")
    if form:
        return _training_data(config, workdir, form)
    return _plan(config, workdir) if verb == "plan" else _run(verb, config, workdir, store)


def _given(verb: str, args: list[str]) -> tuple:
    """The config, the workdir, the store and the format that flags name, or None."""
    from absl import flags
    from ml_collections import config_flags

    values = flags.FlagValues()
    flags.DEFINE_string("workdir", "ark_demo" if verb == "demo" else None, "where results go", flag_values=values)
    flags.DEFINE_float("max-cost", None, "config.llm.max_cost", flag_values=values)
    flags.DEFINE_string("store", "", "where runs share finished stages (launch/sweep.py)", flag_values=values)
    if verb == "export":
        from ark_jax.data import exports

        flags.DEFINE_enum("format", None, exports.FORMATS, "the trainer whose JSONL is written", flag_values=values)
    given = re.search(r"(?:^|\n)--?config[=\n]([^:\n]*)", "\n".join(args))
    if given and not Path(given[1]).is_file():
        raise ValueError(f"--config={given[1]}: no such file; the presets are in configs/ of the repository")
    if verb == "demo" and not given:
        from ark_jax.config import demo

        config = config_flags.DEFINE_config_dict("config", demo(), flag_values=values)
    else:
        config = config_flags.DEFINE_config_file("config", None, flag_values=values)
    # Of a field given twice, as a sweep does, the last counts; tuples would be joined.
    field = lambda arg: re.match(r"--?config\.[\w.]+=|", arg)[0].lstrip("-")
    last = {field(arg): i for i, arg in enumerate(args)}
    args = [arg for i, arg in enumerate(args) if not field(arg) or last[field(arg)] == i]
    try:
        left = values(["ark-jax", *args])[1:]
    except (flags.Error, KeyError, AttributeError, TypeError) as error:
        # ml_collections speaks of an unknown field in a KeyError, and of a failing config file with its whole traceback.
        told = str(error.args[0] if error.args else error).replace("\\n", "\n").strip()
        told = " ".join((told.splitlines()[-1] if "Traceback" in told else told).replace("'", "").split())
        unknown = re.fullmatch(r"[\\\"]*(\w+)[\\\"]*(?: (Did you mean .*))?", told)
        told = f"the config has no field {unknown[1]!r}{f'. {unknown[2]}' if unknown[2] else ''}" if unknown else told
        raise ValueError(f"bad flag: {told}; `ark-jax --help` shows how it is used") from None
    if left:
        raise ValueError(f"unexpected {left[0]!r}; fields of the config are written --config.name=value")
    if config.value is not None and values["max-cost"].value is not None:
        config.value.llm.max_cost = values["max-cost"].value
    if "://" in (values.workdir or ""):
        raise ValueError(f"--workdir={values.workdir}: a workdir needs locks and renames, which a bucket lacks; give a "
                         "folder that all hosts share (NFS, Filestore). Data and models may lie in a bucket")
    place = lambda path: Path(path).expanduser().absolute() if path else None
    form = values.format if verb == "export" else None
    return config.value, place(values.workdir), place(values.store), form


def _plan(config, workdir: Path | None) -> int:
    from ark_jax.stages import plan

    _prepare(config)
    print(plan.table(plan.estimate(config, workdir)))
    return 0


def _training_data(config, workdir: Path, form: str) -> int:
    from ark_jax import pipeline
    from ark_jax.log import Metrics
    from ark_jax.stages import training_data

    _prepare(config)
    try:
        training_data.write(pipeline.Context(config, workdir, Metrics(workdir / "metrics.jsonl")), form)
    except OSError as error:
        raise OSError(_with_fix(error, workdir)) from error
    return 0


def _prepare(config) -> None:
    """What must stand before jax or transformers start."""
    from ark_jax.models import wheels

    # XLA's compiled programs outlive the process.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(wheels.cache_folder() / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # all of them: a stage has dozens of small ones
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _run(verb: str, config, workdir: Path, store: Path | None) -> int:
    from ark_jax import hosts, pipeline, trackers
    from ark_jax.log import Metrics, say
    from ark_jax.stages import plan, stages

    every = stages(config)
    names = [stage.name for stage in every]
    if verb == "status":
        for status in pipeline.examine(every, config, workdir):
            say(f"{status.stage:<12} {status.state:<8} {status.why}".rstrip())
        return 0
    if verb not in ("demo", "run", *names):
        raise ValueError(f"unknown verb {verb!r}; stages of this config: {', '.join(names)}; see `ark-jax --help`")
    _prepare(config)
    plan.check_cost(config, workdir, verb)
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs pages about an error that it then raises, and we tell
    try:
        with hosts.together(), trackers.opened(config, workdir) as told:
            context = pipeline.Context(config, workdir, Metrics(workdir / "metrics.jsonl", told), store)
            pipeline.run(every, context, only="" if verb in ("demo", "run") else verb)
    except OSError as error:
        raise OSError(_with_fix(error, workdir)) from error
    return 0


def _with_fix(error: OSError, workdir: Path) -> str:
    """What an error of the file system says and, if it is about writing results, what to do."""
    path = Path(error.filename or workdir)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        fix = "free some space there"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) and workdir in (path, *path.parents):
        fix = f"make {workdir} writable or give another --workdir"
    else:
        return str(error)
    return f"{path}: {error.strerror or error}; {fix} and run the same command again, what is finished is kept"


if __name__ == "__main__":
    main()
