"""onehop.Array to others: DLPack, the array interfaces, numpy; and the memory behind it all."""
import ctypes
import gc
import os
import pickle
import sys
import threading

from package import BITS, Scratch, need, noise, python, raised, safetensors, seeded
from tap import Skip, case, check, holds, run, same

import onehop
from onehop import _abi, _library, _runtime, dtypes, errors
from onehop._move import Buffer
from onehop.arenas import is_importable
from onehop.devices import HOST

PACKED = ("F4", "F6_E2M3", "F6_E3M2")
ROOM = 1 << 20

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi))
USED = b"used_dltensor_versioned"


def managed(capsule):
    """The tensor in a capsule that nobody took."""
    return _abi.DlManaged.from_address(_pointer(capsule, b"dltensor_versioned"))


def take(array):
    """Takes the tensor as a library does. Returns what ends it."""
    capsule = array.__dlpack__(max_version=(1, 0))
    address = _pointer(capsule, b"dltensor_versioned")
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_abi.DlManaged.from_address(address).deleter)
    _rename(capsule, USED)
    return lambda: deleter(address)


class Old:
    """An array whose taker knows the DLPack of before 1.0."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)


def loaded(folder, tensors, device="cpu"):
    path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
    return onehop.load(path, device, framework="array")


def every_type(source, shape=(4, 8)):
    return [(dtype, dtype, list(shape), noise(source, dtype, shape)) for dtype in BITS]


def limited():
    """A runtime that gives out ROOM bytes at most."""
    return _runtime.get(buffer_limit_bytes=ROOM)


def bytes_array(dtype="U8", itemsize=1):
    """An array of all the bytes that limited() gives out."""
    gc.collect()  # errors of earlier cases keep what their tracebacks show
    return onehop.Array(Buffer(limited(), "host", ROOM), 0, dtype, (ROOM // itemsize,), ROOM, 1,
                        itemsize, HOST)


def has_room():
    """Whether the memory of bytes_array() was given back."""
    try:
        Buffer(limited(), "host", ROOM).close()
    except errors.Limit:
        return False
    return True


def driver():
    """The folder of the look-alike driver."""
    folder = sys.argv[1] if len(sys.argv) > 1 else ""
    if not os.path.isdir(folder):
        raise Skip("no folder of the look-alike driver was given")
    return folder


def on_gpu(code):
    """What the code prints in a process with the look-alike GPU; load(tensors) loads there."""
    head = ("import sys, os\n"
            f"sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
            "sys.argv = ['test']\n"
            "from test_arrays import *\n"
            "from onehop import _abi, _runtime\n"
            "def load(tensors):\n"
            "    with Scratch() as folder: return loaded(folder, tensors, 'cuda:0')\n")
    return python(head + code, LD_LIBRARY_PATH=driver())


# ---- DLPack


@case
def torch_takes_every_type_in_place():
    torch, source = need("torch"), seeded()
    with Scratch() as folder:
        tensors = every_type(source)
        arrays = loaded(folder, tensors)
        for name, dtype, shape, data in tensors:
            array = arrays[name]
            if dtype in ("F6_E2M3", "F6_E3M2"):
                raised(BufferError, torch.from_dlpack, array)
                same(bytes(torch.from_dlpack(array.raw()).numpy()), data, name)
                continue
            tensor = torch.from_dlpack(array)
            same(tensor.dtype, getattr(torch, dtypes.TORCH[dtype]), name)
            same(list(tensor.shape), [4, 4] if dtype == "F4" else shape, name)
            same(tensor.data_ptr(), array.address, name)
            same(bytes(tensor.view(torch.uint8).numpy()), data, name)
            same(torch.from_dlpack(Old(array)).data_ptr(), array.address, name)


@case
def numpy_takes_its_own_types_in_place():
    numpy, source = need("numpy"), seeded()
    with Scratch() as folder:
        tensors = every_type(source) + [("none", "F32", [0, 4], b""), ("one", "F32", [], b"1234")]
        arrays = loaded(folder, tensors)
        for name, dtype, shape, data in tensors:
            array = arrays[name]
            if dtype not in dtypes.NUMPY:
                array = array.raw()
            for source_of in (array, Old(array)):
                taken = numpy.from_dlpack(source_of)
                same(taken.tobytes(), data, name)
                check(not data or taken.ctypes.data == array.address, f"{name} is a copy")
                same(taken.shape, array.shape, name)
                check(taken.flags.c_contiguous, name)


@case
def jax_takes_every_type_but_packed_ones():
    need("jax")
    code = ("import sys\n"
            f"sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
            "sys.argv = ['test']\n"
            "from test_arrays import *\n"
            "import jax, numpy, gc\n"
            "jax.config.update('jax_enable_x64', True)\n"
            "jax.config.update('jax_platforms', 'cpu')\n"
            "tensors = every_type(seeded(), (16, 32))\n"
            "with Scratch() as folder: arrays = loaded(folder, tensors)\n"
            "for name, dtype, shape, data in tensors:\n"
            "    if dtype in PACKED: continue\n"
            "    taken = jax.dlpack.from_dlpack(arrays[name])\n"
            "    assert numpy.asarray(taken).tobytes() == data, name\n"
            "    assert str(taken.dtype) == (dtypes.NUMPY.get(dtype) or dtypes.ML_DTYPES[dtype])\n"
            "array = bytes_array()\n"
            "taken = jax.dlpack.from_dlpack(array)\n"
            "del array; assert not has_room()\n"
            "del taken; gc.collect(); assert has_room()\n"
            "print('good')")
    same(python(code).splitlines()[-1], "good")


@case
def a_capsule_says_what_it_holds():
    array = bytes_array("F32", 4)
    capsule = array.__dlpack__(stream=None, max_version=(1, 3), dl_device=(1, 0), copy=None)
    holds(repr(capsule), '"dltensor_versioned"')
    holds(repr(array.__dlpack__()), '"dltensor"')
    holds(repr(array.__dlpack__(max_version=(0, 8))), '"dltensor"')
    made = managed(capsule)
    same((made.major, made.flags, made.tensor.data), (1, 0, array.address))
    same((made.tensor.code, made.tensor.bits, made.tensor.lanes), (2, 32, 1))
    same(array.__dlpack_device__(), (1, 0))


@case
def a_consumer_reads_only_what_is_readonly():
    numpy = need("numpy")
    array = bytes_array()
    frozen = array.as_readonly()
    check(numpy.from_dlpack(array).flags.writeable, "not writable")
    check(not numpy.from_dlpack(frozen).flags.writeable, "writable")
    check(not numpy.from_dlpack(frozen.raw()).flags.writeable, "writable")
    check(not numpy.asarray(frozen).flags.writeable, "writable")
    same(managed(frozen.__dlpack__(max_version=(1, 0))).flags, _abi.EXPORT_READ_ONLY)
    error = raised(BufferError, numpy.from_dlpack, Old(frozen))
    holds(str(error), "read-only")
    holds(str(error), "max_version=(1, 0)")
    few = onehop.Array(array.buffer, 0, "U8", (8,), 8, 1, 1, HOST, readonly=True)
    check(numpy.from_dlpack(few, copy=True).flags.writeable, "a copy is not the taker's own")


@case
def a_copy_is_the_takers_own_and_is_marked():
    numpy, source = need("numpy"), seeded()
    with Scratch() as folder:
        data = noise(source, "I32", [100])
        array = loaded(folder, [("w", "I32", [100], data)])["w"]
        capsule = array.__dlpack__(max_version=(1, 0), copy=True)
        same(managed(capsule).flags, _abi.EXPORT_COPIED)
        check(managed(capsule).tensor.data != array.address, "the same memory")
        copied = numpy.from_dlpack(array, copy=True)
        numpy.asarray(array)[:] = 0
        same(copied.tobytes(), data)
        same(array.tobytes(), bytes(400))
        empty = onehop.Array(array.buffer, 0, "F32", (0, 3), 0, 1, 4, HOST)
        same(numpy.from_dlpack(empty, copy=True).shape, (0, 3))


@case
def what_dlpack_cannot_say_is_a_buffererror_with_a_remedy():
    buffer = Buffer(_runtime.get(), "host", 144)
    blocks = onehop.Array(buffer, 0, "Q4_K", (1, 256), 144, 256, 144, HOST)
    error = raised(BufferError, blocks.__dlpack__, max_version=(1, 0))
    check(isinstance(error, onehop.OnehopError), "not of this package")
    same(str(error), "DLPack has no type for \"Q4_K\"; hand out array.raw(), its bits as unsigned "
                     "integers")
    same((blocks.raw().shape, blocks.raw().dtype), ((1, 144), "U8"))
    again = pickle.loads(pickle.dumps(error))
    same((type(again), str(again)), (type(error), str(error)))
    for device in ((2, 0), (3, 0), (1, 1)):
        holds(str(raised(BufferError, blocks.raw().__dlpack__, dl_device=device)), str(device))


@case
def host_arrays_have_no_stream():
    array = bytes_array()
    array.__dlpack__(stream=-1)
    for stream in (0, 1, 7, "1", 1.5):
        holds(str(raised(ValueError, array.__dlpack__, stream=stream)), "host memory")


# ---- memory


def counted(array):
    """How many exports of the array's buffer live."""
    info = _library.sized(_abi.BufferInfo)
    _library.ask("buffer_query", array.buffer.handle, ctypes.byref(info))
    return info.exports


