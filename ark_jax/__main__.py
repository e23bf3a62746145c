"""The command line: `ark-jax VERB [--config=FILE] [--workdir=DIR] [--config.field=value ...]`."""

import contextlib
import dataclasses
import errno
import logging
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

from ark_jax.runtime import log, preemption

USAGE = """\
ark-jax: answer-centric retriever tuning

  ark-jax demo                     the whole pipeline on a packaged corpus with small real models
  ark-jax demo   --documents-only  the same from documents alone: training questions are written
  ark-jax demo   --recipe=gpr      a retriever of triples, trained on a packaged graph alone
  ark-jax demo   --recipe=star     relation paths of that graph, trained on packaged questions
  ark-jax demo   --recipe=bar_rag  a reader that learns from its own answers to noisy passages
  ark-jax plan   --config=configs/ark.py --config.data.path=FILE [--workdir=DIR]
                                   what a run would ask, cost, take and fill; it writes nothing
                                   to DIR and asks no endpoint
  ark-jax run    --config=configs/ark.py --config.data.path=FILE --workdir=DIR
                                   the pipeline on your own documents and questions; run the same
                                   command again to resume
  ark-jax STAGE  --config=... --workdir=DIR
                                   one stage; `ark-jax status` lists the stages of a config
  ark-jax export --format=NAME --config=... --workdir=DIR
                                   what the training stages learn from, as JSONL in
                                   DIR/export-NAME for another trainer: sentence-transformers,
                                   flagembedding or ms-swift; it runs no stage
  ark-jax status --config=... --workdir=DIR
                                   which stages are done, stale (and why) or missing; with
                                   --verify also whether any file was damaged since, which takes
                                   as long as reading them all
  ark-jax check  FILE [TEST]       what is understood of an input, and every bad row; of a test set
                                   for config.data.test too; of a graph of triples also with
                                   --names=FILE, --relation-names=FILE and --questions=FILE
  ark-jax retrieve --model=DIR --graph=FILE --questions=FILE [--k=N] > out.jsonl
                                   what of a graph fits each question, for the prompt of a reader.
                                   DIR is the export of a run, or any model of its kind:
                                   a retriever gives the 20 best triples (--hops=1 ranks by cosines
                                   alone, 3 goes on along the graph; --index=DIR keeps vectors);
                                   a pair scorer gives the 5 best relation paths of at most
                                   --hops=3 from the question's topics, or from the names in its
                                   text (--beam=5, --inverse=yes|no);
                                   --names, --relation-names, --relations=last|whole as in a config;
                                   an export knows its --inverse and --relations
  ark-jax doctor [--config=... --workdir=DIR]
                                   whether this machine and all that a config names are fit for a
                                   run; it spends nothing
  ark-jax --version

Every field of a config is a flag: --config.train.batch=32. configs/README.md describes the fields.
--max-cost=USD is short for --config.llm.max_cost=USD.
configs/ark.py:paper and configs/ark.py:official are presets.
The demo keeps its models in $ARK_CACHE (else the XDG cache) and works in ./ark_demo, unless
--workdir names another folder.
Experimental, since it never ran on such hardware: TPU, several GPUs, Slurm, and the attention
kernels cudnn and tokamax.
"""
DOCUMENTS_ONLY = "--documents-only"  # of the demo
CHECK_FLAG = r"--?(names|relation-names|questions)=(.+)"


@dataclasses.dataclass(frozen=True)
class Request:
    """What the flags of a command ask for.

    Attributes:
        config: None if no config was given.
        store: the folder where the runs of a sweep share finished stages.
        verify: whether `status` and `run` read every file of every finished stage.
        format: of `ark-jax export --format=NAME`.
    """

    config: object
    workdir: Path | None
    store: Path | None
    verify: bool
    format: str


def main() -> None:
    """Entry point of the console script."""
    log.prepare_streams()
    with preemption.raise_signals():
        try:
            sys.exit(_main(sys.argv[1:]))
        except preemption.Preempted as stopped:
            preemption.stop_retrying()
            reason = f" ({stopped})" if str(stopped) else ""
            print(f"\nstopped{reason}: run the same command again to go on", file=sys.stderr)
            status = preemption.exit_status()
        except KeyboardInterrupt:
            preemption.stop_retrying()
            message = "interrupted: nothing is lost, run the same command again to go on"
            print(f"\n{message}", file=sys.stderr)
            status = 130
        # Threads of a library may still hold the interpreter; everything worth keeping is on disk.
        sys.stdout.flush()
        os._exit(status)


