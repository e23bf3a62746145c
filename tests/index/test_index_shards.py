"""Documents of an index that are cut in shards: the files are those of one process."""

import itertools

import jax
from hypothesis import given, settings
from hypothesis import strategies as st
from support import shard_work, tiny

import ark_jax as ark
from ark_jax import layout
from ark_jax.data.records import Chunk, Document
from ark_jax.index import tables
from ark_jax.retrieval import bm25_index
from ark_jax.runtime import map_shards

TEXTS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["", "x", "x y", "y z x"]))


def cut(document: Document) -> list[Chunk]:
    """Each word is a chunk."""
    return [
        Chunk(f"{document.id}#{i}", document.id, 0, 1, 1, word)
        for i, word in enumerate(document.text.split())
    ]


def cut_in_shards(size: int):
    """A cutter that reads so many documents before it gives chunks of the first."""

    def cut_all(documents):
        while shard := list(itertools.islice(documents, size)):
            yield from itertools.chain.from_iterable(map(cut, shard))

    return cut_all


@settings(max_examples=60)
@given(before=TEXTS, after=TEXTS, adds=st.booleans(), size=st.integers(1, 9))
def test_chunks_do_not_depend_on_the_size_of_shards(tmp_path_factory, before, after, adds, size):
    folder = tmp_path_factory.mktemp("tables")
    old, new = (
        [Document(name, "", text) for name, text in texts.items()] for texts in (before, after)
    )
    find = tables.source_finder(None, None)
    tables.write_tables(
        folder, tables.parts_of(tables.sources_of(old, find), None, cut_in_shards(size))
    )
    stored, again = tables.Stored(folder), []
    find = tables.source_finder(None, stored)
    sources = tables.sources_with(stored, new, find) if adds else tables.sources_of(new, find)
    record = lambda documents: cut_in_shards(size)(again.append(x) or x for x in documents)
    parts = tables.parts_of(sources, stored, record)
    found = [(part.document, list(part.chunks)) for part in parts]
    wanted = before | after if adds else after
    assert found == [(name, cut(Document(name, "", text))) for name, text in wanted.items()]
    changed = [document for document in new if before.get(document.id) != document.text]
    assert sorted(again, key=str) == sorted(changed, key=str)


def test_two_processes_build_the_same_index_as_one_despite_a_kill(tmp_path, monkeypatch):
    model = tiny.retrievers(tmp_path, "a") / "a"
    sentences = tiny.DOCUMENTS.read_text(encoding="utf-8").replace("\\n", " ").split(". ")
    documents = [
        Document(f"d{i}", f"Title {i}", ". ".join(sentences[3 * i : 3 * i + 4])) for i in range(14)
    ]
    monkeypatch.setattr(map_shards, "SHARD_SIZE", 100)
    monkeypatch.setattr(bm25_index, "BLOCK", 4)
    files = []
    for cores in (1, 2):
        monkeypatch.setattr(map_shards, "cores", lambda cores=cores: cores)
        read = documents if cores == 1 else shard_work.with_a_kill(documents, 9)
        with jax.set_mesh(layout.make_mesh((1, 1, 1))):
            index = ark.Index.build(tmp_path / str(cores), model, read)
        folder = tmp_path / str(cores) / index.manifest.folder
        files.append(
            {
                path.relative_to(folder): path.read_bytes()
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
        )
    assert len(index) > 40 and files[0] == files[1]
