"""onehop.read, onehop.load_npy, onehop.GDSModelLoader.

usage: test_read.py [FOLDER of the look-alike driver]
"""
import mmap
import os
import random
import struct
import sys

from package import Scratch, need, noise, python, raised, safetensors, seeded
from tap import Skip, case, check, holds, run, same

import onehop
from onehop import errors, reading


def raw(folder, data, name="raw"):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


# ---- read


@case
def any_range_comes_as_bytes():
    torch, numpy, source = need("torch"), need("numpy"), seeded()
    data = source.randbytes(3_000_001)
    with Scratch() as folder:
        path = raw(folder, data)
        same(onehop.read(path, device="cpu", framework="array").tobytes(), data)
        for _ in range(50):
            offset = source.randrange(len(data) + 1)
            count = source.randrange(len(data) - offset + 1)
            got = onehop.read(path, offset, count, "cpu", framework="numpy")
            same((got.dtype, got.shape), (numpy.uint8, (count,)))
            check(got.tobytes() == data[offset:offset + count], f"{offset} {count}")
        got = onehop.read(path, 2_999_999, device="cpu", framework="torch")
        same((got.dtype, got.tolist()), (torch.uint8, list(data[-2:])))
        same(onehop.read(path, len(data), device="cpu", framework="array").nbytes, 0)


@case
def bytes_go_into_memory_of_the_callers():
    torch, numpy, source = need("torch"), need("numpy"), seeded()
    data = source.randbytes(4096)
    with Scratch() as folder:
        path = raw(folder, data)
        array = onehop.load(safetensors(os.path.join(folder, "m"), [
            ("a", "U8", [7], bytes(7)), ("b", "F32", [8], bytes(32))]), "cpu",
            framework="array")["b"]
        outs = [torch.zeros(4, 2), torch.zeros(8, 8)[3:7, :].reshape(-1)[:8], numpy.zeros(8, "<f4"),
                numpy.zeros((4, 1, 2), "<f4").transpose(0, 2, 1), bytearray(32),
                memoryview(bytearray(64))[32:], mmap.mmap(-1, 32), array,
                torch.nn.Parameter(torch.zeros(8, dtype=torch.bfloat16).repeat(2))]
        if hasattr(numpy, "from_dlpack"):
            outs += [OnlyDLPack(numpy.zeros((2, 4), "<f4")),
                     OnlyDLPack(torch.empty_strided((1, 8), (3, 1)))]
        for out in outs:
            check(onehop.read(path, 5, out=out) is out, f"{type(out)} is not what came")
            same(bytes_of(out), data[5:37], f"{type(out)}")
        same(bytes_of(onehop.read(path, 5, 0, out=bytearray())), b"")
        kept = torch.zeros(8)
        version = kept._version
        onehop.read(path, out=kept)
        check(kept._version > version, "torch does not know that it was written")


