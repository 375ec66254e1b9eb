"""The core's messages and answers as protobuf, and back.

Messages of peers are checked before they become objects: that they can be parsed, that their fields agree and are
within limits, and, where `Bounds` are known, that everything they name exists. A message that fails is a ValueError.
So no message can break the core. Beyond that the core trusts its peers.
"""

import errno
import os
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from redoxfs.chunks.store import FileBytes, Payload, Stamp
from redoxfs.peers.bounds import (
    LONGEST_BYTES,
    MOST_FAILED_FILES,
    MOST_FILES,
    MOST_HITS,
    SIGNED,
    SIGNED_32,
    Bounds,
    check_below,
    check_hello_reply,
    check_introduction,
    check_laps,
)
from redoxfs.peers.channel import HEADER_LIMIT_BYTES, one_line
from redoxfs.peers.fields import split_payload
from redoxfs.peers.parts import Cut, FileHead, SampleHead, part_count
from redoxfs.peers.v1 import peers_pb2 as pb
from redoxfs.protocol import Given, Hit, RemoteAnswer, RemoteRead, Take
from redoxfs.protocol.events import Answer, Message
from redoxfs.protocol.trace import OFF_TRACE

ERROR_CHARACTERS = 200
"""The most characters of an error's text that are sent; it names a file and the problem."""

_NO_FILE = FileBytes(b"", Stamp(0, 0, 0), changed=False)

M = TypeVar("M", bound=Proto)


class TooManyFilesError(ValueError):
    """An answer cannot be sent, now or ever."""


class Received(NamedTuple):
    """An answer without its bytes: the files of each of its samples, and the size of each sample in bytes."""

    answer: Answer
    samples: tuple[SampleHead, ...]
    sizes: tuple[int, ...]


def parse(kind: type[M], data: bytes | memoryview) -> M:
    """A message of ``kind``. Raises ValueError."""
    longest = LONGEST_BYTES.get(kind)
    if longest is not None and len(data) > longest:
        raise ValueError(f"a {kind.__name__} of {len(data)} bytes, more than {longest}")
    try:
        message = kind.FromString(bytes(data))
    except DecodeError as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from None
    if isinstance(message, pb.HelloRequest):
        check_introduction(message.caller)
    elif isinstance(message, pb.HelloReply):
        check_hello_reply(message)
    return message


def ask(caller: pb.Caller, message: Message, acked_below: int | None = None) -> bytes:
    """An AskRequest. ``acked_below`` replaces the message's own if bytes of earlier answers have not arrived yet."""
    acked_below = message.acked_below if acked_below is None else acked_below
    request = pb.AskRequest(caller=caller, number=message.number, settled=acked_below)
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
                most=message.max_samples,
                room_bytes=message.room_bytes,
                again=message.attempt,
                done=message.done,
                epoch=message.epoch,
                turn=message.turn,
                since=message.since,
                anyway=message.anyway,
                holds=message.holds,
            )
        )
    else:
        raise TypeError(f"no way to send a {type(message).__name__}")
    return request.SerializeToString()


def asked(request: pb.AskRequest, home: int, bounds: Bounds) -> Message:
    """The message in an AskRequest to ``home``. Raises ValueError if it is malformed or out of ``bounds``."""
    requester, number, acked_below = request.caller.node, request.number, request.settled
    check_below(SIGNED, number=number)
    if acked_below > number:
        raise ValueError(f"message {number} acknowledges its own answer")
    kind = request.WhichOneof("body")
    message: Message
    if kind == "remote_read":
        read = request.remote_read
        for what, count in (("hits", len(read.hits)), ("positions passed", len(read.passed))):
            if count > MOST_HITS:
                raise ValueError(f"a message with {count} {what}, more than {MOST_HITS}")
        check_below(SIGNED, epoch=read.epoch, room_bytes=read.room_bytes)
        message = RemoteRead(
            requester=requester,
            home=home,
            number=number,
            acked_below=acked_below,
            sample=read.sample,
            epoch=read.epoch,
            position=read.position,
            room_bytes=read.room_bytes,
            hits=tuple(Hit(hit.sample, hit.position) for hit in read.hits),
            passed=tuple(read.passed),
        )
        if min(read.position, *(hit.position for hit in message.hits), 0) < OFF_TRACE:
            raise ValueError(f"a position below {OFF_TRACE}")
    elif kind == "take":
        take = request.take
        check_below(SIGNED, room_bytes=take.room_bytes)
        check_below(SIGNED_32, cls=take.cls, most=take.most, again=take.again, done=take.done)
        check_below(SIGNED_32, epoch=take.epoch, turn=take.turn, since=take.since)
        check_laps((take.lap,))
        message = Take(
            requester=requester,
            home=home,
            number=number,
            acked_below=acked_below,
            cls=take.cls,
            lap=take.lap,
            max_samples=take.most,
            room_bytes=take.room_bytes,
            attempt=take.again,
            done=take.done,
            epoch=take.epoch,
            turn=take.turn,
            since=take.since,
            anyway=take.anyway,
            holds=take.holds,
        )
    else:
        raise ValueError("a message of an unknown kind")
    if type(message) not in bounds.kinds:
        raise ValueError(f"a {type(message).__name__}, which the policy of this job does not know")
    if isinstance(message, RemoteRead):
        bounds.check_samples((message.sample, *(hit.sample for hit in message.hits)), home)
    else:
        bounds.check_class(message.cls)
    return message


