"""`ark-jax doctor`: what a run needs of this machine and of all that its config names, looked at without spending anything.

It must speak where all else fails. So what may be broken is imported inside its check, each check has a thread and a deadline
of its own, lest a dead disk or a silent server hold up the rest, and jax starts in another process: it may crash, or never come
back from an accelerator that is in use.
"""

import dataclasses
import functools
import importlib.metadata as metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

NETWORK, DISK, START = 5, 10, 120  # seconds that a request, any other check, and jax with all that a run imports may take
GIB, LITTLE = 2**30, 5 * 2**30  # bytes of memory or disk: the demo takes 4 GiB of either
SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "transformers", "huggingface_hub", "numpy")
DRIVERS = {"/dev/nvidia0": "jax[cuda13]", "/dev/accel0": "jax[tpu]"}  # an accelerator as the system shows it -> what jax needs
CACHES = {"workdir": "give another --workdir", "cache": "set $ARK_CACHE to another folder",
          "compile cache": "set $JAX_COMPILATION_CACHE_DIR to another folder"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line: `state` is ok, warning or problem; `fix` says what to do about it, if `what` does not."""

    state: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.state:<8} {self.what}" + (f"\n{'':<8} fix: {self.fix}" if self.fix else "")


ok, warning, problem = (functools.partial(Finding, state) for state in ("ok", "warning", "problem"))


def run(given: Callable[[], tuple[object, Path | None]]) -> int:
    """Prints a line for each finding; 1 if one is a problem. `given` reads the command line: config and workdir, or None."""
    states: list[str] = []

    def look(name: str, check: Callable, *args, seconds: float = DISK, late: str = "problem") -> None:
        for finding in within(seconds, name, functools.partial(check, *args), late):
            print(finding, flush=True)
            states.append(finding.state)

    try:
        config, workdir = given()
    except Exception as error:
        config = workdir = None
        print(_raised("the command line or the config", error))
        states.append("problem")
    roles = {role: config[role] for role in ("llm", "reader", *(["judge"] if config.judge.repeats else []))} if config else {}
    look("packages", packages, any(c.backend == "openai" for c in roles.values()))
    before = len(states)
    look("devices", devices, seconds=START + DISK)
    started = "problem" not in states[before:]
    look("memory", memory)
    for name in CACHES:
        look(name, place, name, workdir)
    if config:
        look("the config", settings, config)
        models = {"retriever.path": config.retriever.path, "generator.path": config.generator.path,
                  **{f"{role}.path": c.path for role, c in roles.items() if c.backend == "local"},
                  **{f"evaluate.retrievers, {path}": path for path in config.evaluate.retrievers}}
        for field, path in models.items():
            if path and started:  # else what reads them may take this process along
                look(field, model, field, path, seconds=3 * NETWORK)
        for role, c in roles.items():
            if c.backend == "openai":
                look(f"{role}.base_url", endpoint, config, role, seconds=2 * NETWORK)
            if c.backend == "replay":
                look("llm.replies", replies, "llm.replies", config.llm.replies)
        if config.graph.openie:
            look("graph.openie", replies, "graph.openie", config.graph.openie)
        look("data.path", data, config.data.path, late="warning")
    counts = [f"{n} {state}{'s' * (n > 1)}" for state in ("problem", "warning") if (n := states.count(state))]
    print(", ".join(counts) or "no problem found")
    return int("problem" in states)


def within(seconds: float, name: str, check: Callable[[], Iterator[Finding]], late: str) -> list[Finding]:
    """What a check finds in so many seconds; one that takes longer is left behind, and that is `late`."""
    found: list[Finding] = []

    def work() -> None:
        try:
            for finding in check():
                found.append(finding)  # one by one: what comes before an error counts
        except Exception as error:
            found.append(_raised(name, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return [*found, Finding(late, f"{name}: no answer within {seconds:g} s")] if thread.is_alive() else found


def _raised(name: str, error: Exception) -> Finding:
    """Our own errors say what to do; of others the kind helps."""
    if isinstance(error, ImportError):
        return problem(f"{name}: {error}", f"pip install --force-reinstall {error.name.partition('.')[0]}" if error.name else "")
    kind = "" if isinstance(error, ValueError | OSError | RuntimeError) else f"{type(error).__name__}: "
    return problem(f"{name}: {kind}{' '.join(str(error).split())[:500]}")


def packages(endpoint: bool) -> Iterator[Finding]:
    """Installed versions against those that setup.py asks for, with the extra for an endpoint or without, and jax itself."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    def of(name: str, what: Callable = metadata.version):
        try:
            return what(name)
        except metadata.PackageNotFoundError:
            return None

    python, own = platform.python_version(), of("ark-jax", metadata.metadata)
    if own is None:
        yield warning("ark_jax is used without being installed: nothing says which versions it needs", "pip install -e . there")
    elif not SpecifierSet(own["Requires-Python"]).contains(python):
        yield problem(f"python {python}, but ark_jax needs {own['Requires-Python']}", "make an environment with such a python")
    for owner in ("ark-jax", "jax"):
        for wish in map(Requirement, of(owner, metadata.requires) or ()):
            asked = wish.marker is None or any(wish.marker.evaluate({"extra": x}) for x in ("", *["llm"] * endpoint))
            version = of(wish.name)
            if asked and (version is None or not wish.specifier.contains(version, prereleases=True)):
                yield problem(f"{wish.name} {version or 'is missing'}, but {owner} needs {wish.name}{wish.specifier}",
                              f"pip install '{wish.name}{wish.specifier}'")
    yield ok(", ".join([f"python {python}", *(f"{name} {version}" for name in SHOWN if (version := of(name)))]))


def devices() -> Iterator[Finding]:
    """What jax sees, and whether all that a run imports can be, by `probe` in another process."""
    # Else jax takes most of an accelerator's memory, which a run that is under way may need.
    quiet = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", "from ark_jax import doctor; doctor.probe()"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=START, env=quiet, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        yield problem(f"devices: jax did not start within {START} s", "end what holds the accelerator, or do without it "
                      "(JAX_PLATFORMS=cpu); where $ARK_COORDINATOR or a pod joins processes, run this on all of them at once")
        return
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        yield problem(f"devices: jax, or what a run imports beside it, does not start: {said[:500]}",
                      "mend the versions above, else pip install --force-reinstall what is named here")
        return
    found = json.loads(done.stdout.splitlines()[-1])
    memory = f", {found['memory'] / GIB:.1f} GiB each" if found["memory"] else ""
    yield ok(f"devices: {found['count']} {found['platform']} ({found['kind']}){memory}, {found['processes']} process(es)")
    for path, package in DRIVERS.items():
        if found["platform"] == "cpu" and Path(path).exists() and not os.environ.get("JAX_PLATFORMS"):
            yield warning(f"devices: there is {path}, but jax sees the CPU alone", f"pip install -U '{package}'")


