"""Shards as other programs read them: tar readers, webdataset, DALI's and Energon's rules.

Nothing of onehop reads here: the writer alone is under test, and the reader in docs/format.md. What
is not installed (bsdtar, busybox, webdataset) skips its case.
"""
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile

from package import ROOT, Scratch, need, raised, seeded
from tap import Skip, case, check, run, same

from onehop import shards

ALIGNS = ("none", "member", "sample")
PADS = ("gnu", "pax", "dir")
ALIGNMENTS = (512, 1024, 4096, 65536, 2 << 20)
SIZES = (0, 1, 511, 512, 513, 3071, 3072, 3583, 3584, 3585, 4096, 5000, 9000, 70000)


def samples(source, count, *, short=False):
    """Random ones, as (key, {field: bytes}); some names are long, some of more than ASCII."""
    found = []
    for number in range(count):
        folder = source.choice(["", "drive/", "drive/0.5_km/", "ü/" * 3,
                                "long-folder-name-of-many-letters/" * source.randrange(1, 30)])
        folder = "" if short else folder
        fields = source.sample(["jpg", "cam.left.jpg", "json", "cls", "touch.bin", "a.b.c", "LAS"],
                               source.randrange(1, 6))
        found.append((f"{folder}{number:06d}",
                      {field: source.randbytes(source.choice(SIZES)) for field in fields}))
    return found


def pack(path, made, **options):
    """Writes them by the library alone; half of the payloads come from files."""
    writer = shards.TarShard(path, **options)
    for number, (key, fields) in enumerate(made):
        parts = []
        for field, data in fields.items():
            part = data
            if number % 2:
                part = shards.FileRange(f"{path}.{len(parts)}.source", 7, len(data))
                with open(part.path, "wb") as file:
                    file.write(b"7 bytes" + data + b"more")
            parts.append(shards.Part(field, part))
        writer.add(shards.Sample(key, tuple(parts)))
    info = writer.finish()
    writer.close()
    for part in range(8):
        if os.path.exists(f"{path}.{part}.source"):
            os.unlink(f"{path}.{part}.source")
    return info


def files(made):
    return {f"{key}.{field}": data for key, fields in made for field, data in fields.items()}


def modes():
    """(name, options) of every way to align and pad."""
    for align in ALIGNS:
        for pad in PADS:
            for alignment in ALIGNMENTS if align != "none" else (4096,):
                yield f"{align}-{pad}-{alignment}", {"align": align, "pad": pad,
                                                     "alignment": alignment}


def shards_of_all_modes(folder, source, count):
    for name, options in modes():
        made = samples(source, count if options["alignment"] < 65536 else 4)
        path = os.path.join(folder, name + ".tar")
        pack(path, made, **options)
        yield name, options, path, made