class OnlyDLPack:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **named):
        return self.array.__dlpack__(**named)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldDLPack(OnlyDLPack):
    """One that knows no versions."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)


def bytes_of(out):
    if isinstance(out, OnlyDLPack):
        out = out.array
    if isinstance(out, onehop.Array):
        return out.tobytes()
    if isinstance(out, need("torch").Tensor):
        return bytes(out.detach().reshape(-1).view(need("torch").uint8).numpy())
    return bytes(out.tobytes() if hasattr(out, "tobytes") else out)


@case
def what_does_not_fit_is_refused_before_a_byte_moves():
    torch, numpy = need("torch"), need("numpy")
    with Scratch() as folder:
        path = raw(folder, b"x" * 100)

        def refused(words, *arguments, **named):
            error = raised(errors.InvalidArgument, onehop.read, path, *arguments, **named)
            check(isinstance(error, ValueError), "no ValueError")
            holds(str(error), words)

        refused("takes 101 bytes from 0 on, and the file has 100", 0, 101, "cpu")
        refused("takes -1 bytes from 101 on", 101, device="cpu")
        refused("from -1 on", -1, 5, "cpu")
        out = bytearray(8)
        refused("out holds 8 bytes, and 9 are asked for", 0, 9, out=out)
        refused("takes 8 bytes from 93 on", 93, out=out)
        refused("out is on cpu, and cuda:0 is asked for", device="cuda:0", out=out)
        same(bytes(out), bytes(8))
        refused("is not contiguous", out=torch.zeros(8, 8).T)
        refused("is not contiguous", out=numpy.zeros((8, 8))[:, :2])
        refused("is not contiguous", out=memoryview(bytearray(8))[::2])
        refused("is not contiguous", out=OnlyDLPack(numpy.zeros((8, 8))[:, :2]))
        refused("is on meta", out=torch.zeros(8, device="meta"))
        frozen = numpy.zeros(8, "u1")
        frozen.flags.writeable = False
        refused("is read-only", out=frozen)
        refused("is read-only", out=OnlyDLPack(frozen))
        refused("is read-only", out=b"12345678")
        refused("from before version 1.0", out=OldDLPack(numpy.zeros(8, "u1")))
        refused("names no memory", out=[0] * 8)
        raised(errors.NotFound, onehop.read, os.path.join(folder, "none"))
        raised(errors.IOFailed, onehop.read, folder)


@case
def reads_reach_the_look_alike_gpu():
    driver = sys.argv[1] if len(sys.argv) > 1 else ""
    if not os.path.isdir(driver):
        raise Skip("no folder of the look-alike driver was given")
    code = ("import onehop\n"
            "class Given:\n"
            "    def __init__(self, array):\n"
            "        self.array = array\n"
            "    @property\n"
            "    def __cuda_array_interface__(self):\n"
            "        return {'shape': (2, 4), 'strides': None, 'typestr': '<f4', 'version': 3,\n"
            "                'data': (self.array.address, False), 'stream': 1}\n"
            "got = onehop.read(PATH, 3, 32, 'cuda:0', framework='array')\n"
            "print(got.device, got.tobytes() == DATA[3:35])\n"
            "onehop.read(PATH, 100, out=got)\n"
            "print(got.tobytes() == DATA[100:132])\n"
            "onehop.read(PATH, 7, out=Given(got))\n"
            "print(got.tobytes() == DATA[7:39])\n"
            "loader = onehop.GDSModelLoader(FOLDER, framework='array')\n"
            "got = loader.load_tensor_to_gpu('raw', 'w', 9, 8, (4,), 'F16')\n"
            "print(got.device, got.dtype, got.shape, got.tobytes() == DATA[9:17])")
    data = random.Random(5).randbytes(4096)
    with Scratch() as folder:
        path = raw(folder, data)
        out = python(f"PATH, FOLDER, DATA = {path!r}, {folder!r}, {data!r}\n" + code,
                     LD_LIBRARY_PATH=driver)
        same(out.splitlines(), ["cuda:0 True", "True", "True", "cuda:0 F16 (4,) True"])


# ---- load_npy


@case
def every_number_type_shape_and_version_is_numpys():
    need("torch")
    numpy, source = need("numpy"), seeded()
    kinds = ["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8"]
    with Scratch() as folder:
        path = os.path.join(folder, "a.npy")
        for kind in kinds:
            for shape in ((), (0,), (3,), (2, 3, 4), (0, 5), (1,) * 12):
                for fortran in (False, True):
                    for version in ((1, 0), (2, 0), (3, 0)):
                        size = numpy.dtype(kind).itemsize * int(numpy.prod(shape))
                        want = numpy.frombuffer(bytes(b & 1 for b in source.randbytes(size)),
                                                kind).reshape(shape)
                        want = numpy.asarray(want, order="F" if fortran else "C")
                        with open(path, "wb") as file:
                            numpy.lib.format.write_array(file, want, version)
                            file.write(b"what follows")
                        same_array(onehop.load_npy(path, "cpu", framework="numpy"), want, numpy)
                        same_array(onehop.load_npy(path, "cpu", framework="torch").numpy(), want,
                                   numpy)
        with open(path, "wb") as file:
            numpy.save(file, numpy.arange(6, dtype="<f4").reshape(2, 3))
        got = onehop.load_npy(path, "cpu", framework="array")
        same((got.dtype, got.shape), ("F32", (2, 3)))


def same_array(got, want, numpy):
    same((got.dtype, got.shape), (want.dtype, want.shape))
    check(numpy.array_equal(got, want), f"{want.dtype} {want.shape} differs")


@case
def what_is_no_plain_array_is_refused_with_a_remedy():
    numpy = need("numpy")
    with Scratch() as folder:
        path = os.path.join(folder, "a.npy")

        def refused(array, words):
            numpy.save(path, array, allow_pickle=True)
            holds(str(raised(errors.UnsupportedData, onehop.load_npy, path, "cpu")), words)

        refused(numpy.array([{}, 1], dtype=object), "pickled objects")
        refused(numpy.zeros(2, [("a", "<i4"), ("b", "<f4")]), "each field as an array of its own")
        refused(numpy.zeros(2, ">f4"), "numpy.save(path, numpy.load(path).astype('<f4'))")
        refused(numpy.zeros(2, "<U5"), "'<U5'")
        refused(numpy.zeros(2, "<M8[ns]"), "'<M8[ns]'")
        refused(numpy.zeros(2, "<c16"), "'<c16'")
        refused(numpy.zeros(2, "V2"), ".view(numpy.uint16)")
        numpy.save(path, numpy.zeros((2, 3), order="F"))
        holds(str(raised(errors.UnsupportedData, onehop.load_npy, path, "cpu",
                         framework="array")), "Fortran's order")


def npy(text, version=(1, 0), length=None, data=bytes(64)):
    encoded = text.encode("utf-8" if version == (3, 0) else "latin-1")
    width = "<H" if version == (1, 0) else "<I"
    return (b"\x93NUMPY" + bytes(version)
            + struct.pack(width, len(encoded) if length is None else length) + encoded + data)


@case
def malformed_headers_are_refused():
    good = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }\n"
    cases = {
        "does not begin": [b"", b"\x93NUMPY", b"NUMPY\x01\x00" + bytes(20)],
        "its header has": [npy(good)[:9], npy(good, (2, 0), (1 << 20) + 1)],
        "it ends within": [npy(good, length=5000)],
        "not a Python literal": [npy(good.replace("(4,)", "(4")), npy("x" * 10),
                                 npy(good.replace("(4,)", "__import__('os').getpid()")),
                                 npy("(" * 5000), npy("")],
        "not a dict": [npy("[1]"), npy(good.replace("shape", "shapes")),
                       npy(good.replace("}", "'more': 1}")), npy("{'descr': '<f4'}")],
        "fortran_order is neither": [npy(good.replace("False", "0"))],
        "its shape is": [npy(good.replace("(4,)", part))
                         for part in ("4", "[4]", "(-4,)", "(4.0,)", "(True,)", "('4',)")],
        "its descr is": [npy(good.replace("<f4", part)) for part in ("f4", "<f4x", "", "<<f4")],
        "takes 1600 bytes": [npy(good.replace("(4,)", "(400,)"))],
        "the file has": [npy(good.replace("(4,)", "(99999999999999999999999999,)")),
                         npy(good, data=bytes(15))],
        "not UTF-8": [npy(good, (3, 0)).replace(b"descr", b"desc\xff")],
    }
    with Scratch() as folder:
        same(onehop.load_npy(raw(folder, npy(good)), "cpu", framework="array").shape, (4,))
        for words, files in cases.items():
            for data in files:
                error = raised(errors.Malformed, onehop.load_npy, raw(folder, data), "cpu",
                               framework="array")
                holds(str(error), words)
        holds(str(raised(errors.UnsupportedData, onehop.load_npy,
                         raw(folder, npy(good, (4, 0))), "cpu")), "version 4.0")
        raised(errors.NotFound, onehop.load_npy, os.path.join(folder, "none"), "cpu")


# ---- GDSModelLoader


@case
def one_tensor_comes_by_name_by_place_or_by_both():
    torch, numpy, source = need("torch"), need("numpy"), seeded()
    with Scratch() as folder:
        first, second = noise(source, "F16", [3, 8]), noise(source, "BF16", [5])
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [("a", "F16", [3, 8], first), ("b*", "BF16", [5], second)])
        begin = os.path.getsize(path) - len(first) - len(second)
        loader = onehop.GDSModelLoader(folder, device="cpu", framework="torch")

        def got(*arguments, **named):
            tensor = loader.load_tensor_to_gpu("m.safetensors", *arguments, **named)
            return (str(tensor.dtype), list(tensor.shape),
                    bytes(tensor.reshape(-1).view(torch.uint8).numpy()))

        whole = ("torch.float16", [3, 8], first)
        same(got("a"), whole)
        same(got("b*"), ("torch.bfloat16", [5], second))
        same(got("a", begin, 48, (3, 8), torch.float16), whole)
        same(got("any name", begin, None, [3, 8], "float16"), whole)
        same(got("a", shape=(24,)), ("torch.float16", [24], first))
        same(got("a", dtype=numpy.dtype("uint16")), ("torch.uint16", [3, 8], first))
        same(got("a", dtype=numpy.int16), ("torch.int16", [3, 8], first))
        same(got("a", size=48, dtype="F16"), whole)
        # Any offset: no multiple of anything.
        same(got("a", offset=begin + 1, size=7, shape=(7,), dtype=torch.uint8),
             ("torch.uint8", [7], first[1:8]))
        same(got("a", offset=begin, shape=(2,), dtype="F4"), ("torch.float4_e2m1fn_x2", [1],
                                                               first[:1]))


@case
def sizes_that_disagree_are_a_value_error_with_both_figures():
    with Scratch() as folder:
        safetensors(os.path.join(folder, "m.safetensors"), [("a", "F16", [3, 8], bytes(48))])
        loader = onehop.GDSModelLoader(folder, "cpu", framework="array")

        def refused(words, *arguments, **named):
            holds(str(raised(ValueError, loader.load_tensor_to_gpu, "m.safetensors", *arguments,
                             **named)), words)

        refused("size is 47 bytes, and shape [3, 8] of F16 takes 48", "a", size=47)
        refused("size is 48 bytes, and shape [3, 9] of F16 takes 54", "a", shape=(3, 9))
        refused("size is 48 bytes, and shape [3, 8] of F32 takes 96", "a", dtype="float32")
        refused("takes 48 bytes from 1000 on, and the file has", "a", 1000, 48, (3, 8), "F16")
        refused("dtype complex512 is unknown", "a", dtype="complex512")
        refused("shape is [-1, 8]", "a", size=48, shape=(-1, 8))
        raised(KeyError, loader.load_tensor_to_gpu, "m.safetensors", "c")
        raised(errors.NotFound, loader.load_tensor_to_gpu, "none.safetensors", "a")
        raised(FileNotFoundError, onehop.GDSModelLoader, os.path.join(folder, "none"))


@case
def pickles_are_refused_and_the_command_converts_them():
    torch = need("torch")
    need("safetensors")
    with Scratch() as folder:
        shared = torch.arange(6.0).reshape(2, 3)
        state = {"a": shared, "tied": shared, "t": shared.T, "b": torch.ones(3, dtype=torch.half)}
        for name in ("m.pth", "m.bin", "m.pt"):
            path = os.path.join(folder, name)
            torch.save(state, path)
            loader = onehop.GDSModelLoader(folder, "cpu")
            error = raised(errors.UnsupportedData, loader.load_tensor_to_gpu, name, "a")
            holds(str(error), f"{path} is a pickle")
            raised(errors.UnsupportedData, onehop.stream, path, "cpu")
            raised(errors.UnsupportedData, onehop.load_into, {}, path)
        # A folder that holds nothing else.
        error = raised(errors.UnsupportedData, onehop.stream, folder, "cpu")
        command = str(error).split("convert it once: ")[1]
        same(os.system(command.replace("python", sys.executable, 1)), 0)
        got = onehop.load(os.path.join(folder, "m.safetensors"), "cpu", framework="torch")
        same(sorted(got), sorted(state))
        for name, tensor in state.items():
            check(torch.equal(got[name], tensor), name)


@case
def what_is_no_pickle_is_not_refused():
    with Scratch() as folder:
        reading.refuse_pickle(folder)
        reading.refuse_pickle(raw(folder, b"", "m.safetensors"))
        raw(folder, b"", "pytorch_model.bin")
        reading.refuse_pickle(folder)
        path = raw(folder, b"abc", "weights.bin")
        same(onehop.read(path, device="cpu", framework="array").tobytes(), b"abc")


if __name__ == "__main__":
    run()
