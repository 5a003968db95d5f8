"""Makes descriptors of the files of a schema: of their text, by protoc, or as a registry has them compiled.

Only the driver does so. Tasks get the descriptors inside the record schema.
"""

import errno
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.protobuf.registered_schema import tokenize

_TEXT_CHARACTERS_MAX = 2**24
_FILES_MAX = 1_000
# protoc ends the process at 100 levels of a descriptor and its options, and where its stack ends; 31 are messages.
_BRACKETS_MAX = 90
_OPENING = {"{": "}", "[": "]", "<": ">"}
# Errors of the file system that a name itself brings about, such as `a` beside `a/b.proto`.
_NAME_ERRORS = frozenset(
    (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ELOOP)
)
# Of what Confluent's registry knows without a reference (https://docs.confluent.io/platform/current/schema-registry/).
_CONFLUENT_FILES = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
""",
}
# Files that are imported without a reference, and that Python has as modules.
_GOOGLE_FILE = re.compile(r"google/(protobuf|type)/[a-z_]+\.proto")


def compile_files(texts: Mapping[str, str], main: str) -> bytes:
    """Compile .proto texts by their names. Returns a serialized FileDescriptorSet, dependencies first, `main` last.

    `texts`: the schema and all that it imports, each under the name by which it is imported; Google's own files, and
    Confluent's, need none. Raises UnsupportedSchema with protoc's words, OSError where protoc's files have no place.
    """
    if len(texts) > _FILES_MAX or sum(map(len, texts.values())) > _TEXT_CHARACTERS_MAX:
        raise UnsupportedSchema(
            f"it has more than {_FILES_MAX:,} files or {_TEXT_CHARACTERS_MAX:,} characters; split it"
        )
    for name, text in texts.items():
        _check_name(name)
        _check_brackets(name, text)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, text in {**_CONFLUENT_FILES, **texts}.items():
            path = folder / "files" / name
            _write_file(path, name, text)
        return _run_protoc(folder, main)


def read_serialized(files: Mapping[str, bytes], main: str) -> bytes:
    """Return a serialized FileDescriptorSet, dependencies first, `main` last, of serialized FileDescriptorProtos.

    `files`: by the names under which they are imported. Raises UnsupportedSchema for what is no descriptor, or where a
    file is missing.
    """
    protos: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for name, content in files.items():
        _check_name(name)
        try:
            proto = descriptor_pb2.FileDescriptorProto.FromString(content)
        except DecodeError:
            raise UnsupportedSchema(f"file {name!r} is no serialized FileDescriptorProto") from None
        if not all(isinstance(dependency, str) for dependency in proto.dependency):
            raise UnsupportedSchema(f"file {name!r} imports a name that is not UTF-8")
        proto.name = name
        protos[name] = proto
    file_set = descriptor_pb2.FileDescriptorSet()
    for proto in _order_files(protos, main):
        file_set.file.add().CopyFrom(proto)
    content = bytes(file_set.SerializeToString())
    open_pool(content)
    return content


def message_at(file_set: bytes, indexes: Sequence[int]) -> str:
    """Return the full name of a message of the last file by Confluent's indexes: places among its siblings.

    Raises UnsupportedSchema where there is none.
    """
    file = _last_file(file_set)
    siblings = file.message_type
    names = [file.package] if file.package else []
    for index in indexes or (0,):
        if not 0 <= index < len(siblings):
            parent = ".".join(names) or file.name
            raise UnsupportedSchema(
                f"the schema has no message at index {list(indexes)}: {parent} has {len(siblings)} messages"
            )
        names.append(siblings[index].name)
        siblings = siblings[index].nested_type
    return ".".join(names)


def message_by_order(file_set: bytes, place: int) -> str:
    """Return the full name of a message by Glue's index: its place among all of the last file, sorted by full name.

    Entries of maps count. Raises UnsupportedSchema where there is none.
    """
    file = _last_file(file_set)
    names = sorted(_message_names(file.message_type, file.package))
    if not 0 <= place < len(names):
        raise UnsupportedSchema(f"the schema has no message at index {place}: it has {len(names)}")
    return names[place]


def open_pool(file_set: bytes) -> descriptor_pool.DescriptorPool:
    """Return a pool of the files. Raises UnsupportedSchema for what is no FileDescriptorSet, or not sound."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(file_set).file
    except DecodeError:
        raise UnsupportedSchema("its descriptors are no serialized FileDescriptorSet") from None
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise UnsupportedSchema(f"file {file.name!r} is refused: {error}") from None
    return pool


def _check_name(name: str) -> None:
    """Raise UnsupportedSchema for a name that would lead out of the folder of a schema's files."""
    path = PurePosixPath(name)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UnsupportedSchema(f"a file of a schema may not be imported as {name!r}, which is not UTF-8") from None
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise UnsupportedSchema(f"a file of a schema may not be imported as {name!r}; use a relative path without '..'")