def tree(folder):
    """Every regular file below it: name -> bytes."""
    found = {}
    for here, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(here, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def compare(found, want, what):
    same(sorted(found), sorted(want), f"{what}: the names")
    for name, data in want.items():
        check(found[name] == data, f"{what}: {name} differs")


def extracted_by(tool, *command):
    """Every mode, extracted by a command that must say nothing."""
    if not shutil.which(tool):
        raise Skip(f"{tool} is not installed")
    source = seeded()
    with Scratch() as folder:
        for name, _, path, made in shards_of_all_modes(folder, source, 24):
            out = os.path.join(folder, "out")
            os.mkdir(out)
            done = subprocess.run([*command, path], cwd=out, timeout=120, text=True,
                                  env={**os.environ, "LC_ALL": "C.UTF-8"},
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            same((done.returncode, done.stdout, done.stderr), (0, "", ""), f"{tool} on {name}")
            compare(tree(out), files(made), f"{tool} on {name}")
            shutil.rmtree(out)
            os.unlink(path)


@case
def gnu_tar_extracts_every_mode_byte_for_byte():
    if shutil.which("tar") and "GNU" not in subprocess.run(
            ["tar", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout:
        raise Skip("tar is not GNU's")
    extracted_by("tar", "tar", "-xf")


@case
def bsdtar_extracts_every_mode_byte_for_byte():
    extracted_by("bsdtar", "bsdtar", "-xf")


@case
def busybox_tar_extracts_every_mode_byte_for_byte():
    extracted_by("busybox", "busybox", "tar", "-xf")


@case
def python_tarfile_reads_every_mode_byte_for_byte():
    source = seeded()
    with Scratch() as folder:
        for name, _, path, made in shards_of_all_modes(folder, source, 24):
            for how in ("r:", "r|"):
                with tarfile.open(path, how) as tar:
                    found = {member.name: tar.extractfile(member).read()
                             for member in tar if member.isreg()}
                compare(found, files(made), f"tarfile {how} on {name}")
            os.unlink(path)


@case
def payloads_lie_on_the_alignment_that_was_asked_for():
    source = seeded()
    with Scratch() as folder:
        for name, options, path, made in shards_of_all_modes(folder, source, 24):
            firsts = {f"{key}.{next(iter(fields))}" for key, fields in made}
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    aligned = options["align"] == "member" or (
                        options["align"] == "sample" and member.name in firsts)
                    if member.isreg() and aligned:
                        same(member.offset_data % options["alignment"], 0,
                             f"{name}: {member.name} modulo the alignment")
            os.unlink(path)


@case
def what_pads_is_invisible_but_for_gaps_of_one_block():
    """A gap of 512 is a directory entry; there is no other in GNU and pax, and no other kind."""
    source = seeded()
    with Scratch() as folder:
        for pad in ("gnu", "pax"):
            path = os.path.join(folder, "x.tar")
            pack(path, samples(source, 60, short=True), align="member", pad=pad)
            with tarfile.open(path, "r:") as tar:
                end = 0
                for member in tar:
                    if member.isdir():
                        same(member.name, "__pad__")
                        same((member.offset + 1024) % 4096, 0, "the payload after the entry")
                    else:
                        check(member.isreg(), f"{member.name} is of type {member.type}")
                    same(member.offset, end, f"where {member.name} begins")
                    end = member.offset_data + (member.size + 511) // 512 * 512


@case
def webdataset_sees_the_same_keys_fields_and_bytes():
    wds = need("webdataset")
    source = seeded()
    with Scratch() as folder:
        for name, _, path, made in shards_of_all_modes(folder, source, 16):
            read = wds.WebDataset(path, shardshuffle=False, empty_check=False)
            found = [(sample["__key__"], {field: data for field, data in sample.items()
                                          if not field.startswith("__")}) for sample in read]
            want = [(key, {field.lower(): data for field, data in fields.items()})
                    for key, fields in made]
            check(found == want, f"webdataset reads {name} otherwise")
            os.unlink(path)


def dali_index(path):
    """NAME.idx by the rules of DALI's reader: words, one line a sample of (field, offset, size,
    name)."""
    with open(path, encoding="utf-8") as file:
        version, count = file.readline().split()
        lines = [line.split() for line in file.readlines()]
    same(version, "v1.2")
    same(len(lines), int(count), "samples of DALI's index")
    for words in lines:
        same(len(words) % 4, 0, "words of a line, modulo 4")
        for offset in words[1::4]:
            same(int(offset) % 512, 0, "a payload's offset modulo 512")
    return [[(words[i], int(words[i + 1]), int(words[i + 2]), words[i + 3])
             for i in range(0, len(words), 4)] for words in lines]


@case
def dali_index_leads_to_every_payload():
    source = seeded()
    with Scratch() as folder:
        for name, _, path, made in shards_of_all_modes(folder, source, 24):
            with open(path, "rb") as file:
                data = file.read()
            index = dali_index(path[:-4] + ".idx")
            same(len(index), len(made), f"{name}: samples")
            for parts, (key, fields) in zip(index, made):
                same([(part[0], part[3]) for part in parts],
                     [(field, f"{key}.{field}") for field in fields], f"{name}: {key}")
                for (_, offset, size, _), want in zip(parts, fields.values()):
                    check(data[offset:offset + size] == want, f"{name}: {key}: other bytes")
            os.unlink(path)


@case
def energon_index_cuts_the_archive_into_samples():
    """Each slice between two offsets is read as a tar of its own, as its ITarFile does."""
    source = seeded()
    with Scratch() as folder:
        for name, _, path, made in shards_of_all_modes(folder, source, 24):
            with open(path + ".idx", "rb") as file:
                raw = file.read()
            offsets = struct.unpack(f"<{len(raw) // 8}Q", raw)
            same(len(offsets), len(made) + 1, f"{name}: offsets")
            with tarfile.open(path, "r:") as tar:
                members = {member.name: member.offset for member in tar}
                same(offsets[-1], tar.offset, f"{name}: the last offset")
            for offset, end, (key, fields) in zip(offsets, offsets[1:], made):
                same(offset, members[f"{key}.{next(iter(fields))}"], f"{name}: {key}")
                with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
                    tar.offset, found = offset, {}
                    while tar.offset < end:
                        file.seek(tar.offset)
                        member = tarfile.TarInfo.fromtarfile(tar)
                        if member.isreg():
                            found[member.name] = tar.extractfile(member).read()
                compare(found, files([(key, fields)]), f"{name}: the slice of {key}")
            os.unlink(path)


@case
def an_archive_ends_in_whole_records_and_a_file_in_whole_pages():
    source = seeded()
    with Scratch() as folder:
        path = os.path.join(folder, "x.tar")
        pack(path, samples(source, 5))
        with open(path, "rb") as file:
            data = file.read()
        magic, _, _, begin, size, tar_end = struct.unpack_from("<8sIIQQQ", data, len(data) - 64)
        same(magic, b"ONEHOPTL")
        same(len(data) % 4096, 0, "bytes of the file modulo 4096")
        same(begin % 20480, 0, "where the trailer begins, modulo 20480")
        check(begin - tar_end >= 1024 and not any(data[tar_end:begin]), "two zero blocks and more")
        with open(path + ".onehop", "rb") as file:
            check(file.read() == data[begin:begin + size], "side file and trailer differ")


@case
def equal_samples_make_equal_bytes():
    """In another folder, at another time."""
    source = seeded()
    with Scratch() as folder:
        for name, options in modes():
            made, contents = samples(source, 8), []
            for place in ("a", "b"):
                path = os.path.join(folder, place, "x.tar")
                os.makedirs(os.path.dirname(path), exist_ok=True)
                pack(path, made, **options)
                contents.append([open(path[:-4] + end, "rb").read()
                                 for end in (".tar", ".tar.onehop", ".tar.idx", ".idx")])
            check(contents[0] == contents[1], f"{name} comes out otherwise the second time")


def reader_code():
    with open(os.path.join(ROOT, "docs", "format.md"), encoding="utf-8") as file:
        code, = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
    return code


def documented_reader():
    """The names of the reader in docs/format.md; it has 60 lines at most, of the standard library."""
    code, names = reader_code(), {}
    lines = [line for line in code.splitlines() if line.strip()]
    check(len(lines) <= 60, f"the reader of docs/format.md has {len(lines)} lines")
    imported = re.findall(r"^ *(?:import|from) (\w+)", code, re.M)
    check(set(imported) <= sys.stdlib_module_names, f"it imports {imported}")
    exec(compile(code, "docs/format.md", "exec"), names)
    return names


def typed(source):
    """Parts of every kind that the index tells apart."""
    head = b"\x93NUMPY\1\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"
    npy = head.ljust(127) + b"\n" + source.randbytes(24)
    return [("a/0", [shards.Part("points.npy", npy), shards.Part("json", b"{}")],
             [("points.npy", "F32", [3, 2], 128, npy), ("json", None, (), 0, b"{}")]),
            ("a/1", [shards.Part("RAW", npy[:20], "BF16", (2, 2, 1), 12)],
             [("raw", "BF16", [2, 2, 1], 12, npy[:20])]),
            ("a/2", [shards.Part("scalar", npy[:8], "F64"), shards.Part("none", b"")],
             [("scalar", "F64", [], 0, npy[:8]), ("none", None, (), 0, b"")])]


@case
def the_reader_that_is_documented_reads_every_part_from_side_file_and_trailer():
    read = documented_reader()["read"]
    with Scratch() as folder:
        path = os.path.join(folder, "x.tar")
        writer = shards.TarShard(path)
        want = []
        for key, parts, found in typed(seeded()):
            writer.add(shards.Sample(key, tuple(parts), 5, "drive", "cam"))
            want += [(key, *part) for part in found]
        writer.finish()
        writer.close()
        same(list(read(path)), want, "what it reads by the side file")
        os.unlink(path + ".onehop")
        same(list(read(path)), want, "what it reads by the trailer")
        listed = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.argv = ['', {path!r}]\n" + reader_code()],
            stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        same(listed[0], f"a/0 points.npy F32 [3, 2] {len(want[0][-1])}")
        same(len(listed), len(want), "lines that it prints")


@case
def the_reader_that_is_documented_notices_a_changed_byte():
    read = documented_reader()["read"]
    source = seeded()
    with Scratch() as folder:
        path = os.path.join(folder, "x.tar")
        pack(path, [("k", {"bin": source.randbytes(3000)})])
        with open(path, "r+b") as file:
            file.seek(4096 + 1234)
            byte = file.read(1)
            file.seek(4096 + 1234)
            file.write(bytes([byte[0] ^ 4]))
        error = raised(ValueError, lambda: list(read(path)))
        check("payload at byte 4096" in str(error), f"it says {error}")


if __name__ == "__main__":
    run()
