#!/usr/bin/env python3
"""onehop load: what it prints, its checksums against Python's, parts of a group, verification."""
import json
import math
import os
import re

from command import (FAULTY, SIZES, Scratch, crc32, environment, loaded, run, safetensors,
                     seeded, sha256, sparse, tensor)
from tap import case, check, holds, run as run_cases, same

FIELDS = ["path", "device", "format", "tensors", "seconds", "bytes", "gb_per_s", "cpu", "routes", "reasons",
          "phases", "peak_pinned_bytes", "pin", "repeats", "pressure", "notes", "verified"]
PHASES = ["open", "parse", "select", "allocate", "plan", "prepare", "first_read", "first_copy",
          "last_read", "last_byte"]


def mixed(source):
    """Tensors of many sizes: none, one element, around a piece of 2 MiB and a stretch of 64 MiB."""
    shapes = [("U8", [0]), ("F32", []), ("BF16", [3, 0, 2]), ("U8", [1]), ("F64", [5]), ("I64", [7, 3]),
              ("U8", [2097151]), ("BF16", [1048576]), ("U8", [2097153]), ("F16", [3, 5, 7]),
              ("U8", [2 ** 26 + 4097]), ("F8_E4M3", [9])]
    shapes += [("U8", [source.randrange(70000)]) for _ in range(200)]
    return [tensor(source, f"t.{i}", *shape) for i, shape in enumerate(shapes)]


@case
def the_object_has_every_field_and_no_more():
    with Scratch() as folder:
        tensors = [tensor(seeded(), "a", "F32", [2, 3]), tensor(seeded(), "b", "U8", [])]
        got = loaded(safetensors(os.path.join(folder, "m.safetensors"), tensors))
        same(list(got), FIELDS)
        same(got["tensors"], [{"name": "a", "dtype": "F32", "shape": [2, 3], "bytes": 24},
                              {"name": "b", "dtype": "U8", "shape": [], "bytes": 1}])
        same((got["format"], got["device"], got["bytes"]), ("safetensors", "host", 25))
        same(got["routes"], {"buffered": 25, "direct": 0, "mapped": 0})
        same(list(got["phases"]), [f"{name}_ns" for name in PHASES])
        same((got["verified"], got["notes"], len(got["repeats"]), got["pin"]), (False, [], 1, None))
        same(got["repeats"][0]["seconds"], got["seconds"])
        check(got["seconds"] > 0 and got["phases"]["last_byte_ns"] > 0, got)


@case
def checksums_are_those_of_python():
    with Scratch() as folder:
        tensors = mixed(seeded())
        path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
        for words, name, function in [([], "crc32", crc32), (["--verify"], "sha256", sha256)]:
            got = loaded(path, "--checksum", name, *words)
            want = [{"name": n, "dtype": d, "shape": s, "bytes": len(b), name: function(b)}
                    for n, d, s, b in tensors]
            same([t["name"] for t in got["tensors"]], [t["name"] for t in want])
            for have, should in zip(got["tensors"], want):
                same(have, should)
            same(got["verified"], bool(words))


@case
def checksums_stand_in_the_table_too():
    with Scratch() as folder:
        tensors = [tensor(seeded(), "a", "F32", [2, 3]), ("none", "U8", [0], b"")]
        path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
        out = run("load", "--device", "host", "--checksum", "crc32", path).out
        holds(out, f"crc32 of each tensor's bytes on host\n{crc32(tensors[0][3])}  a\n00000000  none\n")
        out = run("load", "--device", "host", "--checksum=sha256", path).out
        holds(out, f"\n{sha256(tensors[0][3])}  a\n{sha256(b'')}  none\n")


@case
def an_empty_model_loads():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [])
        got = loaded(path, "--verify", "--checksum", "sha256", "--repeat", "2")
        same((got["tensors"], got["bytes"], got["verified"]), ([], 0, True))
        same(run("load", "--device", "host", path).code, 0)


@case
def names_of_every_kind_survive_json():
    names = ['"', "\\", 'a"b\\c/d', "\n\t\r\b\f", "\x01\x1f", "\x7f", "\x80\x9f", "\0", "a\0b\0", " ",
             "é", "日本", "\U0001f600", "\u2028", "\ufffd", "\ufeff", "ff\x0b", "\u202e", "{}[]:,", "x" * 3000]
    with Scratch() as folder:
        source = seeded()
        tensors = [tensor(source, name, "U8", [i + 1]) for i, name in enumerate(names)]
        path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
        got = loaded(path, "--checksum", "crc32", "--verify")
        same([t["name"] for t in got["tensors"]], names)
        same([t["crc32"] for t in got["tensors"]], [crc32(t[3]) for t in tensors])
        text = run("load", "--device", "host", "--json", path).out
        check(not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text), "a control character is printed raw")


@case
def a_path_that_is_no_text_still_gives_json():
    with Scratch() as folder:
        path = os.path.join(os.fsencode(folder), b"m\xff\xfe\".safetensors")
        safetensors(path, [tensor(seeded(), "a", "U8", [3])])
        result = run("load", "--device", "host", "--json", path)
        same((result.code, result.err), (0, ""))
        check(json.loads(result.out)["path"].endswith("m\ufffd\ufffd\".safetensors"), result.out)