@case
def memory_goes_with_the_last_consumer():
    numpy = need("numpy")
    takers = [numpy.from_dlpack, lambda array: numpy.from_dlpack(Old(array)), numpy.asarray,
              lambda array: numpy.from_dlpack(array)[10:20].reshape(2, 5),
              lambda array: array.__dlpack__(), lambda array: array.__dlpack__(max_version=(1, 0)),
              lambda array: array.raw(), lambda array: array.as_readonly()]
    if is_importable("torch"):
        import torch

        takers += [torch.from_dlpack, lambda array: torch.from_dlpack(array)[3:9].view(2, 3),
                   lambda array: torch.from_dlpack(Old(array)), torch.as_tensor]
    for number, taker in enumerate(takers):
        array = bytes_array()
        check(not has_room(), "the budget is not full")
        taken, also = taker(array), taker(array)
        del array
        check(not has_room(), f"taker {number}: freed under a consumer")
        del taken
        check(not has_room(), f"taker {number}: freed under the second consumer")
        del also
        check(has_room(), f"taker {number}: not freed")


@case
def views_outlive_the_source_and_see_its_bytes():
    numpy, source = need("numpy"), seeded()
    with Scratch() as folder:
        tensors = every_type(source, (64, 256))
        arrays = loaded(folder, tensors)
        views = {name: (numpy.from_dlpack(arrays[name].raw())[1:], arrays[name].raw_shape)
                 for name in arrays}
    del arrays
    for name, _, _, data in tensors:
        view, raw_shape = views[name]
        same(view.tobytes(), data[raw_shape[-1]:], name)


