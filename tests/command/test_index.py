#!/usr/bin/env python3
"""onehop index: tars by every writer that is installed have the samples that webdataset finds in them,
and what would make an epoch short is an error that says where.
"""
import bz2
import gzip
import io
import json
import lzma
import os
import re
import resource
import shutil
import struct
import subprocess
import tarfile
from collections import namedtuple

from command import ONEHOP, Scratch, environment, run, seeded
from tap import Skip, case, check, holds, run as run_cases, same

Part = namedtuple("Part", "key field offset bytes crc dtype shape data_offset")
Index = namedtuple("Index", "shard_bytes tar_end members flags alignment align parts sections")
INFO = ["samples", "members", "payload_bytes", "shard_bytes", "index_bytes", "skipped", "apple_doubles"]


def crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc_table()


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return path


def changed(data, at, to):
    return data[:at] + to + data[at + len(to):]


# --------------------------------------------------------------------------------------------------
# The index, by docs/format.md


def texts(data, table, names):
    return [data[names + at:names + at + size].decode() for at, size in struct.iter_unpack("<II", table)]


def index_of(shard):
    """The index beside a shard, every CRC in it checked."""
    data = read(shard + ".onehop")
    magic, version, header, size, shard_bytes, tar_end, members, samples, parts, count, flags, alignment, align = \
        struct.unpack_from("<8sII6QIIII", data)
    same((magic, version, header, size), (b"ONEHOPIX", 1, 128, len(data)))
    same(crc32c(data[:124] + data[128:128 + 32 * count]), struct.unpack_from("<I", data, 124)[0], "CRC of the header")
    sections = {}
    for i in range(count):
        kind, crc, at, size, entries = struct.unpack_from("<IIQQQ", data, 128 + 32 * i)
        same(crc32c(data[at:at + size]), crc, f"CRC of section {kind}")
        sections[kind] = at, data[at:at + size], entries
    same((sections[1][2], sections[3][2]), (samples + 1, parts), "entries")
    fields = texts(data, sections[4][1], sections[5][0])
    types = [struct.unpack("<HHI8Q", sections[6][1][i:i + 72]) for i in range(0, len(sections[6][1]), 72)] if 6 in sections else []
    bounds = list(struct.iter_unpack("<QQ", sections[1][1]))
    found = []
    for (first, key), (end, key_end) in zip(bounds, bounds[1:]):
        name = sections[2][1][key:key_end].decode()
        for i in range(first, end):
            at, size, crc, field, zero, kind, zero2 = struct.unpack_from("<QQIHHII", sections[3][1], 32 * i)
            same((zero, zero2), (0, 0))
            dtype, rank, before, *shape = types[kind - 1] if kind else (0, 0, 0)
            found.append(Part(name, fields[field], at, size, crc, dtype, tuple(shape[:rank]), before))
    return Index(shard_bytes, tar_end, members, flags, alignment, align, found, sorted(sections))


# --------------------------------------------------------------------------------------------------
# What webdataset finds


def wanted(shard):
    """[(key, field, offset, bytes)] as webdataset groups what Python's tarfile reads; of what it makes
    bogus samples of, names that begin with a dot, nothing."""
    rows = []
    with tarfile.open(shard) as tar:
        for member in tar:
            name = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", member.name, re.S)
            if not member.isreg() or re.match(r"__[^/]*__($|/)", member.name) or not name or not name[2]:
                continue
            if os.path.basename(member.name)[0] != ".":
                rows.append((name[1], name[2].lower(), member.offset_data, member.size))
    return rows