@case
def ranks_beyond_eight_are_printed_whole():
    shape = [1, 2, 1, 3, 1, 2, 1, 1, 5, 1, 2]
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(seeded(), "deep", "U8", shape)])
        same(loaded(path)["tensors"][0]["shape"], shape)
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            json.dump({"deep": 8}, file)
        got = loaded(path, "--tp", "1/5", "--tp-plan", plan, "--verify")["tensors"][0]
        same(got["shape"], shape[:8] + [1] + shape[9:])


@case
def patterns_choose_tensors():
    with Scratch() as folder:
        source = seeded()
        tensors = [tensor(source, name, "U8", [9]) for name in ("a.w", "a.b", "b.w", "c")]
        path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
        same([t["name"] for t in loaded(path, "--tensors", "*.w")["tensors"]], ["a.w", "b.w"])
        same([t["name"] for t in loaded(path, "--tensors", "c", "--tensors=a.?")["tensors"]],
             ["a.w", "a.b", "c"])
        result = run("load", "--device", "host", "--tensors", "a.v", path)
        same((result.code, result.out, result.err.count("\n")), (2, "", 1))
        holds(result.err, "a.v")


def part(data, shape, itemsize, dim, begin, extent):
    """Bytes of the part [begin, begin + extent) of the dimension."""
    inner = math.prod(shape[dim + 1:]) * itemsize
    stride = shape[dim] * inner
    return b"".join(data[row * stride + begin * inner:row * stride + (begin + extent) * inner]
                    for row in range(math.prod(shape[:dim])))


def share(length, rank, size):
    """(begin, extent) of a rank where the first ranks get one more."""
    base, more = divmod(length, size)
    return rank * base + min(rank, more), base + (rank < more)


@case
def the_parts_of_all_ranks_are_the_rows_and_columns_of_the_whole():
    source = seeded()
    with Scratch() as folder:
        tensors = [tensor(source, "rows", "BF16", [12, 501]), tensor(source, "columns", "F32", [257, 24]),
                   tensor(source, "middle", "U8", [5, 6, 7]), tensor(source, "whole", "U8", [11]),
                   tensor(source, "wide", "U8", [3, 2, 300000]), tensor(source, "thin", "U8", [70000, 6])]
        dims = {"rows": 0, "columns": 1, "middle": 1, "wide": 2, "thin": 1}
        path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            json.dump(dims, file)
        for size in 1, 2, 3, 6:
            for rank in range(size):
                got = loaded(path, "--tp", f"{rank}/{size}", "--tp-plan", plan, "--checksum", "crc32",
                             "--verify", "--tp-uneven", "split")
                same(got["verified"], True)
                for have, (name, dtype, shape, data) in zip(got["tensors"], tensors):
                    where = f"{name}, rank {rank} of {size}"
                    if name in dims:
                        begin, extent = share(shape[dims[name]], rank, size)
                        data = part(data, shape, SIZES[dtype], dims[name], begin, extent)
                        shape = shape[:dims[name]] + [extent] + shape[dims[name] + 1:]
                        if size > 1:
                            same((have["split_dim"], have["split_begin"]), (dims[name], begin), where)
                    same((have["name"], have["shape"], have["bytes"]), (name, shape, len(data)), where)
                    same(have["crc32"], crc32(data), where)


@case
def an_uneven_split_is_refused_or_done():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(seeded(), "odd", "U8", [7, 2])])
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            json.dump({"odd": 0}, file)
        for words in [], ["--tp-uneven", "refuse"]:
            result = run("load", "--device", "host", path, "--tp", "1/3", "--tp-plan", plan, *words)
            same((result.code, result.out, result.err.count("\n")), (2, "", 1))
            holds(result.err, '"odd"')
        shapes = [loaded(path, "--tp", f"{rank}/3", "--tp-plan", plan, "--tp-uneven=split", "--verify")
                  ["tensors"][0]["shape"] for rank in range(3)]
        same(shapes, [[3, 2], [2, 2], [2, 2]])


@case
def a_plan_that_is_no_json_is_malformed_data():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [tensor(seeded(), "a", "U8", [8])])
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            file.write("{\"a\": }")
        result = run("load", "--device", "host", path, "--tp", "0/2", "--tp-plan", plan)
        same((result.code, result.out, result.err.count("\n")), (3, "", 1))


@case
def repeats_are_listed_and_summed_up():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(seeded(), "a", "U8", [100000])])
        got = loaded(path, "--repeat", "5", "--verify", "--checksum", "crc32")
        times = [repeat["seconds"] for repeat in got["repeats"]]
        same(len(times), 5)
        same(got["seconds"], sorted(times)[2])
        out = run("load", "--device", "host", "--repeat", "3", path).out
        check(re.search(r"^repeats +1: .*\n +2: .*\n +3: .*\nmin/median/max +\S+ / \S+ / \S+ GB/s$", out,
                        re.M), out)