def _check_brackets(name: str, text: str) -> None:
    """Raise UnsupportedSchema for a text whose brackets would end protoc, and the process with it."""
    depths = dict.fromkeys(_OPENING.values(), 0)
    for token in tokenize(text):
        if token in _OPENING:
            depths[_OPENING[token]] += 1
            if sum(depths.values()) > _BRACKETS_MAX:
                raise UnsupportedSchema(
                    f"file {name!r} has more than {_BRACKETS_MAX} brackets inside one another; flatten it"
                )
        elif token in depths:
            # One that closes nothing is passed over by protoc.
            depths[token] = max(0, depths[token] - 1)


def _write_file(path: Path, name: str, text: str) -> None:
    """Write a file. Raises UnsupportedSchema for a name or a text that no file can have, OSError for all else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except UnicodeEncodeError:
        raise UnsupportedSchema(f"file {name!r} is not UTF-8") from None
    except OSError as error:
        # A disk that is full says nothing of the schema.
        if error.errno not in _NAME_ERRORS:
            raise
        raise UnsupportedSchema(f"file {name!r} cannot be written for protoc: {error.strerror}") from None


def _run_protoc(folder: Path, main: str) -> bytes:
    """Compile the files in the folder. Raises UnsupportedSchema with protoc's words, OSError."""
    from grpc_tools import _protoc_compiler, protoc

    includes = [str(folder / "files"), *_include_folders()]
    try:
        # This way raises what the other one writes to stderr.
        _protoc_compiler.get_protos(main.encode(), [include.encode() for include in includes])
    except _protoc_compiler.ProtocErrors as error:
        raise UnsupportedSchema(f"protoc refuses it: {_describe_errors(error)}") from None
    output = folder / "descriptors"
    options = [f"-I{include}" for include in includes]
    status = protoc.main(["protoc", *options, "--include_imports", f"--descriptor_set_out={output}", main])
    if status != 0:
        # It has just compiled the same files.
        raise OSError(f"protoc cannot write descriptors below {tempfile.gettempdir()}: its status is {status}")
    return output.read_bytes()


def _include_folders() -> Iterator[str]:
    """Yield the folders of Google's files: google/protobuf, and google/type of googleapis-common-protos."""
    import grpc_tools

    yield str(Path(grpc_tools.__file__).parent / "_proto")
    types = find_spec("google.type")
    if types is not None:
        for folder in types.submodule_search_locations or ():
            yield str(Path(folder).parent.parent)


def _describe_errors(errors: Exception) -> str:
    """Return protoc's errors as one line: `order.proto:3:9: "Money" is not defined.`"""
    # Their own texts are of ASCII, and are not to be had where a name or a word of the schema is not.
    (parts,) = errors.args
    sentences = [
        f"{_decode(part.filename)}:{part.line}:{part.column}: {' '.join(_decode(part.message).split())}"
        for part in parts
    ]
    return "; ".join(sentences)[:2_000]


def _decode(content: bytes) -> str:
    return content.decode(errors="replace")


def _order_files(
    protos: Mapping[str, descriptor_pb2.FileDescriptorProto], main: str
) -> list[descriptor_pb2.FileDescriptorProto]:
    """Return a file and all that it imports, each behind what it imports. Raises UnsupportedSchema."""
    ordered: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    around: list[str] = []

    def add(name: str) -> None:
        if name in ordered:
            return
        if name in around:
            raise UnsupportedSchema(f"file {name!r} imports itself, through {' and '.join(around)}")
        proto = protos.get(name) or _known_file(name)
        if proto is None:
            importer = f", which {around[-1]!r} imports" if around else ""
            raise UnsupportedSchema(f"file {name!r}{importer} is missing; register it as a reference of the schema")
        around.append(name)
        for dependency in proto.dependency:
            add(dependency)
        around.pop()
        ordered[name] = proto

    try:
        add(main)
    except RecursionError:
        raise UnsupportedSchema("its files import one another too deeply") from None
    return list(ordered.values())


def _known_file(name: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return a file of Google's, or of Confluent's, that schemas import without a reference."""
    if name in _CONFLUENT_FILES:
        file_set = descriptor_pb2.FileDescriptorSet.FromString(compile_files(_CONFLUENT_FILES, name))
        return file_set.file[-1]
    if _GOOGLE_FILE.fullmatch(name) is None:
        return None
    module_name = name.removesuffix(".proto").replace("/", ".")
    try:
        module = import_module(f"{module_name}_pb2")
    except ModuleNotFoundError:
        return None
    proto = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(proto)
    return proto


def _last_file(file_set: bytes) -> descriptor_pb2.FileDescriptorProto:
    files = descriptor_pb2.FileDescriptorSet.FromString(file_set).file
    if not files:
        raise UnsupportedSchema("its descriptors have no file")
    return files[-1]


def _message_names(messages: Sequence[descriptor_pb2.DescriptorProto], parent: str) -> Iterator[str]:
    for message in messages:
        name = f"{parent}.{message.name}" if parent else message.name
        yield name
        yield from _message_names(message.nested_type, name)