def reply_head(answer: Answer | None, payloads: Sequence[Payload], cut: Cut) -> bytes:
    """An AskReply without its payload; without an answer, a RereadReply.

    Raises:
        TooManyFilesError: there are more files than a header may describe.
    """
    if answer is not None and len(payloads) != len(answer.samples):
        raise ValueError(f"an answer of {len(answer.samples)} samples with the bytes of {len(payloads)}")
    files = [file for payload in payloads for file in payload]
    if len(files) > MOST_FILES:
        raise TooManyFilesError(f"an answer of {len(files)} files, more than {MOST_FILES}")
    reply, header = _begun(answer, payloads, cut.part_count)
    if files:
        data, stamps, changed = zip(*[file if isinstance(file, FileBytes) else _NO_FILE for file in files], strict=True)
        sizes, mtimes_ns, inodes = zip(*stamps, strict=True)
        header.lengths.extend(map(len, data))
        header.sizes.extend(sizes)
        header.mtimes_ns.extend(mtimes_ns)
        header.inodes.extend(inodes)
        header.changed.extend(changed)
        header.problems.extend([_problem(at, file) for at, file in enumerate(files) if isinstance(file, OSError)])
    header.total_bytes = cut.total_bytes
    return _serialized(reply)


def failed_head(answer: Answer | None, payloads: Sequence[Payload], error: OSError) -> bytes:
    """As `reply_head`, of an answer that cannot be sent: all of its files have ``error``, which is sent once.

    Raises:
        TooManyFilesError: there are too many files even for that.
    """
    files = sum(map(len, payloads))
    if files > MOST_FAILED_FILES:
        raise TooManyFilesError(f"an answer of {files} files, more than {MOST_FAILED_FILES}")
    reply, header = _begun(answer, payloads, 1)
    if files:
        header.problems.append(_problem(0, error))
    return _serialized(reply)


def _begun(
    answer: Answer | None, payloads: Sequence[Payload], parts: int
) -> tuple[pb.AskReply | pb.RereadReply, pb.Header]:
    """A reply, and the header in it. It is filled in where it is: protobuf would copy one that is handed in."""
    reply = pb.RereadReply() if answer is None else pb.AskReply(number=answer.number)
    header = reply.header
    header.file_counts.extend(map(len, payloads))
    header.part_count = parts
    if isinstance(answer, RemoteAnswer):
        remote = header.remote_answer
        remote.SetInParent()
        if answer.sample is not None:
            remote.sample = answer.sample
        remote.prefetched.extend(answer.prefetched)
        remote.laps.extend(answer.laps)
    elif isinstance(answer, Given):
        given = header.given
        given.cls, given.lap, given.left, given.done = answer.cls, answer.lap, answer.left, answer.done
        given.samples.extend(answer.samples)
        given.epoch, given.again, given.oldest = answer.epoch, answer.again, answer.oldest
        given.since, given.holds = answer.since, answer.holds
    elif answer is not None:
        raise TypeError(f"no way to send a {type(answer).__name__}")
    return reply, header


def _serialized(reply: pb.AskReply | pb.RereadReply) -> bytes:
    head = reply.SerializeToString()
    if len(head) > HEADER_LIMIT_BYTES:
        raise TooManyFilesError(
            f"a header of {len(head)} bytes, more than {HEADER_LIMIT_BYTES}: too many files in one answer"
        )
    return head


def refused_head(number: int, code: int, why: str) -> bytes:
    """An AskReply that says why there is no answer to message ``number``."""
    return pb.AskReply(number=number, refusal=pb.Refusal(code=code, text=one_line(why))).SerializeToString()


def replied(data: bytes) -> tuple[pb.AskReply, memoryview]:
    """An AskReply without its payload, and the payload. Raises ValueError."""
    head, payload = _split(data)
    return parse(pb.AskReply, head), payload


