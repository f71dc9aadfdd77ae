"""onehop.load: every dtype and shape into every framework, on the host and a look-alike GPU.

usage: test_load.py [FOLDER of the look-alike driver]
"""
import gc
import math
import os
import struct
import sys

from package import BITS, Scratch, need, noise, python, raised, safetensors, seeded
from tap import Skip, case, check, holds, run, same

import onehop
from onehop import arenas, dtypes, errors, loading
from onehop._move import Buffer

SHAPES = ([], [0], [3], [0, 4], [2, 3, 4], [8, 12], [1] * 10)
# Elements that share bytes have to fill them.
PACKED = {"F4": ([8], [2, 4], [0, 2], [2, 3]), "F6_E2M3": ([4], [2, 8], [2, 2]),
          "F6_E3M2": ([8], [0, 4])}


def look_alike():
    """The folder of the look-alike driver."""
    folder = sys.argv[1] if len(sys.argv) > 1 else ""
    if not os.path.isdir(folder):
        raise Skip("no folder of the look-alike driver was given")
    return folder


def every_type(source):
    """Tensors of every dtype and shape."""
    found = []
    for dtype in BITS:
        for number, shape in enumerate(PACKED.get(dtype, SHAPES)):
            found.append((f"{dtype}.{number}", dtype, list(shape), noise(source, dtype, shape)))
    return found


def model(folder, tensors, name="m.safetensors", metadata=None):
    return safetensors(os.path.join(folder, name), tensors, metadata)


def sharded(folder, source, count=3):
    """A folder of shards with an index; the tensors."""
    import json

    everything, places = [], {}
    for shard in range(count):
        name = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        tensors = [(f"s{shard}.t{i}", "F32", [6, 8], noise(source, "F32", [6, 8]))
                   for i in range(4)]
        tensors.append((f"s{shard}.odd", "U8", [7], noise(source, "U8", [7])))
        model(folder, tensors, name)
        everything += tensors
        places.update({tensor[0]: name for tensor in tensors})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)
    return everything


def bytes_of_torch(tensor):
    torch = need("torch")
    if not tensor.numel():
        return b""
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())


# ---- frameworks


@case
def numpy_arrays_hold_every_type():
    numpy, source = need("numpy"), seeded()
    need("ml_dtypes")
    with Scratch() as folder:
        tensors = every_type(source)
        loaded = onehop.load(model(folder, tensors), "cpu", framework="numpy", verify="read")
        same(list(loaded), [tensor[0] for tensor in tensors])
        for name, dtype, shape, data in tensors:
            same(loaded[name].tobytes(), data, name)
            same(loaded.info[name].dtype, dtype)
            same(loaded.info[name].shape, tuple(shape))
            if dtype in PACKED:
                same(loaded[name].dtype, numpy.uint8, name)
                continue
            same(loaded[name].shape, tuple(shape), name)
            same(str(loaded[name].dtype), dtypes.NUMPY.get(dtype) or dtypes.ML_DTYPES[dtype])
            check(loaded[name].flags.writeable and loaded[name].flags.aligned, name)


@case
def numpy_without_ml_dtypes_says_so_and_offers_raw_views():
    need("numpy")
    code = ("import sys; sys.modules['ml_dtypes'] = None\n"
            "import onehop\n"
            "try: onehop.load(PATH, 'cpu', framework='numpy')\n"
            "except onehop.errors.UnsupportedData as error: print(error)\n"
            "raw = onehop.load(PATH, 'cpu', framework='numpy', raw=True)\n"
            "print(raw['a'].dtype, raw['a'].tolist(), raw['b'].dtype, raw['c'].dtype)")
    with Scratch() as folder:
        path = model(folder, [("a", "BF16", [2], b"\1\2\3\4"), ("b", "F8_E4M3", [1], b"\1"),
                              ("c", "F32", [1], bytes(4))])
        same(python(f"PATH = {path!r}\n" + code),
             "numpy has no type for BF16; install ml_dtypes, or use raw=True for its bits as "
             "unsigned integers\nuint16 [513, 1027] uint8 float32")


