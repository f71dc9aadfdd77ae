"""The C library's interface, made from its headers by scripts/python_abi.py: do not edit.

Structs are ctypes.Structure classes, named by what follows onehop_, in capitals and lower case;
enumerators and numeric macros are constants without ONEHOP_. Opaque handles are c_void_p. FORMATS
has the struct module's format of each struct that holds nothing but numbers and pointers, STATUSES
the table of status.h, and FUNCTIONS the result and arguments of each function.
"""
from __future__ import annotations

import ctypes
from ctypes import (POINTER, Structure, c_char, c_char_p, c_double, c_int32, c_int64, c_uint8,
                    c_uint16, c_uint32, c_uint64, c_void_p)
from typing import Any, Final

AUTO: Final = 18446744073709551614
FOREVER: Final = 18446744073709551615
NO_NAME: Final = 4294967295
NO_TIME: Final = -9223372036854775808
PIPELINE_PLACES_MOST: Final = 1024
SHAPE_INLINE: Final = 8
UNSET: Final = 18446744073709551615
VERSION_MAJOR: Final = 0
VERSION_MINOR: Final = 1
VERSION_PATCH: Final = 0

# enum onehop_status_code
OK: Final = 0
INVALID_ARGUMENT: Final = 101
UNKNOWN_OPTION: Final = 102
OUT_OF_RANGE: Final = 103
NO_SUCH_TENSOR: Final = 104
NO_MEMORY: Final = 201
NO_DEVICE_MEMORY: Final = 202
LIMIT: Final = 203
UNSUPPORTED: Final = 301
NO_DEVICE: Final = 302
NO_ROUTE: Final = 303
IO: Final = 401
NOT_FOUND: Final = 402
ACCESS: Final = 403
FILE_CHANGED: Final = 404
MALFORMED: Final = 501
UNSUPPORTED_DATA: Final = 502
MISMATCH: Final = 503
BUSY: Final = 601
CANCELLED: Final = 602
TIMED_OUT: Final = 603
FORKED: Final = 604
END: Final = 605
DRIVER: Final = 701
DEVICE_LOST: Final = 702

# enum onehop_route
ROUTE_BUFFERED: Final = 0
ROUTE_DIRECT: Final = 1
ROUTE_MAPPED: Final = 2
ROUTE_COUNT: Final = 3

# enum onehop_cache
CACHE_KEEP: Final = 0
CACHE_BYPASS: Final = 1
CACHE_DROP: Final = 2
CACHE_COUNT: Final = 3

# enum onehop_look
LOOK_ALWAYS: Final = 0
LOOK_COUNT: Final = 1

# enum onehop_reason
REASON_SMALL_PIECES: Final = 1
REASON_NO_BATCH_COPY: Final = 2
REASON_ROUTE_FORCED: Final = 4
REASON_NOT_RESIDENT: Final = 8
REASON_TOO_LARGE_TO_KEEP: Final = 16
REASON_RESIDENCY_UNKNOWN: Final = 32
REASON_NO_DIRECT: Final = 64
REASON_ROWS: Final = 128
REASON_NETWORK: Final = 256
REASON_CACHE_OPTION: Final = 512
REASON_FEW_CORES: Final = 1024

# enum onehop_start_flags
START_AFTER_STREAM: Final = 1

# enum onehop_align
ALIGN_NONE: Final = 0
ALIGN_MEMBER: Final = 1
ALIGN_SAMPLE: Final = 2

# enum onehop_pad
PAD_GNU: Final = 0
PAD_PAX: Final = 1
PAD_DIR: Final = 2

# enum onehop_shuffle
SHUFFLE_NONE: Final = 0
SHUFFLE_SHARD: Final = 1
SHUFFLE_BLOCK: Final = 2
SHUFFLE_SAMPLE: Final = 3

# enum onehop_remainder
REMAINDER_DROP: Final = 0
REMAINDER_PAD: Final = 1
REMAINDER_UNEVEN: Final = 2

# enum onehop_damage
DAMAGE_REFUSE: Final = 0
DAMAGE_SKIP: Final = 1

# enum onehop_dl_device
DL_CPU: Final = 1
DL_CUDA: Final = 2

# enum onehop_export_flags
EXPORT_READ_ONLY: Final = 1
EXPORT_COPIED: Final = 2
EXPORT_OLD: Final = 4

# enum onehop_pressure_known
PRESSURE_THROTTLED: Final = 1
PRESSURE_IO: Final = 2
PRESSURE_MEMORY: Final = 4
PRESSURE_GROUP_IO: Final = 8
PRESSURE_GROUP_MEMORY: Final = 16

# enum onehop_tp_uneven
TP_REFUSE: Final = 0
TP_SPLIT: Final = 1


class Error(Structure):
    """struct onehop_error"""

    _fields_ = [
        ("status", c_int32),
        ("os_errno", c_int32),
        ("driver_code", c_int32),
        ("http_status", c_int32),
        ("message", c_char * 768),
        ("remedy", c_char * 240),
    ]