@case
def a_consumer_may_end_on_any_thread():
    array = bytes_array()
    ends = [take(array) for _ in range(100)]
    same(counted(array), 100)
    del array
    threads = [threading.Thread(target=lambda part=ends[i::4]: [end() for end in part])
               for i in range(4)]
    check(not has_room(), "freed under its consumers")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(has_room(), "not freed")


@case
def a_consumer_that_refuses_gets_its_own_error_and_keeps_nothing():
    numpy = need("numpy")
    array = bytes_array("BF16", 2)
    for source in (array, Old(array)):
        raised(RuntimeError, numpy.from_dlpack, source)  # numpy's, not SystemError
        same(counted(array), 0)


@case
def the_interpreter_ends_with_consumers_alive():
    modules = [name for name in ("numpy", "torch") if is_importable(name)]
    code = ("import sys, builtins, threading, onehop\n"
            "array = onehop.load(PATH, DEVICE, framework='array')['w']\n"
            "class Cycle: pass\n"
            "cycle = Cycle(); cycle.self = cycle; cycle.capsule = array.__dlpack__()\n"
            "builtins.late = array.__dlpack__(max_version=(1, 0))\n"
            "sys.modules['onehop'].kept = [array.__dlpack__(), array]\n"
            "sys.modules['sys'].kept = array.__dlpack__()\n"
            "class Late:\n"
            "    def __del__(self): del self.capsule\n"
            "builtins.later = Late(); builtins.later.capsule = array.__dlpack__()\n")
    for name in modules:
        code += (f"import {name}\n"
                 f"{name}.kept = {name}.from_dlpack(array) if DEVICE == 'cpu' else None\n")
    code += "print('end')"
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [("w", "U8", [99], bytes(99))])
        same(python(f"PATH, DEVICE = {path!r}, 'cpu'\n" + code), "end")
        same(python(f"PATH, DEVICE = {path!r}, 'cuda:0'\n" + code, LD_LIBRARY_PATH=driver()), "end")