@case
def torch_tensors_hold_every_type_and_are_no_views():
    torch, source = need("torch"), seeded()
    with Scratch() as folder:
        tensors = every_type(source)
        loaded = onehop.load(model(folder, tensors), "cpu", framework="torch")
        for name, dtype, shape, data in tensors:
            tensor = loaded[name]
            same(bytes_of_torch(tensor), data, name)
            check(tensor.is_contiguous() and not tensor.requires_grad, name)
            check(tensor._base is None and not tensor._is_view(), f"{name} is a view")
            if dtype not in PACKED:
                same((tensor.dtype, list(tensor.shape)),
                     (getattr(torch, dtypes.TORCH[dtype]), shape), name)
        same((loaded["F4.1"].dtype, list(loaded["F4.1"].shape)), (torch.float4_e2m1fn_x2, [2, 2]))
        same((loaded["F4.3"].dtype, list(loaded["F4.3"].shape)), (torch.uint8, [3]))
        same((loaded["F6_E2M3.1"].dtype, list(loaded["F6_E2M3.1"].shape)), (torch.uint8, [2, 6]))


@case
def torch_tensors_that_lie_end_to_end_are_as_free_as_others():
    torch, source = need("torch"), seeded()
    shapes = [("F32", [8, 64]), ("F32", [24, 64]), ("F32", [2, 8, 64]), ("F32", [4, 8, 64]),
              ("F32", [512]), ("F32", [1024]), ("F32", [0, 64]), ("F32", [512]), ("I32", [512]),
              ("BF16", [16, 64]), ("BF16", [16, 64]), ("U8", [2048]), ("U8", [1024, 2]), ("F32", [])]
    tensors = [(f"t{i:02}", dtype, shape, noise(source, dtype, shape))
               for i, (dtype, shape) in enumerate(shapes)]
    with Scratch() as folder:
        path = model(folder, tensors)
        for arena in loading.ARENAS:
            loaded = onehop.load(path, "cpu", framework="torch", arena=arena)
            runs = [len(run) for run in arenas._runs(list(loaded.info.values()))]
            same(runs, [2, 2, 2, 1, 1, 1, 2, 1, 1, 1])
            for name, dtype, shape, data in tensors:
                tensor = loaded[name]
                same((bytes_of_torch(tensor), tensor.dtype, list(tensor.shape)),
                     (data, getattr(torch, dtypes.TORCH[dtype]), shape), f"{arena} {name}")
                check(tensor.is_contiguous() and not tensor._is_view(), name)
                tensor._version_before = tensor._version
            loaded["t00"].zero_().add_(1)
            for name in list(loaded)[1:]:
                same(loaded[name]._version, loaded[name]._version_before, name)
            # What autograd kept of one stays good when its neighbour changes.
            a = loaded["t01"].requires_grad_()
            total = (a * loaded["t01"]).sum()
            loaded["t00"].zero_()
            total.backward()
            check(torch.allclose(a.grad, 2 * a, rtol=0, atol=0, equal_nan=True), "gradient")
            loaded["t05"].resize_(32, 32)


@case
def torch_tensors_train_and_change_one_by_one():
    torch = need("torch")
    with Scratch() as folder:
        path = model(folder, [("a", "F32", [4], bytes(16)), ("b", "F32", [4], bytes(16))])
        loaded = onehop.load(path, "cpu", framework="torch")
        a, b = loaded["a"].requires_grad_(), loaded["b"]
        total = (a * 2).sum()
        b.add_(1)
        total.backward()
        same(a.grad.tolist(), [2.0] * 4)
        with torch.device("meta"):
            same(onehop.load(path, "cpu", framework="torch")["a"].device.type, "cpu")


@case
def an_error_that_is_kept_keeps_no_memory():
    def stop(landed, total):
        raise KeyboardInterrupt

    with Scratch() as folder:
        path = model(folder, [("a", "F32", [1 << 18], bytes(1 << 20))])
        kept = raised(KeyboardInterrupt,
                      lambda: onehop.load(path, "cpu", framework="array", progress=stop))
        gc.collect()
        same([buffer.nbytes for buffer in gc.get_objects() if isinstance(buffer, Buffer)], [])
        check(kept.__traceback__ is not None, "the error has no traceback")


@case
def a_device_that_is_left_open_is_a_gpu_where_there_is_one():
    code = ("import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
            "import onehop\n"
            "report = onehop.load(PATH).report\n"
            "print(report.device, report.framework)")
    with Scratch() as folder:
        path = model(folder, [("a", "F32", [1], bytes(4))])
        same(python(f"PATH = {path!r}\n" + code, LD_LIBRARY_PATH=look_alike()), "cuda:0 array")
        same(python(f"PATH = {path!r}\n" + code, LD_LIBRARY_PATH="", CUDA_VISIBLE_DEVICES=""),
             "cpu array")