class RuntimeOptions(Structure):
    """struct onehop_runtime_options"""

    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("threads", c_uint64),
        ("ranks_per_node", c_uint64),
        ("ring_bytes", c_uint64),
        ("block_bytes", c_uint64),
        ("slice_bytes", c_uint64),
        ("pinned_limit_bytes", c_uint64),
        ("buffer_limit_bytes", c_uint64),
        ("route", c_uint64),
        ("cache", c_uint64),
        ("look", c_uint64),
    ]


class OptionValue(Structure):
    """struct onehop_option_value"""

    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("name", c_void_p),
        ("value", c_void_p),
        ("origin", c_void_p),
        ("unit", c_void_p),
        ("fallback", c_void_p),
        ("range", c_void_p),
        ("doc", c_void_p),
    ]


class RuntimeInfo(Structure):
    """struct onehop_runtime_info"""

    _fields_ = [
        ("size", c_uint32),
        ("usable_cores", c_uint32),
        ("threads", c_uint64),
        ("ring_bytes", c_uint64),
        ("pinned_bytes", c_uint64),
        ("pinned_peak_bytes", c_uint64),
        ("l3_bytes", c_uint64),
        ("memory_bytes", c_uint64),
        ("file_pinned_bytes", c_uint64),
        ("buffer_pinned_bytes", c_uint64),
    ]


class DeviceInfo(Structure):
    """struct onehop_device_info"""

    _fields_ = [
        ("size", c_uint32),
        ("pointer_bits", c_uint32),
        ("name", c_char * 128),
        ("uuid", c_char * 48),
        ("pci", c_char * 32),
        ("driver", c_char * 64),
        ("total_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("batch_copy", c_uint32),
        ("reserved", c_uint32),
    ]


class BufferInfo(Structure):
    """struct onehop_buffer_info"""

    _fields_ = [
        ("size", c_uint32),
        ("owned", c_uint32),
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("device", c_void_p),
        ("exports", c_uint64),
    ]


class FileInfo(Structure):
    """struct onehop_file_info"""

    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("path", c_void_p),
        ("bytes", c_uint64),
    ]


class Extent(Structure):
    """struct onehop_extent"""

    _fields_ = [
        ("file", c_void_p),
        ("offset", c_uint64),
        ("row_bytes", c_uint64),
        ("rows", c_uint64),
        ("row_stride", c_uint64),
        ("buffer", c_void_p),
        ("buffer_offset", c_uint64),
        ("name", c_void_p),
    ]


class Segment(Structure):
    """struct onehop_segment"""

    _fields_ = [
        ("size", c_uint32),
        ("route", c_uint32),
        ("reasons", c_uint32),
        ("staged", c_uint32),
        ("path", c_void_p),
        ("offset", c_uint64),
        ("row_bytes", c_uint64),
        ("rows", c_uint64),
        ("row_stride", c_uint64),
        ("pieces", c_uint64),
    ]


class PlanInfo(Structure):
    """struct onehop_plan_info"""

    _fields_ = [
        ("size", c_uint32),
        ("reasons", c_uint32),
        ("bytes", c_uint64),
        ("read_bytes", c_uint64),
        ("segments", c_uint64),
        ("pieces", c_uint64),
        ("extents", c_uint64),
    ]


class StartOptions(Structure):
    """struct onehop_start_options"""

    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("after_stream", c_uint64),
    ]


class Completion(Structure):
    """struct onehop_completion"""

    _fields_ = [
        ("size", c_uint32),
        ("reasons", c_uint32),
        ("bytes", c_uint64),
        ("read_bytes", c_uint64),
        ("route_bytes", c_uint64 * 8),
        ("copies", c_uint64),
        ("first_read_ns", c_uint64),
        ("first_copy_ns", c_uint64),
        ("last_read_ns", c_uint64),
        ("total_ns", c_uint64),
        ("starved_ns", c_uint64),
        ("ring_bytes", c_uint64),
    ]


class Progress(Structure):
    """struct onehop_progress"""

    _fields_ = [
        ("size", c_uint32),
        ("running", c_uint32),
        ("bytes_landed", c_uint64),
        ("bytes_total", c_uint64),
    ]


class ShardOptions(Structure):
    """struct onehop_shard_options"""

    _fields_ = [
        ("size", c_uint32),
        ("align", c_uint32),
        ("pad", c_uint32),
        ("alignment_bytes", c_uint32),
        ("mtime", c_int64),
        ("sync", c_uint32),
        ("reserved", c_uint32),
    ]


class PartSource(Structure):
    """struct onehop_part_source"""

    _fields_ = [
        ("size", c_uint32),
        ("rank", c_uint32),
        ("field", c_void_p),
        ("data", c_void_p),
        ("path", c_void_p),
        ("offset", c_uint64),
        ("bytes", c_uint64),
        ("dtype", c_void_p),
        ("shape", c_uint64 * 8),
        ("data_offset", c_uint64),
        ("timestamp_ns", c_int64),
        ("joined", c_uint32),
        ("reserved", c_uint32),
    ]