def probe() -> None:
    """Imports what a run does, starts jax and prints what it found, as JSON."""
    import jax
    from transformers import AutoTokenizer  # noqa: F401

    from ark_jax import hosts
    from ark_jax.models import language  # noqa: F401
    from ark_jax.train import loop  # noqa: F401

    with hosts.together():
        device = jax.local_devices()[0]
        print(json.dumps({"platform": device.platform, "kind": device.device_kind, "count": jax.device_count(),
                          "processes": jax.process_count(), "memory": (device.memory_stats() or {}).get("bytes_limit")}))


def memory() -> Iterator[Finding]:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.is_file() and (said := limit.read_text().strip()).isdigit():
        size = min(size, int(said))
    yield (ok if size >= LITTLE else warning)(f"memory: {size / GIB:.1f} GiB")


def settings(config) -> Iterator[Finding]:
    """What a run would refuse of the config, its prompts among it; nothing is said of what it takes."""
    from ark_jax.stages.checks import check
    from ark_jax.text import prompts

    yield from ()
    check(config)
    for name, path in config.prompts.items():
        prompts.load(name, path)


def replies(field: str, path: str) -> Iterator[Finding]:
    yield ok(f"{field}: {path}, {Path(path).expanduser().stat().st_size:,} bytes")


def place(name: str, workdir: Path | None) -> Iterator[Finding]:
    """Whether a folder can be written to, or made, and how much room there is."""
    from ark_jax.models import wheels

    cache = wheels.cache_folder()
    folder = {"workdir": workdir, "cache": cache,
              "compile cache": Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache / "xla").absolute()}[name]
    if folder is None:
        return
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        yield problem(f"{name}: {folder} cannot be written to: {there}: {error.strerror}", f"make it writable, or {CACHES[name]}")
        return
    free = shutil.disk_usage(there).free
    what = f"{name}: {folder}, {free / GIB:.1f} GiB free"
    yield ok(what) if free >= LITTLE else warning(what, "free some space; `ark-jax plan` says what a run fills")