@case
def arrays_need_no_framework():
    source = seeded()
    with Scratch() as folder:
        tensors = every_type(source)
        loaded = onehop.load(model(folder, tensors), "cpu", framework="array")
        for name, dtype, shape, data in tensors:
            array = loaded[name]
            same((array.dtype, array.shape, array.nbytes), (dtype, tuple(shape), len(data)), name)
            same(array.tobytes(), data, name)
        same(loaded["F6_E2M3.1"].raw_shape, (2, 6))
        same(math.prod(loaded["F4.3"].raw_shape), 3)


@case
def the_framework_left_open_is_torch_if_imported_else_numpy():
    need("torch")
    code = "import onehop; print(onehop.load(PATH, 'cpu').report.framework)"
    with Scratch() as folder:
        path = model(folder, [("a", "U8", [1], b"a")])
        same(python(f"PATH = {path!r}\n" + code), "numpy")
        same(python(f"PATH = {path!r}\nimport torch\n" + code), "torch")
        same(python(f"PATH = {path!r}\nimport sys; sys.modules['numpy'] = None\n"
                    "import importlib.util as u; find = u.find_spec\n"
                    "u.find_spec = lambda name: None if name == 'numpy' else find(name)\n"
                    "del sys.modules['numpy']\n" + code), "array")
        raised(errors.InvalidArgument, onehop.load, path, framework="nothing")
        raised(errors.NoDevice, onehop.load, path, "cuda:0", framework="numpy")


@case
def a_gpu_takes_arrays_without_torch():
    driver = look_alike()
    source = seeded()
    code = ("import onehop, hashlib\n"
            "for arena in ('one', 'file', 'tensor'):\n"
            "    loaded = onehop.load(PATH, 'cuda:0', framework='array', arena=arena,\n"
            "                         verify='read')\n"
            "    digest = hashlib.sha256(b''.join(a.tobytes() for a in loaded.values()))\n"
            "    print(loaded.report.device, digest.hexdigest())\n"
            "with onehop.safe_open(PATH, 'array', 'cuda:0') as file:\n"
            "    print(file.get_slice('t0')[1:3, 2:4].tobytes().hex())\n"
            "print(onehop.explain(PATH).device)")
    with Scratch() as folder:
        import hashlib

        tensors = [(f"t{i}", "U8", [50, 300], noise(source, "U8", [50, 300])) for i in range(40)]
        path = model(folder, tensors)
        want = hashlib.sha256(b"".join(tensor[3] for tensor in tensors)).hexdigest()
        part = b"".join(tensors[0][3][row * 300 + 2:row * 300 + 4] for row in (1, 2)).hex()
        out = python(f"PATH = {path!r}\n" + code, LD_LIBRARY_PATH=driver)
        same(out.splitlines(), [f"cuda:0 {want}"] * 3 + [part, "cuda:0"])


# ---- what is loaded


@case
def a_folder_is_one_plan_over_its_shards():
    source = seeded()
    with Scratch() as folder:
        tensors = sharded(folder, source)
        for arena in ("one", "file", "tensor"):
            loaded = onehop.load(folder, "cpu", framework="array", arena=arena, verify="read")
            same({name: array.tobytes() for name, array in loaded.items()},
                 {name: data for name, _, _, data in tensors}, arena)
            buffers = {id(array.buffer) for array in loaded.values()}
            same(len(buffers), {"one": 1, "file": 3, "tensor": len(tensors)}[arena], arena)


@case
def each_arena_serves_every_framework():
    source = seeded()
    for framework, module in (("numpy", "ml_dtypes"), ("torch", "torch")):
        need(module)
        with Scratch() as folder:
            path = model(folder, every_type(source))
            whole = onehop.load(path, "cpu", framework=framework)
            for arena in ("file", "tensor"):
                loaded = onehop.load(path, "cpu", framework=framework, arena=arena, verify="read")
                for name, value in whole.items():
                    same((loaded[name].dtype, loaded[name].shape), (value.dtype, value.shape))
                    if framework == "numpy":
                        same(loaded[name].tobytes(), value.tobytes(), name)
                    else:
                        same(bytes_of_torch(loaded[name]), bytes_of_torch(value), name)


@case
def names_patterns_and_functions_choose():
    source = seeded()
    with Scratch() as folder:
        sharded(folder, source)

        def names(tensors):
            return list(onehop.load(folder, "cpu", framework="array", tensors=tensors))

        same(names("s0.t1"), ["s0.t1"])
        same(names(["s?.t0", "s1.odd"]), ["s0.t0", "s1.t0", "s1.odd", "s2.t0"])
        same(names(lambda name: name.endswith("odd")), ["s0.odd", "s1.odd", "s2.odd"])
        same(names([]), [])
        same(names(lambda name: False), [])
        holds(str(raised(KeyError, names, "s0.t9")), "s0.t")


