"""Google Cloud Storage on this machine: an emulator in a process of its own.

`python tests/support/gcs.py PORT` serves an empty bucket `bucket`, in memory.
"""

import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus

import pytest

BUCKET = "bucket"


@contextlib.contextmanager
def serve() -> Iterator[dict[str, str]]:
    """Serves the bucket in the block; gives the variables by which clients find it.

    gcsfs reads the first one, TensorStore, by which Orbax writes, the second. The third saves gcsfs
    a question that only Google answers.
    """
    for module in ("gcsfs", "gcp_storage_emulator"):
        if not importlib.util.find_spec(module):
            pytest.skip(f"{module} is not installed: pip install -e '.[reference]'")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, str(port)], stderr=subprocess.DEVNULL)
    url = f"http://localhost:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"{url}/storage/v1/b/{BUCKET}", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        _forget_clients()
        yield {
            "STORAGE_EMULATOR_HOST": url,
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
    finally:
        _forget_clients()
        process.kill()
        process.wait()


def _forget_clients() -> None:
    """Forgets the clients of this process, which know another address."""
    import fsspec
    from etils.epath import backend

    type(backend.fsspec_backend)._get_filesystem.cache_clear()
    if gcsfs := sys.modules.get("gcsfs"):
        gcsfs.GCSFileSystem.clear_instance_cache()
        fsspec.get_filesystem_class("gs").clear_instance_cache()


def _run(port: int) -> None:
    """Serves until the process ends. The emulator lacks preconditions, which are added."""
    from gcp_storage_emulator import server
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects

    insert = objects.insert

    def insert_if_unchanged(request, response, storage):
        """Refuses to write an object whose generation is not the one that the client expects."""
        if wanted := request.query.get("ifGenerationMatch"):
            in_query = "name" in request.query
            name = request.query["name"][0] if in_query else request.data["meta"]["name"]
            try:
                stored = storage.get_file_obj(request.params["bucket_name"], name)["generation"]
            except NotFound:
                stored = "0"
            if wanted[0] != str(stored):
                response.status = HTTPStatus.PRECONDITION_FAILED
                response.json({"error": {"code": 412, "message": "conditionNotMet"}})
                return
        insert(request, response, storage)

    objects.insert = insert_if_unchanged
    for _, handlers in server.HANDLERS:
        for method, handler in handlers.items():
            if handler is insert:
                handlers[method] = insert_if_unchanged
    server.Server("localhost", port, in_memory=True, default_bucket=BUCKET).run()


if __name__ == "__main__":
    _run(int(sys.argv[1]))
