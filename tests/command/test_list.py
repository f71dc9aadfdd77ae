#!/usr/bin/env python3
"""onehop list and onehop explain: exact tables and their JSON."""
import json
import os
import re

from command import Scratch, run, safetensors, seeded, tensor
from tap import case, check, holds, run as run_cases, same


def three(folder):
    """The path of a model of three tensors and its data's begin."""
    source = seeded()
    path = safetensors(os.path.join(folder, "m.safetensors"),
                       [tensor(source, "embed.weight", "BF16", [10, 3]), tensor(source, "b", "F32", []),
                        tensor(source, "none", "U8", [0, 4])], metadata={"format": "pt", "a\n": "é"})
    with open(path, "rb") as file:
        return path, 8 + int.from_bytes(file.read(8), "little")


@case
def the_table_lines_up():
    with Scratch() as folder:
        path, data = three(folder)
        result = run("list", path)
        same((result.code, result.err), (0, ""))
        size = f"{data + 64} bytes" if data + 64 < 1024 else None
        same(result.out, f"""\
name          dtype  shape   bytes  offset  file
embed.weight  BF16   [10,3]     60  {data:6}  m.safetensors
b             F32    []          4  {data + 60:6}  m.safetensors
none          U8     [0,4]       0  {data + 64:6}  m.safetensors

format          safetensors, 1 file of {size}
tensors         3
bytes           64 (64 bytes)
""")


@case
def json_has_the_same_and_the_files():
    with Scratch() as folder:
        path, data = three(folder)
        got = json.loads(run("list", "--json", path).out)
        same(list(got), ["path", "format", "files", "tensors", "tensor_count", "tensor_bytes",
                         "file_bytes", "notes"])
        same(got["files"], [{"path": path, "bytes": data + 64}])
        same(got["tensors"][0], {"name": "embed.weight", "dtype": "BF16", "shape": [10, 3], "bytes": 60,
                                 "file": 0, "offset": data})
        same((got["tensor_count"], got["tensor_bytes"], got["file_bytes"]), (3, 64, data + 64))


@case
def metadata_is_listed_if_asked_for():
    with Scratch() as folder:
        path, _ = three(folder)
        same(json.loads(run("list", "--json", "--metadata", path).out)["metadata"],
             [{"key": "format", "kind": "string", "value": "pt"},
              {"key": "a\n", "kind": "string", "value": "é"}])
        check(run("list", "--metadata", path).out.endswith(
            "\nmetadata\nformat (string): pt\na\\x0a (string): é\n"), "metadata of the table")


@case
def patterns_choose_what_is_listed():
    with Scratch() as folder:
        path, _ = three(folder)
        got = json.loads(run("list", "--json", "--tensors", "*e*", path).out)
        same([t["name"] for t in got["tensors"]], ["embed.weight", "none"])
        same((got["tensor_count"], got["tensor_bytes"]), (2, 60))
        same(run("list", "--tensors", "zzz", path).code, 2)


@case
def names_cannot_move_the_cursor_or_turn_the_text():
    names = ["\x1b[31mred", "bell\x07", "a\nb", "del\x7f", "c1\x9b2J", "\u202eright", "back\\slash", "日本"]
    shown = ["\\x1b[31mred", "bell\\x07", "a\\x0ab", "del\\x7f", "c1\\xc2\\x9b2J", "\\xe2\\x80\\xaeright",
             "back\\\\slash", "日本"]
    with Scratch() as folder:
        source = seeded()
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(source, name, "U8", [1]) for name in names])
        lines = run("list", path).out.split("\n")[1:9]
        same([line.split("  ")[0] for line in lines], shown)
        same(len({line.index("U8") for line in lines}), 1, "columns of the dtype")


@case
def many_tensors_are_listed_fast():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [(f"layers.{i}.weight", "U8", [1], b"x") for i in range(150000)])
        result = run("list", path, timeout=30)
        same((result.code, len(result.out.splitlines())), (0, 150005))
        holds(result.out, "\ntensors         150,000\n")


@case
def a_plan_is_explained_without_a_load():
    with Scratch() as folder:
        source = seeded()
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(source, "a", "U8", [3 << 20]), tensor(source, "b", "BF16", [4, 9])])
        result = run("explain", "--device", "host", path)
        same((result.code, result.err), (0, ""))
        holds(result.out, "tensors         2 in 3,145,800 bytes (3.00 MiB)\n")
        check(re.search(r"^buffered +(straight|through the ring): \S+ segments?, \S+ bytes read, \S+ "
                        r"pieces? of \S+m\.safetensors", result.out, re.M), result.out)
        got = json.loads(run("explain", "--device", "host", "--json", "--segments", path).out)
        same((got["tensors"], got["bytes"]), (2, 3145800))
        check(got["arena_bytes"] >= got["bytes"] and got["read_bytes"] >= got["bytes"], got)
        same(got["segment_count"], len(got["segments"]))
        same(got["segment_count"], sum(g["segments"] for g in got["groups"]))
        same(got["pieces"], sum(s["pieces"] for s in got["segments"]))
        same(sum(g["read_bytes"] for g in got["groups"]),
             sum(s["rows"] * s["row_bytes"] for s in got["segments"]))
        same({s["path"] for s in got["segments"]}, {path})


@case
def segments_are_listed_if_asked_for():
    with Scratch() as folder:
        path, _ = three(folder)
        got = json.loads(run("explain", "--device", "host", "--json", path).out)
        check("segments" not in got, "segments that nobody asked for")
        out = run("explain", "--device", "host", "--segments", path).out
        rows = re.search(r"\nroute +way +offset .*\n((?:.*\n)*)", out).group(1).splitlines()
        same(len(rows), got["segment_count"])


@case
def explain_tells_why_and_what_to_do():
    with Scratch() as folder:
        path, _ = three(folder)
        out = run("explain", "--device", "host", "--option", "route=buffered", path).out
        holds(out, "reason          ROUTE_FORCED: the route was forced by option; set route to auto\n")
        got = json.loads(run("explain", "--device", "host", "--option", "route=buffered", "--json",
                             path).out)
        check("ROUTE_FORCED" in [r["name"] for r in got["reasons"]], got["reasons"])
        check(all("ROUTE_FORCED" in g["reasons"] for g in got["groups"]), got["groups"])


@case
def one_rank_s_part_is_explained():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(seeded(), "w", "U8", [64, 100])])
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            json.dump({"w": 1}, file)
        got = json.loads(run("explain", "--device", "host", "--json", "--segments", "--tp", "1/2",
                             "--tp-plan", plan, path).out)
        same((got["tensors"], got["bytes"]), (1, 3200))


if __name__ == "__main__":
    run_cases()