class SampleSource(Structure):
    """struct onehop_sample_source"""

    _fields_ = [
        ("size", c_uint32),
        ("rows", c_uint32),
        ("key", c_void_p),
        ("episode", c_void_p),
        ("stream", c_void_p),
        ("timestamp_ns", c_int64),
    ]


class ShardInfo(Structure):
    """struct onehop_shard_info"""

    _fields_ = [
        ("size", c_uint32),
        ("has_trailer", c_uint32),
        ("samples", c_uint64),
        ("members", c_uint64),
        ("payload_bytes", c_uint64),
        ("shard_bytes", c_uint64),
        ("index_bytes", c_uint64),
        ("skipped", c_uint64),
        ("apple_doubles", c_uint64),
    ]


class DatasetInfo(Structure):
    """struct onehop_dataset_info"""

    _fields_ = [
        ("size", c_uint32),
        ("has_checksums", c_uint32),
        ("shards", c_uint64),
        ("samples", c_uint64),
        ("parts", c_uint64),
        ("fields", c_uint64),
        ("episodes", c_uint64),
        ("streams", c_uint64),
        ("payload_bytes", c_uint64),
        ("fingerprint", c_uint64),
    ]


class Shard(Structure):
    """struct onehop_shard"""

    _fields_ = [
        ("size", c_uint32),
        ("alignment_bytes", c_uint32),
        ("path", c_void_p),
        ("first_sample", c_uint64),
        ("samples", c_uint64),
        ("bytes", c_uint64),
        ("file", c_void_p),
    ]


class Name(Structure):
    """struct onehop_name"""

    _fields_ = [
        ("text", c_void_p),
        ("bytes", c_uint64),
    ]


class Field(Structure):
    """struct onehop_field"""

    _fields_ = [
        ("size", c_uint32),
        ("rank", c_uint32),
        ("name", Name),
        ("dtype", c_void_p),
        ("shape", c_uint64 * 8),
        ("data_offset", c_uint64),
        ("parts", c_uint64),
        ("min_bytes", c_uint64),
        ("max_bytes", c_uint64),
    ]


class Sample(Structure):
    """struct onehop_sample"""

    _fields_ = [
        ("size", c_uint32),
        ("parts", c_uint32),
        ("shard", c_uint64),
        ("key", Name),
        ("offset", c_uint64),
        ("bytes", c_uint64),
        ("timestamp_ns", c_int64),
        ("episode", c_uint32),
        ("stream", c_uint32),
        ("rows", c_uint32),
        ("reserved", c_uint32),
    ]


class Part(Structure):
    """struct onehop_part"""

    _fields_ = [
        ("size", c_uint32),
        ("field", c_uint32),
        ("crc32c", c_uint32),
        ("rank", c_uint32),
        ("shard", c_uint64),
        ("offset", c_uint64),
        ("bytes", c_uint64),
        ("dtype", c_void_p),
        ("shape", c_uint64 * 8),
        ("data_offset", c_uint64),
        ("timestamp_ns", c_int64),
    ]


class SampleColumns(Structure):
    """struct onehop_sample_columns"""

    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("shard", c_void_p),
        ("timestamp_ns", c_void_p),
        ("episode", c_void_p),
        ("stream", c_void_p),
        ("rows", c_void_p),
    ]


class PartColumns(Structure):
    """struct onehop_part_columns"""

    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("shard", c_void_p),
        ("offset", c_void_p),
        ("bytes", c_void_p),
        ("crc32c", c_void_p),
        ("type", c_void_p),
    ]


class Type(Structure):
    """struct onehop_type"""

    _fields_ = [
        ("size", c_uint32),
        ("rank", c_uint32),
        ("dtype", c_void_p),
        ("shape", c_uint64 * 8),
        ("data_offset", c_uint64),
    ]


class OrderOptions(Structure):
    """struct onehop_order_options"""

    _fields_ = [
        ("size", c_uint32),
        ("shuffle", c_uint32),
        ("remainder", c_uint32),
        ("rank", c_uint32),
        ("world", c_uint32),
        ("lanes", c_uint32),
        ("seed", c_uint64),
        ("epoch", c_uint64),
        ("batch", c_uint64),
        ("start", c_uint64),
        ("block_bytes", c_uint64),
        ("window_bytes", c_uint64),
        ("samples", c_void_p),
        ("sample_count", c_uint64),
    ]


class OrderInfo(Structure):
    """struct onehop_order_info"""

    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("samples", c_uint64),
        ("rows", c_uint64),
        ("batches", c_uint64),
        ("dropped", c_uint64),
        ("padded", c_uint64),
        ("blocks", c_uint64),
    ]


class Range(Structure):
    """struct onehop_range"""

    _fields_ = [
        ("shard", c_uint64),
        ("offset", c_uint64),
        ("bytes", c_uint64),
    ]


class FeedField(Structure):
    """struct onehop_feed_field"""

    _fields_ = [
        ("field", c_uint32),
        ("on_host", c_uint32),
    ]


