#!/usr/bin/env python3
"""onehop stream: what it prints adds up, and no rate is given for bytes that are wrong or unchecked."""
import io
import json
import os
import tarfile

from command import Scratch, run, seeded
from tap import case, check, holds, run as run_cases, same

SAMPLES, SHARDS = 40, 3


def shards(folder, *words):
    """Shards as others write them, indexed: a jpg and a cls a sample. The folder, and payload bytes."""
    source, payload = seeded(), 0
    os.makedirs(folder)
    for shard in range(SHARDS):
        with tarfile.open(os.path.join(folder, f"{shard}.tar"), "w") as tar:
            for sample in range(SAMPLES):
                for field, size in (("jpg", source.randrange(2000, 9000)), ("cls", 3)):
                    member = tarfile.TarInfo(f"{shard}-{sample:04}.{field}")
                    member.size = size
                    payload += size
                    tar.addfile(member, io.BytesIO(source.randbytes(size)))
    done = run("index", *words, folder)
    same(done.code, 0, done.err)
    return folder, payload


def streamed(*words):
    done = run("stream", "--device", "host", "--json", *words)
    same(done.code, 0, done.err)
    return json.loads(done.out)


@case
def epochs_add_up_to_what_is_in_the_shards():
    with Scratch() as root:
        folder, payload = shards(os.path.join(root, "data"))
        said = streamed("--batch", "8", "--epochs", "4", folder)
        same(said["samples"], SAMPLES * SHARDS)
        same(said["payload_bytes"], payload)
        same(said["verified_bytes"], payload)
        same(said["streamed_bytes"], 4 * payload)
        same(said["epochs"], 4)
        same(said["batches"], 15)
        check(said["ceiling_gb_per_s"] is None and said["gb_per_s"] > 0, said)
        check(said["read_bytes"] >= said["streamed_bytes"], said)


@case
def a_rank_a_field_and_a_ring_are_taken():
    with Scratch() as root:
        folder, _ = shards(os.path.join(root, "data"))
        said = streamed("--batch", "10", "--epochs", "1", "--rank", "1/2", "--field", "cls",
                        "--shuffle", "block", "--ring", "1M", "--verify", folder)
        same(said["batches"], 6)
        same(said["streamed_bytes"], 60 * 3)
        same(said["verified_bytes"], SAMPLES * SHARDS * 3)
        same(said["verified_while_timed"], True)
        check(said["device_buffer_bytes"] <= 1 << 20, said)


@case
def people_get_a_table():
    with Scratch() as root:
        folder, _ = shards(os.path.join(root, "data"))
        done = run("stream", "--device", "host", "--batch", "8", "--epochs", "1", folder)
        same((done.code, done.err), (0, ""))
        for part in ("120 samples in 3 shards", "jpg", "cls", "by their CRC-32C", "GB/s",
                     "samples/s", "1 epoch in"):
            holds(done.out, part)


@case
def damage_is_said_and_no_rate():
    with Scratch() as root:
        folder, _ = shards(os.path.join(root, "data"))
        path = os.path.join(folder, "1.tar")
        with tarfile.open(path) as tar:
            member = tar.getmember("1-0007.jpg")
        with open(path, "r+b") as file:
            file.seek(member.offset_data)
            byte = file.read(1)
            file.seek(member.offset_data)
            file.write(bytes([byte[0] ^ 1]))
        done = run("stream", "--device", "host", "--batch", "8", folder)
        same(done.code, 3)
        same(done.out, "")
        for part in ("1.tar", "1-0007", "jpg", f"offset {member.offset_data}"):
            holds(done.err, part)


@case
def bytes_that_cannot_be_checked_get_no_rate():
    with Scratch() as root:
        folder, _ = shards(os.path.join(root, "data"), "--no-checksums")
        done = run("stream", "--device", "host", folder)
        same((done.code != 0, done.out), (True, ""))
        holds(done.err, "no rate is given for bytes that were not checked")
        holds(done.err, "onehop index --replace")


@case
def what_cannot_be_is_said():
    with Scratch() as root:
        folder, _ = shards(os.path.join(root, "data"))
        for words, part in ((["--field", "png"], "no field"), (["--batch", "121"], "no whole batch"),
                            (["--ring", "8K", "--batch", "8"], "ring_bytes"),
                            (["--rank", "2/2"], "--rank cannot be"),
                            (["--shuffle", "blocks"], "did you mean block?"),
                            (["--epochs", "1", "--seconds", "1"], "exclude each other")):
            done = run("stream", "--device", "host", *words, folder)
            check(done.code != 0, words)
            holds(done.err, part)
        os.remove(os.path.join(folder, "0.tar.onehop"))
        done = run("stream", "--device", "host", folder)
        check(done.code != 0, "it streamed without an index")
        holds(done.err, "0.tar: it has no index")
        holds(done.err, "onehop index")


if __name__ == "__main__":
    run_cases()