def check_shard(shard, *words, payloads=True):
    """Indexes and compares; the row of the JSON."""
    row = done("--replace", *words, shard)["shards"][0]
    same(row["outcome"], "indexed")
    got, want, data = index_of(shard), wanted(shard), read(shard)
    same([part[:4] for part in got.parts], want, "parts")
    check(not payloads or want, "there are no parts to compare")
    crcs = "--no-checksums" not in words
    for part in got.parts:
        same(part.crc, crc32c(data[part.offset:part.offset + part.bytes]) if crcs else 0, f"CRC of {part.key}")
    same((got.shard_bytes, got.flags, got.alignment, got.align), (len(data), int(crcs), 512, 0))
    same(data[got.tar_end:], bytes(len(data) - got.tar_end), "what follows the archive")
    same(got.members, row["members"])
    same((row["payload_bytes"], row["shard_bytes"]), (sum(part.bytes for part in got.parts), len(data)))
    return row


def done(*words):
    """The JSON of a run that has to succeed."""
    result = run("index", "--json", *words)
    if result.code or result.err:
        raise AssertionError(f"onehop index: exit {result.code}, {result.err!r}")
    return json.loads(result.out)


def refused(shard, part, code=3, words=()):
    """What one says that has to fail; no index is made."""
    result = run("index", *words, shard)
    same((result.code, result.out, result.err.count("\n")), (code, "", 1), f"answer {result.err!r}")
    holds(result.err, part)
    same([name for name in os.listdir(os.path.dirname(shard)) if "onehop" in name], [], "files that were made")
    return result.err


# --------------------------------------------------------------------------------------------------
# Tars

NAMES = ["0.jpg", "0.JSON", "d/1.cam.left.jpg", "d/1.cls", "d.e/2.txt", "l" * 96 + ".jpg", "m" * 90 + "/" + "n" * 90 + ".jpg",
         "deep/" * 28 + "3.jpg"]
STRANGE = ["d/\u00e9\u6f22.jpg", "o" * 200 + "/" + "o" * 150 + "/p.q", "with space/a b.c d", "new\nline.x"]


def tree(folder, names, source):
    """Files of random sizes; empty ones too."""
    for i, name in enumerate(names):
        write(os.path.join(folder, name), source.randbytes([0, 1, 511, 512, 513, 5000, 70000, 1023][i % 8]))
    return folder


def python_tar(path, members, **more):
    """[(name, bytes)], or whole TarInfos for what is no file."""
    with tarfile.open(path, "w", **more) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            info.mtime = more.get("format") == tarfile.PAX_FORMAT and 1.5 or 0
            tar.addfile(info, io.BytesIO(member[1]))
    return path


def tool(*names):
    for name in names:
        if shutil.which(name):
            return name
    raise Skip(f"{' or '.join(names)} is not installed")


def make(*words, **more):
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           env=environment(LC_ALL="C.UTF-8"), timeout=100, **more)
    check(ended.returncode == 0, f"{words[0]}: {ended.stderr!r}")


def small(folder, name="a.tar", count=3, **more):
    """A shard of a few samples of two fields each."""
    members = [(f"d/{i:04}.{field}", bytes([i + 1]) * (700 * i + 3)) for i in range(count) for field in ("jpg", "json")]
    return python_tar(os.path.join(folder, name), members, format=tarfile.USTAR_FORMAT, **more)


@case
def tars_of_python_have_the_samples_that_webdataset_finds():
    source = seeded()
    with Scratch() as folder:
        for form, names in ((tarfile.USTAR_FORMAT, NAMES), (tarfile.GNU_FORMAT, NAMES + STRANGE),
                            (tarfile.PAX_FORMAT, NAMES + STRANGE)):
            members = [(name, source.randbytes(source.randrange(3000))) for name in names]
            shard = python_tar(os.path.join(folder, f"{form}.tar"), members, format=form)
            check_shard(shard)
            check_shard(shard, "--no-checksums")