@case
def a_model_without_tensors_or_bytes_loads():
    with Scratch() as folder:
        none = model(folder, [], "none.safetensors")
        tensors = [("a", "F32", [0, 3], b""), ("b", "U8", [0], b"")]
        empty = model(folder, tensors, "empty.safetensors")
        for framework in ("array", "numpy", "torch"):
            if framework != "array":
                need(framework)
            for arena in ("one", "file", "tensor"):
                loaded = onehop.load(none, "cpu", framework=framework, arena=arena)
                same((dict(loaded), loaded.report.bytes), ({}, 0))
                loaded = onehop.load(empty, "cpu", framework=framework, arena=arena, verify="read")
                same(list(loaded["a"].shape), [0, 3])


@case
def ranks_parts_join_to_the_whole():
    numpy, source = need("numpy"), seeded()
    with Scratch() as folder:
        tensors = sharded(folder, source)
        whole = onehop.load(folder, "cpu", framework="numpy")
        plan = {"*.t0": 0, "*.t1": 1, "*.t2": None, "*.t*": -1}
        parts = [onehop.load(folder, "cpu", framework="numpy", tp=(rank, 2), tp_plan=plan,
                             verify="read") for rank in range(2)]
        same(len(whole), len(tensors))
        for name, array in whole.items():
            dim = {"t0": 0, "t1": 1}.get(name.partition(".")[2])
            if dim is None:
                same([part[name].tobytes() for part in parts], [array.tobytes()] * 2, name)
            else:
                joined = numpy.concatenate([part[name] for part in parts], axis=dim)
                same(joined.tobytes(), array.tobytes(), name)
        raised(errors.InvalidArgument, onehop.load, folder, "cpu", tp=(2, 2), framework="array")
        raised(errors.InvalidArgument, onehop.load, folder, "cpu", tp=(0, 5), tp_plan={"*": 0},
               framework="array")
        uneven = [onehop.load(folder, "cpu", framework="numpy", tp=(rank, 5), tp_plan={"*.t0": 1},
                              tp_uneven="split", tensors="s0.t0")["s0.t0"] for rank in range(5)]
        same(numpy.concatenate(uneven, axis=1).tobytes(), whole["s0.t0"].tobytes(), "uneven")


def gguf(path, tensors, keys=()):
    """Writes [(name, ggml type, dims fastest first, bytes)] and [(key, kind, raw value)]."""
    def text(words):
        return struct.pack("<Q", len(words)) + words.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(key) + struct.pack("<I", kind) + raw for key, kind, raw in keys)
    data = b""
    for name, kind, dims, content in tensors:
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += content + bytes(-len(content) % 32)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)
    return path


@case
def gguf_floats_are_tensors_and_quantised_ones_raw_blocks():
    numpy, source = need("numpy"), seeded()
    with Scratch() as folder:
        f32, q4, i8 = source.randbytes(4 * 6), source.randbytes(144 * 4), source.randbytes(5)
        path = gguf(os.path.join(folder, "m.gguf"),
                    [("f", 0, [3, 2], f32), ("q", 12, [512, 2], q4), ("i", 24, [5], i8)],
                    [("general.name", 8, struct.pack("<Q", 4) + b"tiny"),
                     ("n", 4, struct.pack("<I", 7)), ("x", 6, struct.pack("<f", 0.5)),
                     ("yes", 7, b"\1")])
        loaded = onehop.load(path, "cpu", framework="numpy", verify="read")
        same((loaded["f"].dtype, loaded["f"].shape), (numpy.float32, (2, 3)))
        same((loaded["q"].dtype, loaded["q"].shape), (numpy.uint8, (2, 288)))
        same([loaded[name].tobytes() for name in "fqi"], [f32, q4, i8])
        info = loaded.info["q"]
        same((info.dtype, info.shape, info.block_elements, info.block_bytes),
             ("Q4_K", (2, 512), 256, 144))
        same(loaded.metadata, {"general.name": "tiny", "n": 7, "x": 0.5, "yes": True})
        same(loaded.report.format, "gguf")


# ---- what it says, and how it fails


