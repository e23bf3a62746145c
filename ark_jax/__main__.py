"""The command line: `ark-jax VERB ...`; `cli/verbs.py` lists the verbs."""

import gc
import os
import signal
import sys

if sys.argv[1:2] in (["search"], ["ask"]):
    # For numpy, which embeds a question and reads this when it is imported: its threads would wait
    # for each other actively, which takes ten times as long on a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from ark_jax.cli import process, verbs
from ark_jax.runtime import log, preemption
from ark_jax.runtime.shown import printable


def main() -> None:
    """Entry point of the console script."""
    # To look for garbage after every few hundred new objects, as Python does by default, takes an
    # eighth of the time of a short run: JAX makes many while it traces.
    gc.set_threshold(50_000, 20, 20)
    log.prepare_streams()
    args = sys.argv[1:]
    with preemption.raise_signals(terminated=0 if verbs.is_run(args) else 128 + signal.SIGTERM):
        try:
            sys.exit(_main(args))
        except preemption.Preempted as stopped:
            preemption.stop_retrying()
            reason = f" ({stopped})" if str(stopped) else ""
            message = printable(f"stopped{reason}: run the same command again to go on")
            print(f"\n{message}", file=sys.stderr)
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
    """Runs one command; returns its exit status."""
    if not args or args[0] in ("-h", "--help", "help"):
        return _print(verbs.overview()) if args else _print(verbs.overview(), status=2)
    if args[0] == "--version":
        from ark_jax import __version__

        return _print(f"{__version__}\n")
    name, flags = args[0], args[1:]
    if {"-h", "--help"} & set(flags):
        return _print(verbs.help_of(name))
    try:
        status = verbs.class_of(name).parse(name, flags).run()
        log.show("")  # writes what is left; an error names the output
        return status
    except Exception as error:
        if process.is_closed_output(error) or process.is_closed_output(error.__cause__):
            process.drop_output()
            if verbs.class_of(name).prints:
                return 0
        return _report(error, flags)


def _print(text: str, status: int = 0) -> int:
    """Shows a text and returns the status, even if nobody reads the output."""
    try:
        log.show(text)
    except BrokenPipeError:
        process.drop_output()
    return status


def _report(error: Exception, flags: list[str]) -> int:
    """Prints the error, and the fix where it is known; returns the exit status, 1."""
    if isinstance(error, OSError) and error.errno in process.FULL:
        from ark_jax.runtime import storage

        message = f"error: {process.message_with_fix(error, storage.cache_folder())}"
    elif isinstance(error, ValueError | RuntimeError | OSError | ArithmeticError):
        message = f"error: {error}"
    elif isinstance(error, MemoryError):
        message = (
            f"error: out of memory{f' ({error})' if str(error) else ''}: close other programs or "
            "use a larger machine, and run the same command again; what is finished is kept"
        )
    else:
        reason = next(iter(str(error).splitlines()), "")
        message = (
            f"error: {type(error).__name__}: {reason}\nThis should not happen: please report it, "
            f"with the trace in {process.save_trace(flags)}. What is finished is kept"
        )
    print(printable(message), file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