class FeedOptions(Structure):
    """struct onehop_feed_options"""

    _fields_ = [
        ("size", c_uint32),
        ("verify", c_uint32),
        ("damage", c_uint32),
        ("groups", c_uint32),
        ("device", c_void_p),
        ("ring_bytes", c_uint64),
        ("gap_bytes", c_uint64),
        ("fields", c_void_p),
        ("field_count", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("after_stream", c_uint64),
    ]


class Group(Structure):
    """struct onehop_group"""

    _fields_ = [
        ("size", c_uint32),
        ("slot", c_uint32),
        ("first_batch", c_uint64),
        ("batches", c_uint64),
        ("rows", c_uint64),
        ("samples", c_void_p),
        ("pad", c_void_p),
        ("offsets", c_void_p),
        ("bytes", c_void_p),
        ("device_buffer", c_void_p),
        ("host_buffer", c_void_p),
        ("order", c_uint64),
    ]


class FeedInfo(Structure):
    """struct onehop_feed_info"""

    _fields_ = [
        ("size", c_uint32),
        ("groups", c_uint32),
        ("device_bytes", c_uint64),
        ("host_bytes", c_uint64),
        ("payload_bytes", c_uint64),
        ("read_bytes", c_uint64),
        ("rows", c_uint64),
        ("damaged", c_uint64),
        ("waited_ns", c_uint64),
        ("idle_ns", c_uint64),
        ("host_pinned_bytes", c_uint64),
        ("unpinned", c_char * 256),
    ]


class DlTensor(Structure):
    """struct onehop_dl_tensor"""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class DlManaged(Structure):
    """struct onehop_dl_managed"""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DlTensor),
    ]


class DlManagedOld(Structure):
    """struct onehop_dl_managed_old"""

    _fields_ = [
        ("tensor", DlTensor),
        ("context", c_void_p),
        ("deleter", c_void_p),
    ]


class Pressure(Structure):
    """struct onehop_pressure"""

    _fields_ = [
        ("size", c_uint32),
        ("known", c_uint32),
        ("throttled_periods", c_uint64),
        ("throttled_us", c_uint64),
        ("io_us", c_uint64),
        ("memory_us", c_uint64),
        ("group_io_us", c_uint64),
        ("group_memory_us", c_uint64),
    ]


class Tensor(Structure):
    """struct onehop_tensor"""

    _fields_ = [
        ("size", c_uint32),
        ("rank", c_uint32),
        ("name", c_void_p),
        ("name_bytes", c_uint64),
        ("dtype", c_void_p),
        ("shape", c_uint64 * 8),
        ("bytes", c_uint64),
        ("offset", c_uint64),
        ("file", c_uint32),
        ("block_elements", c_uint32),
        ("block_bytes", c_uint32),
        ("reserved", c_uint32),
    ]


class ModelInfo(Structure):
    """struct onehop_model_info"""

    _fields_ = [
        ("size", c_uint32),
        ("file_count", c_uint32),
        ("format", c_void_p),
        ("tensor_count", c_uint64),
        ("tensor_bytes", c_uint64),
        ("file_bytes", c_uint64),
        ("metadata_count", c_uint64),
        ("note_count", c_uint64),
        ("open_ns", c_uint64),
        ("parse_ns", c_uint64),
    ]


class Metadata(Structure):
    """struct onehop_metadata"""

    _fields_ = [
        ("size", c_uint32),
        ("file", c_uint32),
        ("key", c_void_p),
        ("key_bytes", c_uint64),
        ("kind", c_void_p),
        ("text", c_void_p),
        ("text_bytes", c_uint64),
    ]


class TpRule(Structure):
    """struct onehop_tp_rule"""

    _fields_ = [
        ("pattern", c_void_p),
        ("dim", c_int64),
    ]


class SelectOptions(Structure):
    """struct onehop_select_options"""

    _fields_ = [
        ("size", c_uint32),
        ("tp_uneven", c_uint32),
        ("patterns", c_void_p),
        ("pattern_count", c_uint64),
        ("tp_rank", c_uint32),
        ("tp_size", c_uint32),
        ("tp_rules", c_void_p),
        ("tp_rule_count", c_uint64),
        ("tp_plan_path", c_void_p),
    ]


class Item(Structure):
    """struct onehop_item"""

    _fields_ = [
        ("size", c_uint32),
        ("split_dim", c_int32),
        ("tensor", c_uint64),
        ("split_begin", c_uint64),
        ("shape", c_uint64 * 8),
        ("split_extent", c_uint64),
        ("bytes", c_uint64),
        ("arena_offset", c_uint64),
    ]


class SelectionInfo(Structure):
    """struct onehop_selection_info"""

    _fields_ = [
        ("size", c_uint32),
        ("arena_alignment", c_uint32),
        ("count", c_uint64),
        ("bytes", c_uint64),
        ("arena_bytes", c_uint64),
    ]


class Destination(Structure):
    """struct onehop_destination"""

    _fields_ = [
        ("buffer", c_void_p),
        ("offset", c_uint64),
    ]


class PipelineOptions(Structure):
    """struct onehop_pipeline_options"""

    _fields_ = [
        ("size", c_uint32),
        ("places", c_uint32),
        ("alignment", c_uint64),
    ]