@case
def tars_of_gnu_tar_do_in_each_of_its_formats():
    tar, source = tool("gtar", "tar"), seeded()
    with Scratch() as folder:
        check("GNU" in subprocess.run([tar, "--version"], capture_output=True).stdout.decode(), "tar is not GNU's")
        for form in "v7", "oldgnu", "gnu", "ustar", "posix":
            names = ["0.jpg", "0.json", "d/1.jpg"] if form == "v7" else NAMES
            files = tree(os.path.join(folder, form), names + (STRANGE if form not in ("v7", "ustar") else []), source)
            shard = os.path.join(folder, form + ".tar")
            make(tar, "--format", form, "--sort=name", "-C", files, "-cf", shard, *sorted(os.listdir(files)))
            row = check_shard(shard)
            check(row["skipped"] > 0, "folders are members")
            # With leading "./", and by the blocks of a tape.
            make(tar, "--format", form, "--sort=name", "-b", "1", "-C", files, "-cf", shard, ".")
            check_shard(shard)


@case
def tars_of_bsdtar_do_in_each_of_its_formats():
    bsdtar, source = tool("bsdtar"), seeded()
    with Scratch() as folder:
        for form in "v7", "ustar", "gnutar", "pax", "posix":
            names = ["0.jpg", "0.json", "d/1.jpg"] if form == "v7" else NAMES
            files = tree(os.path.join(folder, form), names + (STRANGE if form in ("gnutar", "pax") else []), source)
            shard = os.path.join(folder, form + ".tar")
            make(bsdtar, "--format", form, "-C", files, "-cf", shard, *sorted(os.listdir(files)))
            check_shard(shard)


@case
def tars_of_busybox_do():
    busybox, source = tool("busybox"), seeded()
    with Scratch() as folder:
        files = tree(os.path.join(folder, "files"), NAMES + STRANGE, source)
        shard = os.path.join(folder, "a.tar")
        make(busybox, "tar", "-C", files, "-cf", shard, *sorted(os.listdir(files)))
        check_shard(shard)


@case
def random_tars_of_python_do():
    source = seeded()
    with Scratch() as folder:
        for trial in range(60):
            form = source.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
            members = []
            for i in range(source.randrange(30)):
                stem = source.choice(["", "d/", "x" * source.randrange(1, 300) + "/"]) + f"{i}"
                for field in source.sample(["jpg", "Json", "cam.0.npy", "txt", "cls"], source.randrange(1, 4)):
                    members.append((f"{stem}.{field}", source.randbytes(source.choice([0, 3, 512, 4000, 200000]) if i % 9 else 9)))
                for kind, name in (tarfile.DIRTYPE, "d"), (tarfile.SYMTYPE, "s.jpg"), (tarfile.LNKTYPE, "l.jpg"), \
                        (tarfile.REGTYPE, "__pad__/x.y"), (tarfile.REGTYPE, "noext"), (tarfile.FIFOTYPE, "f.jpg"):
                    if source.random() < 0.05:
                        info = tarfile.TarInfo(name)
                        info.type, info.linkname = kind, "0.jpg"
                        members.append(info)
            shard = python_tar(os.path.join(folder, "a.tar"), members, format=form)
            check_shard(shard, *source.choice([[], ["--no-checksums"]]), payloads=False)
            same(run("index", "--verify", shard).code, 0, "exit status of --verify")


# --------------------------------------------------------------------------------------------------
# Sizes


