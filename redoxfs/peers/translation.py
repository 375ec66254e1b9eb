"""The core's messages and answers as protobuf, and back.

What comes from a peer is checked for its form alone: that it can be read, and that its parts agree with each other.
Whether a sample or a class exists is for the core's caller to say. Malformed input is a ValueError.
"""

import errno
import os
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from redoxfs.chunks.store import FileBytes, Payload, Stamp
from redoxfs.peers.channel import HEADER_LIMIT_BYTES
from redoxfs.peers.fields import split_payload
from redoxfs.peers.parts import Cut, FileHead, SampleHead, part_count
from redoxfs.peers.v1 import peers_pb2 as pb
from redoxfs.protocol.events import Answer, Message
from redoxfs.protocol.local_first import Given, Take
from redoxfs.protocol.remote import Hit, RemoteAnswer, RemoteRead

ERROR_CHARACTERS = 200
"""Of an error's text go over the network; it names a file and says what is wrong."""

_NO_FILE = FileBytes(b"", Stamp(0, 0, 0), changed=False)

M = TypeVar("M", bound=Proto)


class Received(NamedTuple):
    """An answer without its bytes: what each of its samples consists of, and how many bytes that is."""

    answer: Answer
    samples: tuple[SampleHead, ...]
    sizes: tuple[int, ...]


def parse(kind: type[M], data: bytes | memoryview) -> M:
    """A message of ``kind``. Raises ValueError."""
    try:
        return kind.FromString(bytes(data))
    except DecodeError as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from None


def ask(caller: pb.Caller, message: Message) -> bytes:
    """An AskRequest."""
    request = pb.AskRequest(caller=caller, number=message.number, settled=message.settled)
    if isinstance(message, RemoteRead):
        request.remote_read.CopyFrom(
            pb.RemoteRead(
                sample=message.sample,
                epoch=message.epoch,
                position=message.position,
                room_bytes=message.room_bytes,
                hits=[pb.Hit(sample=hit.sample, position=hit.position) for hit in message.hits],
                passed=message.passed,
            )
        )
    elif isinstance(message, Take):
        request.take.CopyFrom(
            pb.Take(
                cls=message.cls,
                lap=message.lap,
                most=message.most,
                room_bytes=message.room_bytes,
                again=message.again,
                done=message.done,
            )
        )
    else:
        raise TypeError(f"no way to send a {type(message).__name__}")
    return request.SerializeToString()


def asked(request: pb.AskRequest, home: int) -> Message:
    """The message in an AskRequest to ``home``."""
    requester, number, settled = request.caller.node, request.number, request.settled
    if settled > number:
        raise ValueError(f"message {number} says that it is answered itself")
    kind = request.WhichOneof("body")
    if kind == "remote_read":
        read = request.remote_read
        return RemoteRead(
            requester=requester,
            home=home,
            number=number,
            settled=settled,
            sample=read.sample,
            epoch=read.epoch,
            position=read.position,
            room_bytes=read.room_bytes,
            hits=tuple(Hit(hit.sample, hit.position) for hit in read.hits),
            passed=tuple(read.passed),
        )
    if kind == "take":
        take = request.take
        return Take(
            requester=requester,
            home=home,
            number=number,
            settled=settled,
            cls=take.cls,
            lap=take.lap,
            most=take.most,
            room_bytes=take.room_bytes,
            again=take.again,
            done=take.done,
        )
    raise ValueError("a message of no kind that is known here")