class Read(Structure):
    """struct onehop_read"""

    _fields_ = [
        ("tag", c_uint64),
        ("file_offset", c_uint64),
        ("buffer_offset", c_uint64),
        ("bytes", c_uint64),
    ]


class ReadDone(Structure):
    """struct onehop_read_done"""

    _fields_ = [
        ("size", c_uint32),
        ("status", c_int32),
        ("tag", c_uint64),
        ("bytes", c_uint64),
    ]


class PipelineInfo(Structure):
    """struct onehop_pipeline_info"""

    _fields_ = [
        ("size", c_uint32),
        ("in_flight", c_uint32),
        ("reads", c_uint64),
        ("bytes", c_uint64),
        ("short_bytes", c_uint64),
        ("failed_reads", c_uint64),
        ("busy_ns", c_uint64),
    ]


FORMATS: Final[dict[str, str]] = {
    "onehop_error": "=iiii768s240s",
    "onehop_runtime_options": "=IIQQQQQQQQQQ",
    "onehop_option_value": "=IIQQQQQQQ",
    "onehop_runtime_info": "=IIQQQQQQQQ",
    "onehop_device_info": "=II128s48s32s64sQQII",
    "onehop_buffer_info": "=IIQQQQ",
    "onehop_file_info": "=IIQQ",
    "onehop_extent": "=QQQQQQQQ",
    "onehop_segment": "=IIIIQQQQQQ",
    "onehop_plan_info": "=IIQQQQQ",
    "onehop_start_options": "=IIQ",
    "onehop_completion": "=IIQQ8QQQQQQQQ",
    "onehop_progress": "=IIQQ",
    "onehop_shard_options": "=IIIIqII",
    "onehop_part_source": "=IIQQQQQQ8QQqII",
    "onehop_sample_source": "=IIQQQq",
    "onehop_shard_info": "=IIQQQQQQQ",
    "onehop_dataset_info": "=IIQQQQQQQQ",
    "onehop_shard": "=IIQQQQQ",
    "onehop_name": "=QQ",
    "onehop_part": "=IIIIQQQQ8QQq",
    "onehop_sample_columns": "=IIQQQQQ",
    "onehop_part_columns": "=IIQQQQQ",
    "onehop_type": "=IIQ8QQ",
    "onehop_order_options": "=IIIIIIQQQQQQQQ",
    "onehop_order_info": "=IIQQQQQQ",
    "onehop_range": "=QQQ",
    "onehop_feed_field": "=II",
    "onehop_feed_options": "=IIIIQQQQQIIQ",
    "onehop_group": "=IIQQQQQQQQQQ",
    "onehop_feed_info": "=IIQQQQQQQQQ256s",
    "onehop_dl_tensor": "=QiiiBBHQQQ",
    "onehop_pressure": "=IIQQQQQQ",
    "onehop_tensor": "=IIQQQ8QQQIIII",
    "onehop_model_info": "=IIQQQQQQQQ",
    "onehop_metadata": "=IIQQQQQ",
    "onehop_tp_rule": "=Qq",
    "onehop_select_options": "=IIQQIIQQQ",
    "onehop_item": "=IiQQ8QQQQ",
    "onehop_selection_info": "=IIQQQ",
    "onehop_destination": "=QQ",
    "onehop_pipeline_options": "=IIQ",
    "onehop_read": "=QQQQ",
    "onehop_read_done": "=IiQQ",
    "onehop_pipeline_info": "=IIQQQQQ",
}

# status: name, text, Python's exception
STATUSES: Final[dict[int, tuple[str, str, str]]] = {
    0: ("OK", "success", "None"),
    101: ("INVALID_ARGUMENT", "invalid argument", "ValueError"),
    102: ("UNKNOWN_OPTION", "unknown option", "ValueError"),
    103: ("OUT_OF_RANGE", "value out of range", "ValueError"),
    104: ("NO_SUCH_TENSOR", "no such tensor", "KeyError"),
    201: ("NO_MEMORY", "out of host memory", "MemoryError"),
    202: ("NO_DEVICE_MEMORY", "out of device memory", "MemoryError"),
    203: ("LIMIT", "a limit is reached", "MemoryError"),
    301: ("UNSUPPORTED", "not supported here", "NotImplementedError"),
    302: ("NO_DEVICE", "no such device", "RuntimeError"),
    303: ("NO_ROUTE", "the forced route cannot work", "RuntimeError"),
    401: ("IO", "I/O error", "OSError"),
    402: ("NOT_FOUND", "no such file", "FileNotFoundError"),
    403: ("ACCESS", "permission denied", "PermissionError"),
    404: ("FILE_CHANGED", "the file changed while it was read", "OSError"),
    501: ("MALFORMED", "malformed data", "ValueError"),
    502: ("UNSUPPORTED_DATA", "data of an unsupported kind", "ValueError"),
    503: ("MISMATCH", "the bytes differ", "ValueError"),
    601: ("BUSY", "busy", "RuntimeError"),
    602: ("CANCELLED", "cancelled", "InterruptedError"),
    603: ("TIMED_OUT", "timed out", "TimeoutError"),
    604: ("FORKED", "used in a forked child", "RuntimeError"),
    605: ("END", "nothing more", "StopIteration"),
    701: ("DRIVER", "device driver error", "RuntimeError"),
    702: ("DEVICE_LOST", "the device is lost", "RuntimeError"),
}

