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


class FileInfo(Structure):
    """struct onehop_file_info"""

    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("path", c_void_p),
        ("bytes", c_uint64),
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


FORMATS: Final[dict[str, str]] = {
    "onehop_error": "=iiii768s240s",
    "onehop_runtime_options": "=IIQQQQQQQQQQ",
    "onehop_option_value": "=IIQQQQQQQ",
    "onehop_runtime_info": "=IIQQQQQQQ",
    "onehop_device_info": "=II128s48s32s64sQQII",
    "onehop_buffer_info": "=IIQQQQ",
    "onehop_dl_tensor": "=QiiiBBHQQQ",
    "onehop_file_info": "=IIQQ",
    "onehop_pressure": "=IIQQQQQQ",
    "onehop_extent": "=QQQQQQQQ",
    "onehop_segment": "=IIIIQQQQQQ",
    "onehop_plan_info": "=IIQQQQQ",
    "onehop_start_options": "=IIQ",
    "onehop_completion": "=IIQQ8QQQQQQQQ",
    "onehop_progress": "=IIQQ",
    "onehop_tensor": "=IIQQQ8QQQIIII",
    "onehop_model_info": "=IIQQQQQQQQ",
    "onehop_metadata": "=IIQQQQQ",
    "onehop_tp_rule": "=Qq",
    "onehop_select_options": "=IIQQIIQQQ",
    "onehop_item": "=IiQQ8QQQQ",
    "onehop_selection_info": "=IIQQQ",
    "onehop_destination": "=QQ",
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
    "onehop_dl_tensor": DlTensor,
    "onehop_dl_managed": DlManaged,
    "onehop_dl_managed_old": DlManagedOld,
    "onehop_file_info": FileInfo,
    "onehop_pressure": Pressure,
    "onehop_extent": Extent,
    "onehop_segment": Segment,
    "onehop_plan_info": PlanInfo,
    "onehop_start_options": StartOptions,
    "onehop_completion": Completion,
    "onehop_progress": Progress,
    "onehop_tensor": Tensor,
    "onehop_model_info": ModelInfo,
    "onehop_metadata": Metadata,
    "onehop_tp_rule": TpRule,
    "onehop_select_options": SelectOptions,
    "onehop_item": Item,
    "onehop_selection_info": SelectionInfo,
    "onehop_destination": Destination,
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
    "onehop_cuda_device_count": (c_uint32, (c_void_p,)),
    "onehop_device_query": (c_int32, (c_void_p, c_char_p, POINTER(DeviceInfo), POINTER(Error))),
    "onehop_export_capsule_destroy": (None, (c_void_p,)),
    "onehop_export_capsule_name": (c_char_p, (c_uint32,)),
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
    "onehop_select_options_init": (None, (POINTER(SelectOptions),)),
    "onehop_selection_at": (c_int32, (c_void_p, c_uint64, POINTER(Item))),
    "onehop_selection_destroy": (None, (c_void_p,)),
    "onehop_selection_query": (c_int32, (c_void_p, POINTER(SelectionInfo))),
    "onehop_selection_read":
        (c_int32, (c_void_p, c_uint64, c_uint64, POINTER(Item), POINTER(Tensor))),
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
