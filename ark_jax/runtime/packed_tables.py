"""Arrow tables as compressed bytes, to send them between processes or to store them."""

from collections.abc import Iterator

import pyarrow as pa

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def pack(*tables: pa.Table) -> bytes:
    """The tables, one after another, each in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    for table in tables:
        with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as stream:
            stream.write_table(table)
    return sink.getvalue().to_pybytes()


def unpack(data: bytes) -> Iterator[pa.Table]:
    """The tables of `pack`."""
    source = pa.BufferReader(data)
    while source.tell() < len(data):
        with pa.ipc.open_stream(source) as stream:
            yield stream.read_all()