STRUCTS: Final[dict[str, type[Structure]]] = {
    "onehop_error": Error,
    "onehop_runtime_options": RuntimeOptions,
    "onehop_option_value": OptionValue,
    "onehop_runtime_info": RuntimeInfo,
    "onehop_device_info": DeviceInfo,
    "onehop_buffer_info": BufferInfo,
    "onehop_file_info": FileInfo,
    "onehop_extent": Extent,
    "onehop_segment": Segment,
    "onehop_plan_info": PlanInfo,
    "onehop_start_options": StartOptions,
    "onehop_completion": Completion,
    "onehop_progress": Progress,
    "onehop_shard_options": ShardOptions,
    "onehop_part_source": PartSource,
    "onehop_sample_source": SampleSource,
    "onehop_shard_info": ShardInfo,
    "onehop_dataset_info": DatasetInfo,
    "onehop_shard": Shard,
    "onehop_name": Name,
    "onehop_field": Field,
    "onehop_sample": Sample,
    "onehop_part": Part,
    "onehop_sample_columns": SampleColumns,
    "onehop_part_columns": PartColumns,
    "onehop_type": Type,
    "onehop_order_options": OrderOptions,
    "onehop_order_info": OrderInfo,
    "onehop_range": Range,
    "onehop_feed_field": FeedField,
    "onehop_feed_options": FeedOptions,
    "onehop_group": Group,
    "onehop_feed_info": FeedInfo,
    "onehop_dl_tensor": DlTensor,
    "onehop_dl_managed": DlManaged,
    "onehop_dl_managed_old": DlManagedOld,
    "onehop_pressure": Pressure,
    "onehop_tensor": Tensor,
    "onehop_model_info": ModelInfo,
    "onehop_metadata": Metadata,
    "onehop_tp_rule": TpRule,
    "onehop_select_options": SelectOptions,
    "onehop_item": Item,
    "onehop_selection_info": SelectionInfo,
    "onehop_destination": Destination,
    "onehop_pipeline_options": PipelineOptions,
    "onehop_read": Read,
    "onehop_read_done": ReadDone,
    "onehop_pipeline_info": PipelineInfo,
}

FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "onehop_buffer_alloc":
        (c_int32, (c_void_p, c_char_p, c_uint64, POINTER(c_void_p), POINTER(Error))),
    "onehop_buffer_export":
        (c_int32, (c_void_p, c_uint64, c_char_p, POINTER(c_uint64), c_uint32, c_uint32, c_void_p, POINTER(Error))),
    "onehop_buffer_fill": (c_int32, (c_void_p, c_uint64, c_uint64, c_uint32, POINTER(Error))),
    "onehop_buffer_free": (None, (c_void_p,)),
    "onehop_buffer_query": (c_int32, (c_void_p, POINTER(BufferInfo))),
    "onehop_buffer_read": (c_int32, (c_void_p, c_uint64, c_void_p, c_uint64, POINTER(Error))),
    "onehop_buffer_wrap":
        (c_int32, (c_void_p, c_char_p, c_uint64, c_uint64, POINTER(c_void_p), POINTER(Error))),
    "onehop_build_info": (c_char_p, ()),
    "onehop_crc32c": (c_uint32, (c_uint32, c_void_p, c_uint64)),
    "onehop_cuda_device_count": (c_uint32, (c_void_p,)),
    "onehop_dataset_close": (None, (c_void_p,)),
    "onehop_dataset_episode_at": (c_int32, (c_void_p, c_uint64, POINTER(Name))),
    "onehop_dataset_field_at": (c_int32, (c_void_p, c_uint64, POINTER(Field))),
    "onehop_dataset_open":
        (c_int32, (c_void_p, POINTER(c_char_p), c_uint64, POINTER(c_void_p), POINTER(Error))),
    "onehop_dataset_part_at": (c_int32, (c_void_p, c_uint64, c_uint64, POINTER(Part))),
    "onehop_dataset_parts":
        (c_int32, (c_void_p, c_uint64, POINTER(c_uint64), c_uint64, POINTER(PartColumns), POINTER(Error))),
    "onehop_dataset_query": (c_int32, (c_void_p, POINTER(DatasetInfo))),
    "onehop_dataset_sample_at": (c_int32, (c_void_p, c_uint64, POINTER(Sample))),
    "onehop_dataset_samples":
        (c_int32, (c_void_p, POINTER(c_uint64), c_uint64, POINTER(SampleColumns), POINTER(Error))),
    "onehop_dataset_shard_at": (c_int32, (c_void_p, c_uint64, POINTER(Shard))),
    "onehop_dataset_stream_at": (c_int32, (c_void_p, c_uint64, POINTER(Name))),
    "onehop_dataset_type_at": (c_int32, (c_void_p, c_uint64, POINTER(Type))),
    "onehop_device_query": (c_int32, (c_void_p, c_char_p, POINTER(DeviceInfo), POINTER(Error))),
    "onehop_export_capsule_destroy": (None, (c_void_p,)),
    "onehop_export_capsule_name": (c_char_p, (c_uint32,)),
    "onehop_feed_append": (c_int32, (c_void_p, c_void_p, POINTER(Error))),
    "onehop_feed_create":
        (c_int32, (c_void_p, c_void_p, POINTER(FeedOptions), POINTER(c_void_p), POINTER(Error))),
    "onehop_feed_destroy": (None, (c_void_p,)),
    "onehop_feed_next": (c_int32, (c_void_p, c_uint64, POINTER(Group), POINTER(Error))),
    "onehop_feed_options_init": (None, (POINTER(FeedOptions),)),
    "onehop_feed_query": (c_int32, (c_void_p, POINTER(FeedInfo))),
    "onehop_feed_release": (c_int32, (c_void_p, c_uint32, c_uint32, c_uint64, POINTER(Error))),
    "onehop_fetch_create":
        (c_int32, (c_void_p, POINTER(Range), c_uint64, c_uint64, c_void_p, c_uint64, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_void_p), POINTER(Error))),
    "onehop_fetch_destroy": (None, (c_void_p,)),
    "onehop_fetch_start": (c_int32, (c_void_p, POINTER(StartOptions), POINTER(Error))),
    "onehop_fetch_wait": (c_int32, (c_void_p, c_uint64, POINTER(Completion), POINTER(Error))),
    "onehop_file_close": (None, (c_void_p,)),
    "onehop_file_open": (c_int32, (c_void_p, c_char_p, POINTER(c_void_p), POINTER(Error))),
    "onehop_file_pin": (c_int32, (c_void_p, c_char_p, POINTER(Error))),
    "onehop_file_query": (c_int32, (c_void_p, POINTER(FileInfo))),
    "onehop_file_unpin": (None, (c_void_p,)),
    "onehop_machine_pressure": (c_int32, (POINTER(Pressure),)),
    "onehop_machine_pressure_since":
        (c_int32, (POINTER(Pressure), POINTER(Pressure), POINTER(Pressure))),
    "onehop_measure_copy":
        (c_int32, (c_void_p, c_char_p, c_uint64, c_uint64, POINTER(c_double), POINTER(Error))),
    "onehop_model_at": (c_int32, (c_void_p, c_uint64, POINTER(Tensor))),
    "onehop_model_close": (None, (c_void_p,)),
    "onehop_model_file": (c_void_p, (c_void_p, c_uint32)),
    "onehop_model_file_at": (c_int32, (c_void_p, c_uint32, POINTER(FileInfo))),
    "onehop_model_find":
        (c_int32, (c_void_p, c_char_p, c_uint64, POINTER(c_uint64), POINTER(Error))),
    "onehop_model_load":
        (c_int32, (c_void_p, c_char_p, POINTER(c_void_p), POINTER(Completion), POINTER(Error))),
    "onehop_model_metadata_at":
        (c_int32, (c_void_p, c_uint64, POINTER(Metadata), c_char_p, c_uint64)),
    "onehop_model_note_at": (c_char_p, (c_void_p, c_uint64)),
    "onehop_model_open": (c_int32, (c_void_p, c_char_p, POINTER(c_void_p), POINTER(Error))),
    "onehop_model_pin": (c_int32, (c_void_p, c_char_p, POINTER(Error))),
    "onehop_model_plan":
        (c_int32, (c_void_p, c_void_p, c_uint64, POINTER(c_void_p), POINTER(Error))),
    "onehop_model_plan_into":
        (c_int32, (c_void_p, POINTER(Destination), POINTER(c_void_p), POINTER(Error))),
    "onehop_model_query": (c_int32, (c_void_p, POINTER(ModelInfo))),
    "onehop_model_select":
        (c_int32, (c_void_p, POINTER(SelectOptions), POINTER(c_void_p), POINTER(Error))),
    "onehop_model_shape": (c_int32, (c_void_p, c_uint64, POINTER(c_uint64), c_uint64)),
    "onehop_model_unpin": (None, (c_void_p,)),
    "onehop_order_create":
        (c_int32, (c_void_p, POINTER(OrderOptions), POINTER(c_void_p), POINTER(Error))),
    "onehop_order_destroy": (None, (c_void_p,)),
    "onehop_order_options_init": (None, (POINTER(OrderOptions),)),
    "onehop_order_query": (c_int32, (c_void_p, POINTER(OrderInfo))),
    "onehop_order_rows":
        (c_int32, (c_void_p, c_uint64, c_uint64, POINTER(c_uint64), POINTER(c_uint8))),
    "onehop_part_source_init": (None, (POINTER(PartSource),)),
    "onehop_pipeline_alignment": (c_int32, (c_void_p, POINTER(c_uint64), POINTER(Error))),
    "onehop_pipeline_cancel": (None, (c_void_p,)),
    "onehop_pipeline_create":
        (c_int32, (c_void_p, c_void_p, c_void_p, POINTER(PipelineOptions), POINTER(c_void_p), POINTER(Error))),
    "onehop_pipeline_destroy": (None, (c_void_p,)),
    "onehop_pipeline_next": (c_int32, (c_void_p, c_uint64, POINTER(ReadDone), POINTER(Error))),
    "onehop_pipeline_options_init": (None, (POINTER(PipelineOptions),)),
    "onehop_pipeline_query": (c_int32, (c_void_p, POINTER(PipelineInfo))),
    "onehop_pipeline_submit":
        (c_int32, (c_void_p, POINTER(Read), POINTER(StartOptions), POINTER(Error))),
    "onehop_plan_create":
        (c_int32, (c_void_p, POINTER(Extent), c_uint64, POINTER(c_void_p), POINTER(Error))),
    "onehop_plan_destroy": (None, (c_void_p,)),
    "onehop_plan_query": (c_int32, (c_void_p, POINTER(PlanInfo))),
    "onehop_plan_segment_at": (c_int32, (c_void_p, c_uint64, POINTER(Segment))),
    "onehop_reason_name": (c_char_p, (c_uint32,)),
    "onehop_reason_remedy": (c_char_p, (c_uint32,)),
    "onehop_reason_text": (c_char_p, (c_uint32,)),
    "onehop_route_name": (c_char_p, (c_uint32,)),
    "onehop_runtime_create":
        (c_int32, (POINTER(RuntimeOptions), POINTER(c_void_p), POINTER(Error))),
    "onehop_runtime_destroy": (None, (c_void_p,)),
    "onehop_runtime_option_at": (c_int32, (c_void_p, c_uint32, POINTER(OptionValue))),
    "onehop_runtime_option_count": (c_uint32, (c_void_p,)),
    "onehop_runtime_options_init": (None, (POINTER(RuntimeOptions),)),
    "onehop_runtime_options_set":
        (c_int32, (POINTER(RuntimeOptions), c_char_p, c_char_p, POINTER(Error))),
    "onehop_runtime_query": (c_int32, (c_void_p, POINTER(RuntimeInfo))),
    "onehop_sample_source_init": (None, (POINTER(SampleSource),)),
    "onehop_select_options_init": (None, (POINTER(SelectOptions),)),
    "onehop_selection_at": (c_int32, (c_void_p, c_uint64, POINTER(Item))),
    "onehop_selection_destroy": (None, (c_void_p,)),
    "onehop_selection_query": (c_int32, (c_void_p, POINTER(SelectionInfo))),
    "onehop_selection_read":
        (c_int32, (c_void_p, c_uint64, c_uint64, POINTER(Item), POINTER(Tensor))),
    "onehop_shard_index":
        (c_int32, (c_char_p, c_uint32, c_uint32, POINTER(ShardInfo), POINTER(Error))),
    "onehop_shard_options_init": (None, (POINTER(ShardOptions),)),
    "onehop_shard_verify": (c_int32, (c_char_p, POINTER(ShardInfo), POINTER(Error))),
    "onehop_shard_writer_add":
        (c_int32, (c_void_p, POINTER(SampleSource), POINTER(PartSource), c_uint64, POINTER(Error))),
    "onehop_shard_writer_create":
        (c_int32, (c_char_p, POINTER(ShardOptions), POINTER(c_void_p), POINTER(Error))),
    "onehop_shard_writer_destroy": (None, (c_void_p,)),
    "onehop_shard_writer_finish": (c_int32, (c_void_p, POINTER(ShardInfo), POINTER(Error))),
    "onehop_shard_writer_query": (c_int32, (c_void_p, POINTER(ShardInfo))),
    "onehop_start_options_init": (None, (POINTER(StartOptions),)),
    "onehop_status_exception": (c_char_p, (c_int32,)),
    "onehop_status_name": (c_char_p, (c_int32,)),
    "onehop_status_text": (c_char_p, (c_int32,)),
    "onehop_transfer_arrivals":
        (c_int32, (c_void_p, c_uint64, POINTER(c_uint64), c_uint64, POINTER(c_uint64), POINTER(Error))),
    "onehop_transfer_cancel": (None, (c_void_p,)),
    "onehop_transfer_destroy": (None, (c_void_p,)),
    "onehop_transfer_join": (c_int32, (c_void_p, c_uint64, POINTER(Error))),
    "onehop_transfer_next": (c_int32, (c_void_p, c_uint64, POINTER(c_uint64), POINTER(Error))),
    "onehop_transfer_prepare": (c_int32, (c_void_p, POINTER(c_void_p), POINTER(Error))),
    "onehop_transfer_progress": (c_int32, (c_void_p, POINTER(Progress))),
    "onehop_transfer_start": (c_int32, (c_void_p, POINTER(StartOptions), POINTER(Error))),
    "onehop_transfer_wait": (c_int32, (c_void_p, c_uint64, POINTER(Completion), POINTER(Error))),
    "onehop_version": (c_char_p, ()),
}


def bind(library: ctypes.CDLL) -> None:
    """Gives every function of the library its result and argument types."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