@case
def a_forked_child_ends_what_it_inherited_and_its_parent_keeps_it():
    code = ("import os, sys, numpy, onehop\n"
            "array = onehop.load(PATH, 'cpu', framework='array')['w']\n"
            "taken, capsule = numpy.from_dlpack(array), array.__dlpack__()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    good = taken.tobytes() == numpy.asarray(array).tobytes() == bytes(range(99))\n"
            "    try: array.__dlpack__()\n"
            "    except onehop.errors.Forked: pass\n"
            "    else: good = False\n"
            "    del taken, capsule, array\n"
            "    sys.exit(0 if good else 1)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "del array\n"
            "print(taken.tobytes() == bytes(range(99)))")
    need("numpy")
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [("w", "U8", [99], bytes(range(99)))])
        same(python(f"PATH = {path!r}\n" + code), "True")


# ---- numpy and the array interfaces


@case
def numpy_asarray_has_every_type_in_place():
    numpy, source = need("numpy"), seeded()
    need("ml_dtypes")
    with Scratch() as folder:
        tensors = every_type(source) + [("none", "BF16", [0, 4], b""), ("one", "BF16", [], b"12")]
        arrays = loaded(folder, tensors)
        for name, dtype, _, data in tensors:
            array = arrays[name]
            seen = numpy.asarray(array)
            same(seen.tobytes(), data, name)
            check(not data or seen.ctypes.data == array.address, f"{name} is a copy")
            check(seen.flags.writeable, name)
            want = dtypes.NUMPY.get(dtype) or dtypes.ML_DTYPES.get(dtype, "uint8")
            same((str(seen.dtype), array.dtype), (want, dtype), name)
            same(seen.shape, array.raw_shape if dtype in PACKED else array.shape, name)
        copied = numpy.array(arrays["BF16"])
        check(copied.ctypes.data != arrays["BF16"].address, "no copy")
        same(numpy.asarray(arrays["BF16"], dtype="float32").dtype, numpy.float32)
        same(numpy.asarray(arrays["I16"], dtype="float32").tolist(),
             numpy.asarray(arrays["I16"]).tolist())


@case
def numpy_without_ml_dtypes_says_so_and_offers_the_raw_view():
    need("numpy")
    code = ("import sys; sys.modules['ml_dtypes'] = None\n"
            "import numpy, onehop\n"
            "array = onehop.load(PATH, 'cpu', framework='array')['a']\n"
            "try: numpy.asarray(array)\n"
            "except onehop.errors.UnsupportedData as error: print(error)\n"
            "raw = numpy.asarray(array.raw())\n"
            "print(raw.dtype, raw.tolist())")
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [("a", "BF16", [2], b"\1\2\3\4")])
        same(python(f"PATH = {path!r}\n" + code),
             "numpy has no type for BF16; install ml_dtypes, or take array.raw(), its bits as "
             "unsigned integers\nuint16 [513, 1027]")


@case
def the_array_interface_is_there_for_types_with_a_name():
    numpy, source = need("numpy"), seeded()
    with Scratch() as folder:
        for array in loaded(folder, every_type(source)).values():
            same(hasattr(array, "__array_interface__"), array.dtype in dtypes.NUMPY, array.dtype)
            check(not hasattr(array, "__cuda_array_interface__"), array.dtype)
            if array.dtype in dtypes.NUMPY:
                told = array.__array_interface__
                same(numpy.dtype(told["typestr"]), numpy.dtype(dtypes.NUMPY[array.dtype]))
                same(told, {"shape": (4, 8), "typestr": told["typestr"], "strides": None,
                            "version": 3, "data": (array.address, False)})