def header(name, size_field, kind=b"0"):
    head = name.ljust(100, b"\0") + b"0000644\0" + bytes(16) + size_field.ljust(12, b"\0") + bytes(12)
    head = (head + b" " * 8 + kind + bytes(100) + b"ustar\x0000").ljust(512, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


@case
def members_of_9_gib_are_stepped_over_in_both_forms_of_their_size():
    nine = 9 << 30
    record = b"19 size=9663676416\n"
    same(len(record), 19)
    forms = {"gnu": header(b"0.bin", b"\x80" + bytes(3) + struct.pack(">Q", nine)),
             "pax": header(b"p", b"%011o\0" % 19, b"x") + record.ljust(512, b"\0") + header(b"0.bin", b"0" * 11)}
    with Scratch() as folder:
        for form, head in forms.items():
            shard = write(os.path.join(folder, form + ".tar"), head)
            with open(shard, "r+b") as file:
                file.seek(len(head) + nine)
                file.write(header(b"0.txt", b"3") + b"abc".ljust(512, b"\0") + bytes(1024))
            done("--no-checksums", shard)
            got = index_of(shard)
            same([part[:4] for part in got.parts],
                 [("0", "bin", len(head), nine), ("0", "txt", len(head) + nine + 512, 3)])
            same(got.tar_end, len(head) + nine + 1024)


# --------------------------------------------------------------------------------------------------
# Refused


@case
def sparse_members_are_refused_by_name():
    tar = tool("gtar", "tar")
    with Scratch() as folder:
        path = os.path.join(folder, "0.bin")
        with open(path, "wb") as file:
            file.write(b"x")
            file.truncate(1 << 20)
        for form in ["--format=gnu"], ["--format=oldgnu"], *(["--format=posix", f"--sparse-version={v}"] for v in ("0.0", "0.1", "1.0")):
            shard = os.path.join(folder, "a.tar")
            make(tar, *form, "--sparse", "--hole-detection=raw", "-C", folder, "-cf", shard, "0.bin")
            for words in [], ["--no-checksums"]:
                holds(refused(shard, "a sparse member: its bytes do not lie together", words=words), "without --sparse")


@case
def parts_of_an_archive_over_volumes_are_refused():
    tar = tool("gtar", "tar")
    with Scratch() as folder:
        write(os.path.join(folder, "in/0.bin"), bytes(100) + b"x" * 60000)
        volumes = [os.path.join(folder, f"v{i}/a.tar") for i in range(8)]
        for path in volumes:
            os.makedirs(os.path.dirname(path))
        make(tar, "--format=gnu", "-M", "-L", "20", "-C", os.path.join(folder, "in"), "-c",
             *sum((["-f", path] for path in volumes), []), "0.bin")
        refused(volumes[0], "the archive is cut: member")
        refused(volumes[1], "the rest of a member that began in another volume")


@case
def compressed_archives_are_refused_with_what_unpacks_them():
    with Scratch() as folder:
        plain = read(small(folder))
        for name, packed in ("gzip", gzip.compress(plain)), ("bzip2", bz2.compress(plain)), ("xz", lzma.compress(plain)), \
                ("zstd", b"\x28\xb5\x2f\xfd" + plain), ("lz4", b"\x04\x22\x4d\x18" + plain):
            shard = write(os.path.join(folder, "a.tar"), packed)
            holds(refused(shard, f"a file compressed by {name}"), f"{name} -d")


@case
def an_archive_that_is_cut_is_refused_wherever_it_is_cut():
    with Scratch() as folder:
        shard = os.path.join(folder, "a.tar")
        members = [("d/" + "x" * 120 + ".jpg", b"a" * 700), ("1.json", b""), ("2.jpg", b"b" * 512)]
        for form in tarfile.GNU_FORMAT, tarfile.PAX_FORMAT:
            whole = read(python_tar(shard, members, format=form))
            end = check_shard(shard) and index_of(shard).tar_end
            os.unlink(shard + ".onehop")
            for cut in sorted({*range(0, end + 1024, 512), *range(1, end + 1024, 777), end + 1023}):
                write(shard, whole[:cut])
                refused(shard, "cut" if cut >= 512 else "no tar archive")
            write(shard, whole[:end + 1024])
            check_shard(shard)
            os.unlink(shard + ".onehop")


@case
def a_damaged_header_is_refused_where_others_end_without_a_word():
    with Scratch() as folder:
        shard = small(folder)
        with tarfile.open(shard) as tar:
            at = tar.getmember("d/0001.jpg").offset
        data = bytearray(read(shard))
        data[at + 2] ^= 1
        write(shard, data)
        with tarfile.open(shard) as tar:
            check(len(tar.getmembers()) < 6, "Python's tarfile reads on")
        refused(shard, f"byte {at}: a member's header should be here")


@case
def a_lone_zero_block_is_refused():
    with Scratch() as folder:
        shard = small(folder)
        with tarfile.open(shard) as tar:
            at = tar.getmember("d/0001.jpg").offset
        data = read(shard)
        write(shard, data[:at] + bytes(512) + data[at:])
        holds(refused(shard, f"byte {at}: a zero block by itself"), "--ignore-zeros")


@case
def archives_that_were_joined_by_cat_are_refused_and_by_tar_are_not():
    tar = tool("gtar", "tar")
    with Scratch() as folder:
        a, b = read(small(folder)), read(python_tar(os.path.join(folder, "b.tar"), [("9.jpg", b"x")]))
        shard = write(os.path.join(folder, "a.tar"), a + b)
        said = refused(shard, f"another one lies behind it from byte {len(a)} on: {len(b)} bytes")
        holds(said, "--concatenate")
        write(shard, a)
        make(tar, "-Af", shard, os.path.join(folder, "b.tar"))
        check_shard(shard)
        same([part.key for part in index_of(shard).parts][-1], "9")
        write(shard, a + b"rubbish")
        os.unlink(shard + ".onehop")
        refused(shard, f"something that is no archive follows from byte {len(a)} on: 7 bytes")


# --------------------------------------------------------------------------------------------------
# The key rule


@case
def members_that_are_no_part_of_a_sample_are_left_out_and_counted():
    link, hard, folder_ = tarfile.TarInfo("1.jpg"), tarfile.TarInfo("2.jpg"), tarfile.TarInfo("d.e")
    link.type, hard.type, folder_.type = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
    link.linkname = hard.linkname = "0.jpg"
    members = [folder_, ("._0.jpg", b"mac"), ("0.jpg", b"abc"), ("d/._0.jpg", b"mac"), ("__pad__/1.x", b"x"), ("0.json", b"{}"),
               ("noext", b"x"), (".hidden", b"x"), ("d/.DS_Store", b"x"), ("__index__", b"x"), ("e.", b"x"), link, hard]
    with Scratch() as folder:
        shard = python_tar(os.path.join(folder, "a.tar"), members)
        row = check_shard(shard)
        same({name: row[name] for name in ("samples", "members", "skipped", "apple_doubles")},
             {"samples": 1, "members": 10, "skipped": 11, "apple_doubles": 2})
        same([part[:2] for part in index_of(shard).parts], [("0", "jpg"), ("0", "json")])
        result = run("index", "--replace", shard)
        holds(result.out, "left out        11 members that are no part of a sample, 2 of them what macOS puts beside files")


@case
def fields_are_in_small_letters_as_webdataset_has_them():
    with Scratch() as folder:
        shard = python_tar(os.path.join(folder, "a.tar"), [("A.JPG", b"1"), ("A.Cam.Left.PNG", b"2")])
        check_shard(shard)
        same([part[:2] for part in index_of(shard).parts], [("A", "jpg"), ("A", "cam.left.png")])


@case
def a_key_that_comes_again_is_refused_with_both_places():
    with Scratch() as folder:
        members = [("0.jpg", b"a"), ("1.jpg", b"b"), ("2.jpg", b"b"), ("1.json", b"c")]
        shard = python_tar(os.path.join(folder, "a.tar"), members, format=tarfile.USTAR_FORMAT)
        said = refused(shard, 'sample "1" is there twice, its files begin at byte 1024 and, after those of other samples, '
                              "again at byte 3072")
        holds(said, "tar --sort=name")


@case
def a_field_that_comes_twice_in_a_sample_is_refused_with_both_places():
    with Scratch() as folder:
        for second in "0.jpg", "0.JPG":
            shard = python_tar(os.path.join(folder, "a.tar"), [("0.jpg", b"a"), ("0.txt", b"a"), (second, b"b")],
                               format=tarfile.USTAR_FORMAT)
            refused(shard, f'byte 2048: member "{second}": a field that this sample has already, at byte 0')


@case
def what_changes_with_the_sample_behind_the_first_dot_is_refused_with_what_is_wrong():
    with Scratch() as folder:
        shard = python_tar(os.path.join(folder, "a.tar"), [(f"22.{i}.png", b"") for i in range(65536)], format=tarfile.USTAR_FORMAT)
        holds(refused(shard, "more than 65,535 different fields in one shard", code=1), "before the first dot")


@case
def names_that_are_no_utf_8_are_refused():
    with Scratch() as folder:
        shard = write(os.path.join(folder, "a.tar"), header(b"caf\xe9.jpg", b"0") + bytes(1024))
        refused(shard, 'byte 0: member "caf\\xe9.jpg": its name is no UTF-8')
        # Where no part of a sample has it, it is nobody's business.
        write(shard, header(b"caf\xe9", b"0") + bytes(1024))
        same(done(shard)["skipped"], 1)


# --------------------------------------------------------------------------------------------------
# Types


def npy(descr, shape, size, order="False", version=1):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + bytes(size)


@case
def npy_members_have_the_type_that_their_header_tells():
    rows = [("<f4", "(2, 3)", 24, 12, (2, 3)), ("<i8", "(5,)", 40, 9, (5,)), ("|u1", "()", 1, 2, ()), ("|b1", "(0, 7)", 0, 1, (0, 7)),
            ("<f2", "(1, 1, 1, 1, 1, 1, 1, 1)", 2, 10, (1,) * 8)]
    bytes_ = [npy(">f4", "(2, 3)", 24), npy("<f4", "(2, 3)", 24, "True"), npy("<f4", "(2, 3)", 23), npy("<f4", "(2, 3)", 25),
              npy("<f4", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", 4), npy("|O", "(2,)", 24), b"", b"\x93NUMPY"]
    with Scratch() as folder:
        members = [(f"{i}.{name}", npy(*row[:3], version=1 + i % 3)) for i, row in enumerate(rows) for name in ("npy", "x.NPY")]
        members += [(f"b{i}.npy", data) for i, data in enumerate(bytes_)] + [("c.raw", npy(*rows[0][:3]))]
        for words in [], ["--no-checksums"]:
            shard = python_tar(os.path.join(folder, "a.tar"), members)
            check_shard(shard, *words)
            got = index_of(shard).parts
            for i, (_, _, size, dtype, shape) in enumerate(rows):
                for part in got[2 * i:2 * i + 2]:
                    same((part.dtype, part.shape, part.data_offset + size), (dtype, shape, part.bytes))
            same({part.dtype for part in got[2 * len(rows):]}, {0}, "types of the others")
            same(run("index", "--verify", shard).code, 0)


# --------------------------------------------------------------------------------------------------
# An index that is there


@case
def an_index_that_fits_is_left_unless_it_is_to_be_replaced():
    with Scratch() as folder:
        shard = small(folder)
        outcome = lambda *words: done(*words, shard)["shards"][0]["outcome"]
        same(outcome("--no-checksums"), "indexed")
        same(outcome("--no-checksums"), "already there")
        # Checksums are asked for, and it has none.
        same((outcome(), index_of(shard).flags), ("indexed", 1))
        same((outcome("--no-checksums"), index_of(shard).flags), ("already there", 1))
        before, inode = read(shard + ".onehop"), os.stat(shard + ".onehop").st_ino
        same(outcome("--replace"), "indexed")
        check(os.stat(shard + ".onehop").st_ino != inode, "it was written over")
        same(read(shard + ".onehop"), before, "equal shards have equal indexes")


@case
def an_index_that_does_not_fit_or_is_damaged_is_replaced():
    with Scratch() as folder:
        shard = small(folder)
        done(shard)
        good = read(shard + ".onehop")
        small(folder, count=5)
        same(run("index", "--verify", shard).code, 3)
        check_shard(shard)
        small(folder)
        section = struct.unpack_from("<Q", good, 128 + 8)[0]
        for bad in good[:-1], good[:100], b"", b"rubbish" * 99, changed(good, section, bytes([good[section] ^ 1])):
            write(shard + ".onehop", bad)
            same(run("index", "--verify", shard).code, 3)
            same(done(shard)["shards"][0]["outcome"], "indexed")
            same(read(shard + ".onehop"), good, "index")


@case
def a_failure_leaves_the_index_that_was_there():
    with Scratch() as folder:
        shard = small(folder)
        done(shard)
        good = read(shard + ".onehop")
        write(shard, read(shard)[:1500])
        same(run("index", "--replace", shard).code, 3)
        same((read(shard + ".onehop"), sorted(os.listdir(folder))), (good, ["a.tar", "a.tar.onehop"]))


# --------------------------------------------------------------------------------------------------
# Verifying


@case
def verify_finds_every_byte_of_a_payload_that_changed():
    with Scratch() as folder:
        shard = small(folder, count=2)
        done(shard)
        good = read(shard)
        for part in index_of(shard).parts:
            for at in range(part.offset, part.offset + part.bytes, 97):
                write(shard, changed(good, at, bytes([good[at] ^ 4])))
                result = run("index", "--verify", shard)
                same((result.code, result.out), (3, ""))
                holds(result.err, f'byte {part.offset - 512}: member "{part.key}.{part.field}": its bytes have the CRC-32C')
        write(shard, good)
        same(json.loads(run("index", "--verify", "--json", shard).out)["shards"][0]["outcome"], "verified")


@case
def verify_finds_members_that_are_other_ones_in_other_places_or_of_other_sizes():
    base = [("0.jpg", b"a" * 600), ("0.txt", b"b"), ("1.jpg", b"c")]
    others = {
        'member "9.jpg": in its place the index has one of sample "0"': [("9.jpg", b"a" * 600), *base[1:]],
        'member "0.cls": in its place the index has field "txt"': [base[0], ("0.cls", b"b"), base[2]],
        "its size is 601, and the index says 600": [("0.jpg", b"a" * 601), *base[1:]],
        'member "0.xyz": in its place the index has one of sample "1"': [*base[:2], ("0.xyz", b"c")],
        'member "2.jpg": it is not in the index': [*base, ("2.jpg", b"d")],
        'with 2 parts of samples, and the index has 3: the next would be of sample "1"': base[:2],
        'with 1 parts of samples, and the index has 3: the next would be of sample "0"': base[:1],
        "the end of the archive is 4096 and it says 3584": [*base, ("noext", b"")],
        "the offset of its bytes is 2560, and the index says 2048": [base[0], ("noext", b""), *base[1:]],
    }
    with Scratch() as folder:
        shard = python_tar(os.path.join(folder, "a.tar"), base, format=tarfile.USTAR_FORMAT)
        done("--no-checksums", shard)
        for sentence, members in others.items():
            python_tar(shard, members, format=tarfile.USTAR_FORMAT)
            result = run("index", "--verify", shard)
            same((result.code, result.out, result.err.count("\n")), (3, "", 1))
            holds(result.err, sentence)
        python_tar(shard, [*base, ("d", b"")], format=tarfile.USTAR_FORMAT)
        done("--replace", shard)
        directory = tarfile.TarInfo("d")
        directory.type = tarfile.DIRTYPE
        python_tar(shard, [*base, directory], format=tarfile.USTAR_FORMAT)
        holds(run("index", "--verify", shard).err, "the number of files in it is 3 and it says 4")


@case
def verify_needs_an_index():
    with Scratch() as folder:
        result = run("index", "--verify", small(folder))
        same((result.code, result.out), (1, ""))
        holds(result.err, "onehop index")


# --------------------------------------------------------------------------------------------------
# The command


@case
def folders_and_files_are_done_side_by_side_and_a_bad_one_does_not_keep_the_others():
    with Scratch() as folder:
        for i in range(9):
            small(folder, f"{i}.tar", count=i + 1)
        write(os.path.join(folder, "4.tar"), b"x" * 5000)
        write(os.path.join(folder, "._5.tar"), b"mac")
        write(os.path.join(folder, "notes.txt"), b"")
        other = small(os.path.join(folder), "other.shard")
        result = run("index", "--json", folder, other)
        same((result.code, result.err.count("\n")), (3, 1))
        holds(result.err, "4.tar: no tar archive")
        got = json.loads(result.out)
        same(list(got), ["shards", *INFO, "failed", "threads", "seconds", "gb_per_s"])
        same([os.path.basename(row["path"]) for row in got["shards"]], [f"{i}.tar" for i in range(9)] + ["other.shard"])
        same([row["outcome"] for row in got["shards"]], ["indexed"] * 4 + ["failed"] + ["indexed"] * 5)
        same(list(got["shards"][0]), ["path", "outcome", *INFO, "has_trailer"])
        same(list(got["shards"][4]), ["path", "outcome", "status", "message", "remedy"])
        same((got["shards"][4]["status"], got["failed"], got["samples"]), ("MALFORMED", 1, 9 * 10 // 2 - 5 + 3))
        result = run("index", folder)
        same(result.code, 3)
        check(re.match(r"shards          9: 8 already there, 1 failed\nsamples         40, of 80 files\nbytes           "
                       r"[0-9,]+ \(.*\)\nindex           [0-9,]+ \(.*\)\ntime            .*, [0-9]+ threads?\n$", result.out),
              f"table {result.out!r}")
        same(run("index", "--quiet", other), (0, "", ""))
        same(run("index", "--option", "threads=1", "--replace", "--json", other).code, 0)


@case
def many_that_index_one_shard_at_once_all_do_it():
    with Scratch() as folder:
        shard = small(folder, count=30)
        done(shard)
        right = read(shard + ".onehop")
        for words in ["--replace"], []:
            os.unlink(shard + ".onehop")
            running = [subprocess.Popen([ONEHOP, "index", "--quiet", *words, shard], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, env=environment()) for _ in range(8)]
            same([process.communicate(timeout=100)[1] for process in running], [b""] * 8, "what they say")
            same({process.returncode for process in running}, {0}, "exit status")
            same((read(shard + ".onehop"), sorted(os.listdir(folder))), (right, ["a.tar", "a.tar.onehop"]))


@case
def a_disk_that_is_full_leaves_nothing():
    with Scratch() as folder:
        shard = small(folder, count=90)
        result = run("index", shard, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        same((result.code, result.out, result.err.count("\n"), os.listdir(folder)), (1, "", 1, ["a.tar"]))
        holds(result.err, "cannot write it")


@case
def wrong_usage_is_said():
    with Scratch() as folder:
        for words, code, part in (([], 2, "onehop index needs PATH..."), (["--verify", "--replace", "x"], 2, "--verify makes no index"),
                                  (["--verify", "--no-checksums", "x"], 2, "--verify compares"), (["nowhere.tar"], 1, "nowhere.tar"),
                                  ([folder], 1, "no *.tar is in this folder"), (["--verfy", "x"], 2, "did you mean --verify?"),
                                  (["/dev/null"], 2, "not a tar file")):
            result = run("index", *words)
            same((result.code, result.out, result.err.count("\n")), (code, "", 1), f"answer to {words}: {result.err!r}")
            holds(result.err, part)


@case
def the_shard_itself_is_never_written_to():
    with Scratch() as folder:
        shard = small(folder)
        before = read(shard), os.stat(shard).st_mtime_ns
        done(shard)
        os.chmod(shard, 0o444)
        done("--replace", shard)
        same((read(shard), os.stat(shard).st_mtime_ns), before, "shard")


if __name__ == "__main__":
    run_cases()