def received(reply: pb.AskReply, message: Message, bounds: Bounds) -> Received:
    """The answer in an AskReply to ``message``. Raises ValueError."""
    header = reply.header
    kind = header.WhichOneof("answer")
    answer: Answer
    if kind == "remote_answer" and isinstance(message, RemoteRead):
        remote = header.remote_answer
        if len(remote.prefetched) > MOST_FILES:
            raise ValueError(f"{len(remote.prefetched)} samples sent ahead, more than {MOST_FILES}")
        sample = remote.sample if remote.HasField("sample") else None
        answer = RemoteAnswer(message.home, message.number, sample, tuple(remote.prefetched), tuple(remote.laps))
        if len(answer.laps) != len(answer.samples):
            raise ValueError(f"{len(answer.samples)} samples of {len(answer.laps)} laps")
        check_laps(answer.laps)
    elif kind == "given" and isinstance(message, Take):
        given = header.given
        # A reserved sample comes even if there is room for none.
        if len(given.samples) > max(1, message.max_samples):
            raise ValueError(f"{len(given.samples)} samples, where {message.max_samples} were asked for")
        check_below(SIGNED_32, cls=given.cls, left=given.left, done=given.done)
        check_below(SIGNED_32, epoch=given.epoch, again=given.again, oldest=given.oldest, since=given.since)
        check_laps((given.lap,))
        answer = Given(
            home=message.home,
            number=message.number,
            cls=given.cls,
            lap=given.lap,
            samples=tuple(given.samples),
            left=given.left,
            done=given.done,
            epoch=given.epoch,
            again=given.again,
            oldest=given.oldest,
            since=given.since,
            holds=given.holds,
        )
    else:
        raise ValueError(f"a {type(message).__name__} was answered with {kind or 'nothing'}")
    bounds.check_samples(answer.samples, message.home)
    if isinstance(answer, Given) and isinstance(message, Take):
        bounds.check_given(message.cls, answer.cls, answer.samples)
    if len(header.file_counts) != len(answer.samples):
        raise ValueError(f"an answer of {len(answer.samples)} samples with the files of {len(header.file_counts)}")
    return Received(answer, *_announced(header))


def reread(data: bytes) -> tuple[SampleHead, int, memoryview]:
    """The sample in a RereadReply, its size in bytes, and its part 0. Raises ValueError."""
    head, payload = _split(data)
    header = parse(pb.RereadReply, head).header
    if len(header.file_counts) != 1:
        raise ValueError(f"{len(header.file_counts)} samples, where one was asked for")
    (sample,), (size,) = _announced(header)
    return sample, size, payload


def _split(data: bytes) -> tuple[memoryview, memoryview]:
    """The header and part 0 of a reply. Raises ValueError."""
    head, payload = split_payload(data)
    if len(head) > HEADER_LIMIT_BYTES:
        raise ValueError(f"a header of {len(head)} bytes, more than {HEADER_LIMIT_BYTES}")
    return head, payload


def _announced(header: pb.Header) -> tuple[tuple[SampleHead, ...], tuple[int, ...]]:
    """The files of each sample, and the size of each sample in bytes. Raises ValueError."""
    samples = _samples(header)
    sizes = tuple([sum([head.length for head in sample if isinstance(head, FileHead)]) for sample in samples])
    total_bytes = sum(sizes)
    if header.total_bytes != total_bytes or header.part_count != part_count(total_bytes):
        raise ValueError(
            f"files of {total_bytes} bytes in all, said to be {header.total_bytes} in {header.part_count} parts"
        )
    return samples, sizes


def _problem(at: int, error: OSError) -> pb.Problem:
    # A file name in it may be invalid UTF-8.
    text = (error.strerror or str(error)).encode(errors="replace").decode()
    return pb.Problem(file=at, errno=error.errno or errno.EIO, text=text[:ERROR_CHARACTERS])


def _samples(header: pb.Header) -> tuple[SampleHead, ...]:
    """The files of each sample, from the columns of a header."""
    files_failed = _failed(header)
    if files_failed is not None:
        return files_failed
    columns = (header.lengths, header.sizes, header.mtimes_ns, header.inodes, header.changed)
    ends = list(accumulate(header.file_counts, initial=0))
    if any(len(column) != ends[-1] for column in columns):
        raise ValueError(f"samples of {ends[-1]} files, with {' and '.join(str(len(c)) for c in columns)} of a kind")
    if ends[-1] > MOST_FILES or len(header.problems) > ends[-1]:
        raise ValueError(f"an answer of {ends[-1]} files with {len(header.problems)} problems")
    stamps = map(Stamp, header.sizes, header.mtimes_ns, header.inodes)
    files: list[FileHead | OSError] = list(map(FileHead, header.lengths, stamps, header.changed))
    for problem in header.problems:
        at = problem.file
        if at >= len(files) or header.lengths[at] or not problem.errno:
            raise ValueError(f"file {at} of {len(files)} has bytes, or no error, and should have an error alone")
        files[at] = _error(problem)
    return tuple(tuple(files[first:after]) for first, after in pairwise(ends))


def _failed(header: pb.Header) -> tuple[SampleHead, ...] | None:
    """The samples of an answer that could not be sent; None if this is not such an answer."""
    columns = (header.lengths, header.sizes, header.mtimes_ns, header.inodes, header.changed)
    if any(columns) or len(header.problems) != 1 or header.problems[0].file or not header.problems[0].errno:
        return None
    files = sum(header.file_counts)
    if not 0 < files <= MOST_FAILED_FILES:
        raise ValueError(f"an answer of {files} files that failed")
    error = _error(header.problems[0])
    return tuple((error,) * count for count in header.file_counts)


def _error(problem: pb.Problem) -> OSError:
    number = problem.errno if problem.errno in errno.errorcode else errno.EIO
    return OSError(number, one_line(problem.text[:ERROR_CHARACTERS]) or os.strerror(number))
