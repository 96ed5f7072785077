"""The client SDK: requests over Kafka, reads over HTTP, bytes over TCP, load generators, and ingest of directory trees.

What belongs here: everything that a program needs in order to *use* a cluster (design, sections 2, 4 and 5). The
package imports only ``schemas``, and installs without Spark, Faust or RocksDB. Start with :class:`Client`.

    requests   calls over Kafka        reads   lookups and listings over HTTP
    blocks     bytes to datanodes      files   keys as files              bulk   trees, loads
"""

from producers.async_client import AsyncClient
from producers.blocks.core.write_ways import CommitWay
from producers.blocks.stream_options import StreamOptions
from producers.client import Client
from producers.errors import (
    ClientClosed,
    DatanodeError,
    Exists,
    InvalidArgument,
    NotConnected,
    NotFound,
    OutcomeUnknown,
    RequestFailed,
    RetryableError,
    StratologError,
    TooManyInFlight,
)
from producers.files.async_key_files import AsyncKeyFile
from producers.files.key_files import (
    KeyInput,
    KeyOutput,
)
from producers.reads.read_views import (
    AclView,
    BucketView,
    KeyView,
    ListedBucket,
    ListedVolume,
    SnapshotDiffEntry,
    SnapshotView,
    UsageView,
    View,
    VolumeView,
)
from producers.reads.reads import Consistency
from producers.reads.snapshot_diffs import SnapshotDiffProgress
from schemas.access.credentials import Credentials, parse_credentials
from schemas.privilege import ClusterSecret
from schemas.records.messages import (
    UNLIMITED,
    AllocateBlock,
    CommitKey,
    CreateBucket,
    CreatedSnapshot,
    CreateKey,
    CreateSnapshot,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    DeleteSnapshot,
    DeleteVolume,
    KeySession,
    LogDigestBase,
    PutKey,
    RenameKey,
    RenameSnapshot,
    RequestBody,
    Response,
    SetBucketProperty,
    SetSnapshotProperty,
    SetVolumeProperty,
)
from schemas.records.rows import (
    BlockLocation,
    BucketInfo,
    KeyInfo,
    SnapshotInfo,
    VolumeInfo,
)
from schemas.security.tls import TlsFiles

__all__ = [
    "AclView",
    "AllocateBlock",
    "AsyncClient",
    "AsyncKeyFile",
    "BlockLocation",
    "BucketInfo",
    "BucketView",
    "Client",
    "ClientClosed",
    "ClusterSecret",
    "CommitKey",
    "CommitWay",
    "Consistency",
    "CreateBucket",
    "CreateKey",
    "CreateSnapshot",
    "CreateVolume",
    "CreatedSnapshot",
    "Credentials",
    "DatanodeError",
    "DeleteBucket",
    "DeleteKey",
    "DeleteSnapshot",
    "DeleteVolume",
    "Exists",
    "InvalidArgument",
    "KeyInfo",
    "KeyInput",
    "KeyOutput",
    "KeySession",
    "KeyView",
    "ListedBucket",
    "ListedVolume",
    "LogDigestBase",
    "NotConnected",
    "NotFound",
    "OutcomeUnknown",
    "PutKey",
    "RenameKey",
    "RenameSnapshot",
    "RequestBody",
    "RequestFailed",
    "Response",
    "RetryableError",
    "SetBucketProperty",
    "SetSnapshotProperty",
    "SetVolumeProperty",
    "SnapshotDiffEntry",
    "SnapshotDiffProgress",
    "SnapshotInfo",
    "SnapshotView",
    "StratologError",
    "StreamOptions",
    "TlsFiles",
    "TooManyInFlight",
    "UNLIMITED",
    "UsageView",
    "View",
    "VolumeInfo",
    "VolumeView",
    "parse_credentials",
]