# ---- a GPU


@case
def a_gpu_array_tells_its_address_and_shape():
    out = on_gpu(
        "tensors = every_type(seeded()) + [('none', 'F32', [0, 4], b'')]\n"
        "for name, array in load(tensors).items():\n"
        "    assert array.__dlpack_device__() == (2, 0)\n"
        "    made = managed(array.__dlpack__(max_version=(1, 0), stream=1))\n"
        "    address = array.address if array.nbytes else None\n"
        "    assert (made.tensor.device_type, made.tensor.device_id) == (2, 0)\n"
        "    assert (made.tensor.data, made.flags) == (address, 0), name\n"
        "    assert not hasattr(array, '__array_interface__')\n"
        "    assert hasattr(array, '__cuda_array_interface__') == (array.dtype in dtypes.NUMPY)\n"
        "    if array.dtype in dtypes.NUMPY:\n"
        "        told = array.as_readonly().__cuda_array_interface__\n"
        "        assert told.pop('typestr')[1] in 'biufc'\n"
        "        assert told == {'shape': array.shape, 'strides': None, 'version': 3,\n"
        "                        'data': (address or 0, True), 'stream': None}, told\n"
        "print('good')")
    same(out.splitlines()[-1], "good")


@case
def a_gpu_array_takes_the_streams_of_the_standard():
    out = on_gpu(
        "array = load([('w', 'U8', [8], bytes(8))])['w']\n"
        "for stream in (None, -1, 1, 2, 3, 0x7F0000001000):\n"
        "    array.__dlpack__(stream=stream)\n"
        "for stream in (0, -2, '1', 1.5):\n"
        "    print(raised(ValueError, array.__dlpack__, stream=stream))")
    for line, stream in zip(out.splitlines(), ("0", "-2", "1", "1.5")):
        same(line, f"stream {stream} is none that DLPack knows; pass 1 for the legacy default "
                   "stream, 2 for the thread's own, a CUstream, -1 or None")


@case
def host_memory_of_a_gpu_array_is_a_copy_and_only_where_one_is_allowed():
    need("numpy")
    out = on_gpu(
        "import numpy\n"
        "data = bytes(range(64))\n"
        "array = load([('w', 'I16', [4, 8], data)])['w']\n"
        "taken = numpy.from_dlpack(array, device='cpu')\n"
        "assert (taken.tobytes(), taken.shape) == (data, (4, 8))\n"
        "made = managed(array.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=True))\n"
        "assert (made.flags, made.tensor.device_type) == (_abi.EXPORT_COPIED, 1)\n"
        "assert array.cpu().tobytes() == data and array.cpu().cpu().device is HOST\n"
        "print(raised(BufferError, array.__dlpack__, dl_device=(1, 0), copy=False))\n"
        "print(raised(BufferError, array.__dlpack__, copy=True))\n"
        "print(raised(BufferError, array.__dlpack__, dl_device=(2, 1)))\n"
        "print(raised(BufferError, numpy.asarray, array))")
    same(out.splitlines(), [
        "an array on cuda:0 is handed out on the host as a copy only; leave copy out, or take the "
        "array where it is",
        "onehop makes no copies on cuda:0; take the array without copy=True, and copy it there",
        "an array on cuda:0 cannot be handed out on DLPack's device (2, 1); load it there, or take "
        "it where it is and move it",
        "numpy cannot reach an array on cuda:0; take array.cpu(), a copy in host memory"])


@case
def gpu_memory_goes_with_the_last_consumer():
    out = on_gpu(
        "import ctypes\n"
        "array = load([('w', 'U8', [5 << 20], bytes(5 << 20))])['w']\n"
        "free = lambda: _runtime.get().query_device('cuda:0').free_bytes\n"
        "before = free()\n"
        "ends = [take(array), take(array)]\n"
        "del array\n"
        "ends.pop()()\n"
        "assert free() == before\n"
        "thread = threading.Thread(target=ends.pop())\n"
        "thread.start(); thread.join()\n"
        "print(free() - before >= 5 << 20)")
    same(out, "True")


if __name__ == "__main__":
    run()