def model(field: str, path: str) -> Iterator[Finding]:
    """Whether a folder, a place in a bucket or a hub name can be read, and is of a kind that we compute."""
    from ark_jax.models import decoder, hf

    if "://" in path:
        settings, where = json.loads(_in_bucket(f"{path.rstrip('/')}/config.json").read_text()), "in its bucket"
    elif Path(path).expanduser().is_dir():
        folder = Path(path).expanduser()
        hf.Checkpoint(folder)
        settings, where = hf.read_config(folder), "whole"
    else:
        settings, where = _of_the_hub(path)
    config, _, _ = hf.family(settings)
    config.from_hf(settings)
    if "retriever" not in field and config is not decoder.Config:
        yield problem(f"{field}: {path}: {settings['model_type']} generates no text", "give a decoder")
    else:
        yield ok(f"{field}: {path}, {settings['model_type']}, {where}")


def _of_the_hub(name: str) -> tuple[dict, str]:
    """config.json of a hub name, and whether the model is in the hub's cache; nothing is kept of what is fetched."""
    import huggingface_hub as hub

    from ark_jax.models import hf

    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        hf.resolve(name)  # raises
    try:
        folder = Path(hub.snapshot_download(name, local_files_only=True))
        hf.Checkpoint(folder)
        return hf.read_config(folder), "in the hub's cache"
    except FileNotFoundError:
        pass  # or not all of it
    try:  # not by the library's download, which asks six times
        reply = hub.get_session().get(hub.hf_hub_url(name, "config.json"), headers=hub.utils.build_hf_headers(),
                                      timeout=NETWORK, follow_redirects=True)
        hub.utils.hf_raise_for_status(reply)
    except Exception as error:  # of the client that the library speaks by
        raise RuntimeError(f"{name} is no folder, in no cache, and cannot be fetched ({type(error).__name__}): mend the name or "
                           "the network, accept its terms on the hub and set $HF_TOKEN, or give a folder") from None
    return reply.json(), "to be fetched from the hub"


def _in_bucket(place: str):
    from etils import epath

    found = epath.Path(place)
    if not found.exists():
        raise FileNotFoundError(f"{place}: not there, or no right to see it; mend the path, or the credentials of this machine "
                                "(gcloud auth application-default login; aws configure)")
    return found


def endpoint(config, role: str) -> Iterator[Finding]:
    """Whether the address answers, takes the key and has the model. What it says is not shown: it may quote the key."""
    import openai

    from ark_jax.stages.files import llm_settings

    c = llm_settings(config, role)
    key = os.environ.get(c.key_env, "").strip()
    wrong = "is not set" if not (key or c.base_url) else "holds what no key holds" if not re.fullmatch("[!-~]*", key) else ""
    if wrong:
        yield problem(f"{role}.key_env: ${c.key_env} {wrong}",
                      f"set ${c.key_env}, or {role}.base_url to an endpoint without keys")
        return
    client = openai.OpenAI(api_key=key or "none", base_url=c.base_url or None, max_retries=0, timeout=NETWORK)
    address = f"{role}.base_url: {re.sub(r'(?<=//)[^/@]*@|[?].*', '', str(client.base_url))}"
    try:
        body = client.get("/models", cast_to=str)
    except openai.APIStatusError as error:
        refused, unknown = error.status_code in (401, 403), error.status_code in (404, 405)
        yield (warning if unknown else problem)(
            f"{address} answers with status {error.status_code}", f"set ${c.key_env}{' anew' * bool(key)}" if refused else
            f"it may do without a list of models; else mend {role}.base_url, most end in /v1" if unknown else "ask again later")
        return
    except openai.APIConnectionError as error:
        why = f"says nothing within {NETWORK} s" if isinstance(error, openai.APITimeoutError) else "cannot be reached"
        yield problem(f"{address} {why}", f"start the server, or mend {role}.base_url or the network")
        return
    yield ok(f"{address} answers{f', the key is in ${c.key_env}' if key else f' without a key, for ${c.key_env} is not set'}")
    known = re.findall(r'"id"\s*:\s*"(?:models/)?([^"]+)"', body)
    if c.model not in known:
        yield warning(f"{role}.model: {c.model} is not in its list of {len(known)} models",
                      f"set {role}.model, say to {known[:3]}")


def data(path: str) -> Iterator[Finding]:
    from ark_jax.data import readers

    if not path:
        raise ValueError("data.path is empty: give --config.data.path=FILE_OR_FOLDER")
    if "://" in path:
        _in_bucket(path)
        yield ok(f"data.path: {path}, in its bucket; `ark-jax check` reads it")
    else:
        corpus = readers.load(path)
        yield ok(f"data.path: {path}, {len(corpus.documents):,} documents, {len(corpus.questions):,} questions")