@case
def the_report_says_what_happened():
    with Scratch() as folder:
        path = model(folder, [("<w>", "U8", [1000], bytes(1000))], "<m>.safetensors", {"a": "b"})
        loaded = onehop.load(path, "cpu", framework="array", verify="read", route="buffered")
        report = loaded.report
        same((report.tensors, report.bytes, report.routes), (1, 1000, {"buffered": 1000}))
        same((report.verified, report.device, loaded.metadata), (True, "cpu", {"a": "b"}))
        same([reason.name for reason in report.reasons], ["ROUTE_FORCED"])
        check(report.seconds > 0 and report.rate > 0, "no time")
        for phase in ("open", "parse", "select", "allocate", "plan", "prepare", "transfer"):
            check(phase in report.phases, phase)
        holds(str(report), "set route to auto")
        holds(report._repr_html_(), "&lt;m&gt;.safetensors")


@case
def explain_reads_no_tensor_and_prints_well():
    with Scratch() as folder:
        source = seeded()
        sharded(folder, source)
        told = onehop.explain(folder, "cpu")
        same((told.tensors, told.bytes, told.device), (15, 3 * (4 * 192 + 7), "cpu"))
        check(told.groups and told.groups[0].route == "buffered", told.groups)
        holds(str(told), "model-00001-of-00003.safetensors")
        holds(told._repr_html_(), "<table>")
        same(onehop.explain(folder, "cpu", tensors=[]).tensors, 0)


@case
def verification_sees_a_changed_byte():
    from onehop import loading

    with Scratch() as folder:
        path = model(folder, [("good", "U8", [100], bytes(100)), ("bad", "U8", [9], bytes(9))])
        honest = loading.fill

        def dishonest(placement, *arguments):
            done = honest(placement, *arguments)
            placement.memories[0].owner.fill(placement.items[1].arena_offset + 3, 1, 1)
            return done

        loading.fill = dishonest
        try:
            error = raised(errors.Mismatch, onehop.load, path, "cpu", framework="array",
                           verify="read")
        finally:
            loading.fill = honest
        holds(str(error), "'bad'")
        raised(errors.InvalidArgument, onehop.load, path, verify="checksum")
        raised(errors.InvalidArgument, onehop.load, path, arena="two")


@case
def progress_is_told_and_what_it_raises_cancels():
    seen = []
    with Scratch() as folder:
        path = model(folder, [("w", "U8", [5000000], bytes(5000000))])
        onehop.load(path, "cpu", framework="array", progress=lambda *told: seen.append(told))
        same(seen[-1], (5000000, 5000000))

        def stop(landed, total):
            raise KeyboardInterrupt

        raised(KeyboardInterrupt, onehop.load, path, "cpu", framework="array", progress=stop)
        onehop.load(path, "cpu", framework="array", progress=True)


@case
def failures_are_those_of_the_files():
    with Scratch() as folder:
        raised(FileNotFoundError, onehop.load, os.path.join(folder, "none.safetensors"))
        path = model(folder, [("w", "U8", [50], bytes(50))])
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) - 1)
        holds(str(raised(errors.Malformed, onehop.load, path)), "m.safetensors")
        raised(ValueError, onehop.load, "a\0b")
        raised(errors.OutOfRange, onehop.load, path, route="nowhere")


@case
def many_tensors_are_made_while_bytes_move():
    need("torch")
    import time

    count = 16384
    with Scratch() as folder:
        path = model(folder, [(f"layers.{i // 16}.{i % 16}.weight", "BF16", [8, 8], bytes(128))
                              for i in range(count)])
        best = min(onehop.load(path, "cpu", framework="torch").report.phases["tensors"]
                   for _ in range(3))
        begin = time.perf_counter()
        same(len(onehop.load(path, "cpu", framework="torch")), count)
        print(f"# {best / count * 1e6:.2f} us a tensor, {time.perf_counter() - begin:.3f} s in all")
        check(best / count < 20e-6, "more than 20 us a tensor")


@case
def the_command_of_the_module_loads_explains_and_lists():
    import subprocess

    from package import environment

    def command(*words):
        done = subprocess.run([sys.executable, "-m", "onehop", *words], env=environment(PATH=""),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stdout, done.stderr

    with Scratch() as folder:
        path = model(folder, [("w", "F32", [2, 3], bytes(24))])
        status, out, _ = command("load", "--device", "cpu", "--verify", path)
        same(status, 0)
        holds(out, "every byte")
        holds(command("explain", "--device", "cpu", path)[1], "buffered")
        same(command("list", path), (0, "w\tF32\t[2,3]\t24\n", ""))
        holds(command("version")[1], "onehop ")
        same(command("load", os.path.join(folder, "none"))[0], 1)
        same(command("load", "--tensors", "x", "--device", "cpu", path)[0], 2)
        with open(path, "ab") as file:
            file.write(b"x")
        same(command("list", path)[0], 3)
        same(command("bench")[0], 2)


if __name__ == "__main__":
    run()