@case
def the_table_has_every_fact():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(seeded(), "a", "U8", [1234567])])
        result = run("load", "--device", "host", "--verify", path)
        same((result.code, result.err), (0, ""))
        for line in (f"model           {path}", "format          safetensors, 1 file", "tensors         1",
                     "bytes           1,234,567 (1.18 MiB)", "route           buffered: 1,234,567 bytes",
                     "pinned          0 bytes at most"):
            holds(result.out, line + "\n")
        for name in PHASES:
            check(re.search(rf"^(phases|since its start)? +{name.replace('_', ' ')} +(\S+ (us|ms|s)|none)$", result.out,
                            re.M), name)
        holds(result.out, "\nverified        every byte")
        same(run("load", "--device", "host", "--quiet", path), (0, "", ""))


@case
def reasons_come_with_what_to_do():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(seeded(), "a", "U8", [1000])])
        got = loaded(path, "--option", "route=buffered")
        forced = [r for r in got["reasons"] if r["name"] == "ROUTE_FORCED"]
        same(forced, [{"name": "ROUTE_FORCED", "text": "the route was forced by option",
                       "remedy": "set route to auto"}])
        holds(run("load", "--device", "host", "--option", "route=buffered", path).out,
              "ROUTE_FORCED: the route was forced by option; set route to auto\n")


@case
def a_device_that_lies_is_found_by_verify():
    source = seeded()
    with Scratch() as folder:
        tensors = [tensor(source, "first", "U8", [256]), tensor(source, "tall \x07", "U8", [9 << 20]),
                   tensor(source, "last", "U8", [100])]
        path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
        arena = {"first": 0, "tall \x07": 256, "last": 256 + (9 << 20)}
        for (name, _, _, data), shown in zip(tensors, ["first", "tall \\x07", "last"]):
            byte = source.randrange(len(data))
            result = run("load", "--device", "host", "--verify", path, command=FAULTY,
                         env=environment(FAULTY_BYTE=str(arena[name] + byte)))
            same(result.err, f'onehop: tensor "{shown}" differs: its byte {byte} is '
                 f"0x{data[byte] ^ 0x10:02x} on the device and 0x{data[byte]:02x} in the file; load it "
                 "again; if it differs again, do not use this device or file\n")
            same((result.code, result.out), (3, ""))
        # The same program without the lie.
        same(run("load", "--device", "host", "--verify", "--quiet", path, command=FAULTY), (0, "", ""))


@case
def a_device_that_lies_changes_the_checksum():
    with Scratch() as folder:
        data = tensor(seeded(), "a", "U8", [5000])
        path = safetensors(os.path.join(folder, "m.safetensors"), [data])
        got = loaded(path, "--checksum", "crc32", command=FAULTY, env=environment(FAULTY_BYTE="4321"))
        wrong = bytearray(data[3])
        wrong[4321] ^= 0x10
        same(got["tensors"][0]["crc32"], crc32(bytes(wrong)))


@case
def shards_of_a_folder_load_as_one_model():
    source = seeded()
    with Scratch() as folder:
        names = ["a", "b", "c", "d"]
        tensors = [tensor(source, name, "F32", [100 + i]) for i, name in enumerate(names)]
        shards = {"model-00001-of-00002.safetensors": tensors[:2],
                  "model-00002-of-00002.safetensors": tensors[2:]}
        for shard, inside in shards.items():
            safetensors(os.path.join(folder, shard), inside)
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
            json.dump({"weight_map": {t[0]: s for s, inside in shards.items() for t in inside}}, file)
        got = loaded(folder, "--checksum", "sha256", "--verify")
        same({t["name"]: t["sha256"] for t in got["tensors"]}, {t[0]: sha256(t[3]) for t in tensors})


@case
def files_beyond_4_gib_are_verified_in_small_memory():
    with Scratch() as folder:
        path = os.path.join(folder, "m.safetensors")
        size = (4 << 30) + 8191
        sparse(path, "big", size)
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x07")
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            json.dump({"big": 0}, file)
        # The last of 4096 ranks: its bytes lie beyond 4 GiB.
        got = loaded(path, "--tp", "4095/4096", "--tp-plan", plan, "--tp-uneven", "split", "--verify",
                     "--checksum", "crc32")["tensors"][0]
        begin, extent = share(size, 4095, 4096)
        same((got["split_begin"], got["bytes"]), (begin, extent))
        same(got["crc32"], crc32(bytes(extent - 1) + b"\x07"))


@case
def many_tensors_are_printed_fast_and_right():
    source = seeded()
    with Scratch() as folder:
        tensors = [(f"model.layers.{i}.weight", "U8", [i % 5], source.randbytes(i % 5))
                   for i in range(150000)]
        path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
        got = loaded(path, "--checksum", "crc32", timeout=60)
        same([t["crc32"] for t in got["tensors"]], [crc32(t[3]) for t in tensors])


if __name__ == "__main__":
    run_cases()