def _main(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if args else 2
    if args[0] == "--version":
        from ark_jax import __version__

        print(__version__)
        return 0
    verb, flags = args[0], args[1:]
    if verb == "doctor":
        from ark_jax import doctor

        return doctor.diagnose(lambda: _parse(verb, flags))
    try:
        alone = {"check": _check, "retrieve": _retrieve}  # verbs that need no config
        return alone[verb](flags) if verb in alone else _pipeline(verb, flags)
    except (ValueError, RuntimeError, OSError, ArithmeticError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(
            f"error: out of memory{f' ({error})' if str(error) else ''}: close other programs or "
            "use a larger machine, and run the same command again; what is finished is kept",
            file=sys.stderr,
        )
        return 1
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        print(
            f"error: {type(error).__name__}: {reason}\nThis should not happen: please report it, "
            f"with the trace in {_save_trace(flags)}. What is finished is kept",
            file=sys.stderr,
        )
        return 1


def _save_trace(flags: list[str]) -> Path:
    """Writes the trace of the current error into the workdir, or a temporary folder."""
    named = [flag.partition("=")[2] for flag in flags if re.match("--?workdir=", flag)]
    folders = [Path(name).expanduser() for name in named[-1:]]
    folder = next((f for f in folders if f.is_dir() and os.access(f, os.W_OK)), None)
    path = (folder or Path(tempfile.mkdtemp(prefix="ark-jax-"))) / "error.txt"
    path.write_text(traceback.format_exc(), encoding="utf-8")
    return path


def _check(args: list[str]) -> int:
    from ark_jax.data import readers
    from ark_jax.evaluate.significance import what_can_be_told
    from ark_jax.graph import triple_check

    paths = [arg for arg in args if not arg.startswith("-")]
    matches = [re.fullmatch(CHECK_FLAG, arg) for arg in args if arg.startswith("-")]
    if len(paths) not in (1, 2) or not all(matches) or (matches and len(paths) > 1):
        print(
            "usage: ark-jax check FILE_OR_FOLDER [TEST], and for a graph of triples "
            "[--names=FILE] [--relation-names=FILE] [--questions=FILE]",
            file=sys.stderr,
        )
        return 2
    path, *tests = paths
    files = {match[1].replace("-", "_"): match[2] for match in matches}
    if files or (not tests and triple_check.recognises(Path(path))):
        lines, good = triple_check.check(path, **files)
        print("\n".join(lines))
        return 0 if good else 1
    corpus, problems = readers.read(path)
    for line in (*corpus.remarks, *problems):
        print(line)
    print(readers.summary(corpus))
    if corpus.questions and not tests:
        fifth = max(len(corpus.questions) // 5, 1)
        print(f"a test on a fifth, {fifth:,} questions: {what_can_be_told(fifth)}")
    print(readers.verdict(problems))
    return int(any([bool(problems), *(_check_test(test, corpus.texts) for test in tests)]))


def _check_test(path: str, texts: Mapping[str, str]) -> bool:
    """Prints what is understood of a test set on a corpus; whether it has problems."""
    from ark_jax.data import readers
    from ark_jax.evaluate.significance import what_can_be_told

    test, problems = readers.read_test(path, texts)
    for line in (*test.remarks, *problems):
        print(line)
    count = len(test.questions)
    remark = what_can_be_told(count) if count else "none can be read"
    print(f"test set: {count:,} questions: {remark}")
    print(readers.verdict(problems))
    return bool(problems)


def _retrieve(args: list[str]) -> int:
    from ark_jax import retrieve

    request = retrieve.parse(args)
    _prepare_environment()
    try:
        retrieve.write_rows(request)
    except OSError as error:
        raise OSError(_with_fix(error, request.index, flag="--index")) from error
    return 0


def _pipeline(verb: str, args: list[str]) -> int:
    """Runs a verb that works on a config."""
    from ark_jax.pipeline.recipe import recipe_of

    request = _parse(verb, args)
    if request.config is None or not (request.workdir or verb == "plan"):
        raise ValueError(
            f"ark-jax {verb} needs --config=FILE and --workdir=DIR; `ark-jax --help` shows an "
            "example"
        )
    recipe = recipe_of(request.config)
    recipe.stages(request.config)  # refuses a config that lacks what is read next
    if recipe.needs(request.config).data == "":
        raise ValueError(
            "config.data.path is empty: give --config.data.path=FILE_OR_FOLDER; `ark-jax check` "
            "tests it"
        )
    if request.format:
        return _export(recipe, request)
    if verb == "plan":
        return _plan(recipe, request)
    if verb == "status":
        return _status(recipe, request)
    return _run(recipe, verb, request)


def _parse(verb: str, args: list[str]) -> Request:
    """The config and folders that the flags of a verb name.

    Raises:
        ValueError: a flag that is unknown or has a bad value, or a config file that fails.
    """
    from absl import flags
    from ml_collections import ConfigDict

    from ark_jax.recipes.common import default_models

    values = flags.FlagValues()
    workdir = None
    if verb == "demo":
        workdir = "_".join(["ark_demo", *filter(None, _demo_words(args))])
        written = "let training questions be written from the documents"
        flags.DEFINE_bool(DOCUMENTS_ONLY.lstrip("-"), False, written, flag_values=values)
        flags.DEFINE_string("recipe", "ark", "the method to show", flag_values=values)
    flags.DEFINE_string("workdir", workdir, "where results go", flag_values=values)
    flags.DEFINE_float("max-cost", None, "config.llm.max_cost", flag_values=values)
    store = "where the runs of a sweep share finished stages (launch/sweep.py)"
    flags.DEFINE_string("store", "", store, flag_values=values)
    check = "read all files of finished stages, and make damaged stages again (status, run)"
    flags.DEFINE_bool("verify", False, check, flag_values=values)
    if verb == "export":
        format = "the trainer whose JSONL is written"
        flags.DEFINE_string("format", "", format, flag_values=values)
    holder = _define_config(verb, args, values)
    try:
        rest = values(["ark-jax", *_last_of_repeated(args)])[1:]
        getattr(holder.value, "recipe", None)  # raises what ml_collections kept of an OSError
    except (flags.Error, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"bad flag: {_flag_message(error)}; `ark-jax --help` shows how it is used"
        ) from None
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"the config file fails ({reason}); correct it") from None
    if rest:
        raise ValueError(
            f"unexpected {rest[0]!r}; fields of the config are written --config.name=value"
        )
    if not isinstance(holder.value, ConfigDict | None):
        raise ValueError(
            f"the config file gives {type(holder.value).__name__}, not a ConfigDict; let "
            "get_config() return a config of ark_jax.config"
        )
    if holder.value is not None and values["max-cost"].value is not None:
        holder.value.llm.max_cost = values["max-cost"].value
    if holder.value is not None:
        default_models.name_models(holder.value)
    if "://" in (values.workdir or ""):
        raise ValueError(
            f"--workdir={values.workdir}: a workdir needs locks and renames, which a bucket lacks; "
            "give a folder that all hosts share (NFS, Filestore). Data and models may lie in a "
            "bucket"
        )
    absolute = lambda path: Path(path).expanduser().absolute() if path else None
    format = values.format if verb == "export" else ""
    return Request(
        holder.value, absolute(values.workdir), absolute(values.store), values.verify, format
    )


def _define_config(verb: str, args: list[str], values):
    """Defines --config and its fields; for the demo it is the packaged config if none is given."""
    from ml_collections import config_flags

    given = [arg for arg in args if re.match("--?config(=|$)", arg)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: give one --config")
    named = re.search(r"(?:^|\n)--?config[=\n]([^:\n]*)", "\n".join(args))
    if named and not Path(named[1]).is_file():
        raise ValueError(
            f"--config={named[1]}: no such file; the presets are in configs/ of the repository"
        )
    if verb == "demo" and not named:
        from ark_jax import config

        made = config.demo(*_demo_words(args))
        return config_flags.DEFINE_config_dict("config", made, flag_values=values)
    return config_flags.DEFINE_config_file("config", None, flag_values=values)


def _demo_words(args: list[str]) -> list[str]:
    """What `ark-jax demo` is to show: nothing for ARK, "documents" without questions, or a recipe.

    Raises:
        ValueError: no demo of this recipe.
    """
    from ark_jax import config

    recipe = next((arg.partition("=")[2] for arg in args if re.match("--?recipe=", arg)), "ark")
    words = ["documents"] if DOCUMENTS_ONLY in args else []
    words += [recipe] if recipe != "ark" else []
    if len(words) > 1 or recipe not in config.DEMO_RECIPES:
        known = ", ".join(config.DEMO_RECIPES)
        raise ValueError(
            f"demo {' '.join(args)}: --recipe may be {known}; {DOCUMENTS_ONLY} belongs to ark"
        )
    return words


def _last_of_repeated(args: list[str]) -> list[str]:
    """Of a field given twice, as a sweep does, the last one counts; tuples would be joined."""
    field = lambda arg: re.match(r"--?config\.[\w.]+=|", arg)[0].lstrip("-")
    last = {field(arg): i for i, arg in enumerate(args)}
    return [arg for i, arg in enumerate(args) if not field(arg) or last[field(arg)] == i]


def _flag_message(error: Exception) -> str:
    """What is wrong with a flag, in one line.

    ml_collections reports an unknown field as a KeyError, and a failing config file with its whole
    traceback.
    """
    text = str(error.args[0] if error.args else error).replace("\\n", "\n").strip()
    text = text.splitlines()[-1] if "Traceback" in text else text
    text = " ".join(text.replace("'", "").split())
    unknown = re.fullmatch(r"[\\\"]*(\w+)[\\\"]*(?: (Did you mean .*))?", text)
    if not unknown:
        return text
    suggestion = f". {unknown[2]}" if unknown[2] else ""
    return f"the config has no field {unknown[1]!r}{suggestion}"


def _prepare_environment() -> None:
    """Sets what must stand before jax or transformers start."""
    from ark_jax.runtime import storage

    # XLA's compiled programs outlive the process, also the small ones: a stage has dozens.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(storage.cache_folder() / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _plan(recipe, request: Request) -> int:
    from ark_jax.estimate import plan
    from ark_jax.recipes.common import default_models

    _prepare_environment()
    default_models.fetch_demo_models(recipe.needs(request.config).models.values())
    print(plan.format_plan(plan.estimate(recipe, request.config, request.workdir)))
    return 0


def _status(recipe, request: Request) -> int:
    from ark_jax.pipeline import engine
    from ark_jax.runtime.log import say

    stages = recipe.stages(request.config)
    verify = [stage.name for stage in stages] if request.verify else ()
    for status in engine.examine(stages, request.config, request.workdir, verify=verify):
        say(f"{status.stage:<12} {status.state:<8} {status.why}".rstrip())
    return 0


def _export(recipe, request: Request) -> int:
    """Writes what the training stages learn from, for another trainer."""
    from ark_jax.pipeline.stage import Context
    from ark_jax.runtime.log import Metrics

    write = recipe.training_files.get(request.format)
    if write is None:
        known = ", ".join(recipe.training_files) or "none"
        raise ValueError(f"bad flag: --format={request.format}: recipe {recipe.name} has {known}")
    _prepare_environment()
    workdir = request.workdir
    try:
        write(Context(request.config, workdir, Metrics(workdir / "metrics.jsonl")))
    except OSError as error:
        raise OSError(_with_fix(error, workdir)) from error
    return 0


def _run(recipe, verb: str, request: Request) -> int:
    """Runs the pipeline, or the stage that the verb names."""
    from ark_jax.estimate import plan
    from ark_jax.pipeline import engine
    from ark_jax.pipeline.stage import Context
    from ark_jax.runtime import distributed, trackers
    from ark_jax.runtime.log import Metrics

    config, workdir = request.config, request.workdir
    stages = recipe.stages(config)
    names = [stage.name for stage in stages]
    if verb not in ("demo", "run", *names):
        raise ValueError(
            f"unknown verb {verb!r}; stages of this config: {', '.join(names)}; see "
            "`ark-jax --help`"
        )
    _prepare_environment()
    _fetch_models(recipe, stages, config, workdir)
    plan.check_cost(recipe, config, workdir, verb)
    # Orbax logs pages about an error that it then raises, and our own message says it.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    try:
        with distributed.join_processes(), trackers.open_trackers(config, workdir) as opened:
            metrics = Metrics(workdir / "metrics.jsonl", opened)
            context = Context(config, workdir, metrics, request.store)
            only = "" if verb in ("demo", "run") else verb
            engine.run(stages, context, only=only, verify=request.verify)
    except OSError as error:
        raise OSError(_with_fix(error, workdir)) from error
    return 0


def _fetch_models(recipe, stages, config, workdir: Path) -> None:
    """Fetches the models of a run that has something to do, so that manifests name their contents.

    A hub model that cannot be fetched may not be needed. If it is, its stage says what is wrong.

    Raises:
        RuntimeError: a default model cannot be fetched.
    """
    from ark_jax.pipeline import engine, fingerprints
    from ark_jax.recipes.common import default_models
    from ark_jax.runtime import storage

    names = set(recipe.needs(config).models.values()) - {""}
    if names and any(s.state != "done" for s in engine.examine(stages, config, workdir)):
        default_models.fetch_demo_models(sorted(names))
        for name in sorted(filter(storage.is_hub_name, names)):
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                storage.hub_model(name)
        fingerprints.model_digest.cache_clear()


def _with_fix(error: OSError, workdir: Path, *, flag: str = "--workdir") -> str:
    """The message of an error of the file system and, if it is about writing results, a fix."""
    path = Path(error.filename or workdir)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        fix = "free some space there"
    elif error.errno == errno.EPIPE:
        fix = "keep its reader open, or let it be a file,"
    elif workdir not in (path, *path.parents):
        return str(error)
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        fix = f"make {workdir} writable or give another {flag}"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
        fix = f"move away what lies there or give another {flag},"
    else:
        return str(error)
    return (
        f"{path}: {error.strerror or error}; {fix} and run the same command again, what is "
        "finished is kept"
    )


if __name__ == "__main__":
    main()
