from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Introduction(_message.Message):
    __slots__ = ("version", "node", "nodes", "incarnation", "view", "view_digest", "dataset", "settings", "beginning", "joined", "origin")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    VIEW_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    BEGINNING_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    version: int
    node: int
    nodes: int
    incarnation: int
    view: int
    view_digest: str
    dataset: str
    settings: _containers.ScalarMap[str, str]
    beginning: str
    joined: bool
    origin: str
    def __init__(self, version: _Optional[int] = ..., node: _Optional[int] = ..., nodes: _Optional[int] = ..., incarnation: _Optional[int] = ..., view: _Optional[int] = ..., view_digest: _Optional[str] = ..., dataset: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., beginning: _Optional[str] = ..., joined: _Optional[bool] = ..., origin: _Optional[str] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("caller", "joins")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    caller: Introduction
    joins: bool
    def __init__(self, caller: _Optional[_Union[Introduction, _Mapping]] = ..., joins: _Optional[bool] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("callee", "differences", "succeeds", "begun")
    CALLEE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    callee: Introduction
    differences: _containers.RepeatedCompositeFieldContainer[Difference]
    succeeds: bool
    begun: bytes
    def __init__(self, callee: _Optional[_Union[Introduction, _Mapping]] = ..., differences: _Optional[_Iterable[_Union[Difference, _Mapping]]] = ..., succeeds: _Optional[bool] = ..., begun: _Optional[bytes] = ...) -> None: ...

class Difference(_message.Message):
    __slots__ = ("field", "caller", "callee")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CALLEE_FIELD_NUMBER: _ClassVar[int]
    field: str
    caller: str
    callee: str
    def __init__(self, field: _Optional[str] = ..., caller: _Optional[str] = ..., callee: _Optional[str] = ...) -> None: ...

class Caller(_message.Message):
    __slots__ = ("node", "incarnation", "view", "callee")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    CALLEE_FIELD_NUMBER: _ClassVar[int]
    node: int
    incarnation: int
    view: int
    callee: int
    def __init__(self, node: _Optional[int] = ..., incarnation: _Optional[int] = ..., view: _Optional[int] = ..., callee: _Optional[int] = ...) -> None: ...

class AskRequest(_message.Message):
    __slots__ = ("caller", "number", "settled", "remote_read", "take")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    REMOTE_READ_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    number: int
    settled: int
    remote_read: RemoteRead
    take: Take
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., number: _Optional[int] = ..., settled: _Optional[int] = ..., remote_read: _Optional[_Union[RemoteRead, _Mapping]] = ..., take: _Optional[_Union[Take, _Mapping]] = ...) -> None: ...

class RemoteRead(_message.Message):
    __slots__ = ("sample", "epoch", "position", "room_bytes", "hits", "passed")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    sample: int
    epoch: int
    position: int
    room_bytes: int
    hits: _containers.RepeatedCompositeFieldContainer[Hit]
    passed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sample: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., room_bytes: _Optional[int] = ..., hits: _Optional[_Iterable[_Union[Hit, _Mapping]]] = ..., passed: _Optional[_Iterable[int]] = ...) -> None: ...