def reply_head(answer: Answer, payloads: Sequence[Payload], cut: Cut) -> bytes:
    """An AskReply without its payload.

    Raises:
        ValueError: there are more samples or files than a header may describe.
    """
    if len(payloads) != len(answer.samples):
        raise ValueError(f"an answer of {len(answer.samples)} samples with the bytes of {len(payloads)}")
    files = [file for payload in payloads for file in payload]
    read = [file if isinstance(file, FileBytes) else _NO_FILE for file in files]
    stamps = [file.stamp for file in read]
    header = pb.Header(
        file_counts=list(map(len, payloads)),
        lengths=[len(file.data) for file in read],
        sizes=[stamp.size for stamp in stamps],
        mtimes_ns=[stamp.mtime_ns for stamp in stamps],
        inodes=[stamp.inode for stamp in stamps],
        changed=[file.changed for file in read],
        problems=[_problem(at, file) for at, file in enumerate(files) if isinstance(file, OSError)],
        total_bytes=cut.total_bytes,
        part_count=cut.part_count,
    )
    if isinstance(answer, RemoteAnswer):
        header.remote_answer.CopyFrom(pb.RemoteAnswer(sample=answer.sample, prefetched=answer.prefetched))
    elif isinstance(answer, Given):
        header.given.CopyFrom(
            pb.Given(cls=answer.cls, lap=answer.lap, samples=answer.samples, left=answer.left, done=answer.done)
        )
    else:
        raise TypeError(f"no way to send a {type(answer).__name__}")
    head = pb.AskReply(header=header).SerializeToString()
    if len(head) > HEADER_LIMIT_BYTES:
        raise ValueError(f"a header of {len(head)} bytes, more than {HEADER_LIMIT_BYTES}: too many files in one answer")
    return head


def received(data: bytes, message: Message) -> tuple[Received, memoryview]:
    """What an AskReply to ``message`` says, and its part 0."""
    head, payload = split_payload(data)
    if len(head) > HEADER_LIMIT_BYTES:
        raise ValueError(f"a header of {len(head)} bytes, more than {HEADER_LIMIT_BYTES}")
    header = parse(pb.AskReply, head).header
    kind = header.WhichOneof("answer")
    answer: Answer
    if kind == "remote_answer" and isinstance(message, RemoteRead):
        told = header.remote_answer
        sample = told.sample if told.HasField("sample") else None
        answer = RemoteAnswer(message.home, message.number, sample, tuple(told.prefetched))
    elif kind == "given" and isinstance(message, Take):
        given = header.given
        answer = Given(
            home=message.home,
            number=message.number,
            cls=given.cls,
            lap=given.lap,
            samples=tuple(given.samples),
            left=given.left,
            done=given.done,
        )
    else:
        raise ValueError(f"a {type(message).__name__} was answered with {kind or 'nothing'}")
    samples = _samples(header)
    if len(samples) != len(answer.samples):
        raise ValueError(f"an answer of {len(answer.samples)} samples with the files of {len(samples)}")
    sizes = tuple(sum(head.length for head in sample if isinstance(head, FileHead)) for sample in samples)
    total_bytes = sum(sizes)
    if header.total_bytes != total_bytes or header.part_count != part_count(total_bytes):
        raise ValueError(
            f"files of {total_bytes} bytes in all, said to be {header.total_bytes} in {header.part_count} parts"
        )
    return Received(answer, samples, sizes), payload


def _problem(at: int, error: OSError) -> pb.Problem:
    # A name in it need not be text.
    text = (error.strerror or str(error)).encode(errors="replace").decode()
    return pb.Problem(file=at, errno=error.errno or errno.EIO, text=text[:ERROR_CHARACTERS])


def _samples(header: pb.Header) -> tuple[SampleHead, ...]:
    """What the columns of a header say of each sample."""
    columns = (header.lengths, header.sizes, header.mtimes_ns, header.inodes, header.changed)
    ends = list(accumulate(header.file_counts, initial=0))
    if any(len(column) != ends[-1] for column in columns):
        raise ValueError(f"samples of {ends[-1]} files, with {' and '.join(str(len(c)) for c in columns)} of a kind")
    files: list[FileHead | OSError] = [
        FileHead(length, Stamp(size, mtime_ns, inode), changed)
        for length, size, mtime_ns, inode, changed in zip(*columns, strict=True)
    ]
    for problem in header.problems:
        at = problem.file
        if at >= len(files) or header.lengths[at] or not problem.errno:
            raise ValueError(f"file {at} of {len(files)} has bytes, or no error, and should have an error alone")
        number = problem.errno if problem.errno in errno.errorcode else errno.EIO
        files[at] = OSError(number, problem.text or os.strerror(number))
    return tuple(tuple(files[first:after]) for first, after in pairwise(ends))