class Hit(_message.Message):
    __slots__ = ("sample", "position")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    sample: int
    position: int
    def __init__(self, sample: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class Take(_message.Message):
    __slots__ = ("cls", "lap", "most", "room_bytes", "again", "done", "epoch", "anyway", "turn", "since", "holds")
    CLS_FIELD_NUMBER: _ClassVar[int]
    LAP_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ANYWAY_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    cls: int
    lap: int
    most: int
    room_bytes: int
    again: int
    done: int
    epoch: int
    anyway: bool
    turn: int
    since: int
    holds: bool
    def __init__(self, cls: _Optional[int] = ..., lap: _Optional[int] = ..., most: _Optional[int] = ..., room_bytes: _Optional[int] = ..., again: _Optional[int] = ..., done: _Optional[int] = ..., epoch: _Optional[int] = ..., anyway: _Optional[bool] = ..., turn: _Optional[int] = ..., since: _Optional[int] = ..., holds: _Optional[bool] = ...) -> None: ...

class AskReply(_message.Message):
    __slots__ = ("header", "number", "refusal", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: Header
    number: int
    refusal: Refusal
    payload: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., number: _Optional[int] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: int
    text: str
    def __init__(self, code: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("remote_answer", "given", "file_counts", "lengths", "sizes", "mtimes_ns", "inodes", "changed", "problems", "total_bytes", "part_count")
    REMOTE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    MTIMES_NS_FIELD_NUMBER: _ClassVar[int]
    INODES_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_COUNT_FIELD_NUMBER: _ClassVar[int]
    remote_answer: RemoteAnswer
    given: Given
    file_counts: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    mtimes_ns: _containers.RepeatedScalarFieldContainer[int]
    inodes: _containers.RepeatedScalarFieldContainer[int]
    changed: _containers.RepeatedScalarFieldContainer[bool]
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    total_bytes: int
    part_count: int
    def __init__(self, remote_answer: _Optional[_Union[RemoteAnswer, _Mapping]] = ..., given: _Optional[_Union[Given, _Mapping]] = ..., file_counts: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., mtimes_ns: _Optional[_Iterable[int]] = ..., inodes: _Optional[_Iterable[int]] = ..., changed: _Optional[_Iterable[bool]] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., total_bytes: _Optional[int] = ..., part_count: _Optional[int] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("file", "errno", "text")
    FILE_FIELD_NUMBER: _ClassVar[int]
    ERRNO_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    file: int
    errno: int
    text: str
    def __init__(self, file: _Optional[int] = ..., errno: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class RemoteAnswer(_message.Message):
    __slots__ = ("sample", "prefetched", "laps")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_FIELD_NUMBER: _ClassVar[int]
    LAPS_FIELD_NUMBER: _ClassVar[int]
    sample: int
    prefetched: _containers.RepeatedScalarFieldContainer[int]
    laps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sample: _Optional[int] = ..., prefetched: _Optional[_Iterable[int]] = ..., laps: _Optional[_Iterable[int]] = ...) -> None: ...

class Given(_message.Message):
    __slots__ = ("cls", "lap", "samples", "left", "done", "epoch", "again", "oldest", "since", "holds")
    CLS_FIELD_NUMBER: _ClassVar[int]
    LAP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    cls: int
    lap: int
    samples: _containers.RepeatedScalarFieldContainer[int]
    left: int
    done: int
    epoch: int
    again: int
    oldest: int
    since: int
    holds: bool
    def __init__(self, cls: _Optional[int] = ..., lap: _Optional[int] = ..., samples: _Optional[_Iterable[int]] = ..., left: _Optional[int] = ..., done: _Optional[int] = ..., epoch: _Optional[int] = ..., again: _Optional[int] = ..., oldest: _Optional[int] = ..., since: _Optional[int] = ..., holds: _Optional[bool] = ...) -> None: ...

class PartRequest(_message.Message):
    __slots__ = ("caller", "number", "part")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    number: int
    part: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., number: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class PartReply(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("caller", "serial", "epoch", "total_bytes", "offset", "payload")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    serial: int
    epoch: int
    total_bytes: int
    offset: int
    payload: bytes
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., serial: _Optional[int] = ..., epoch: _Optional[int] = ..., total_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class FollowReply(_message.Message):
    __slots__ = ("received_bytes",)
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    received_bytes: int
    def __init__(self, received_bytes: _Optional[int] = ...) -> None: ...

class TurnsRequest(_message.Message):
    __slots__ = ("caller", "now", "offset")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    now: bool
    offset: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., now: _Optional[bool] = ..., offset: _Optional[int] = ...) -> None: ...

class TurnsReply(_message.Message):
    __slots__ = ("total_bytes", "payload")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    payload: bytes
    def __init__(self, total_bytes: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class RereadRequest(_message.Message):
    __slots__ = ("caller", "sample", "part")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    sample: int
    part: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., sample: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class RereadReply(_message.Message):
    __slots__ = ("header", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: Header
    payload: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...
