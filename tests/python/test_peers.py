"""bench/peers.py: on the host, with small models and the schemes that are installed."""
import json
import os
import subprocess
import sys

from package import ROOT, Scratch, environment, need
from tap import case, check, holds, run, same

BENCH = os.path.join(ROOT, "bench")
sys.path.insert(0, BENCH)

PLAIN = "read to pinned, copy"


def peers(*words, status=0):
    """What the program prints; it must exit with that status."""
    done = subprocess.run([sys.executable, os.path.join(BENCH, "peers.py"), *words],
                          env=environment(), timeout=300, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    same(done.returncode, status, f"exit status of {words}, which printed {done.stdout}")
    return done.stdout


def small_model(folder, count=6, files=2):
    import peers_files

    shapes = [peers_files.Shape(f"w{number}", (64, 512)) for number in range(count)]
    return peers_files.make(os.path.join(folder, "model"), shapes, files)


def job_of(model, **more):
    return {"folder": model.folder, "files": model.files, "device": "cpu", **more}


@case
def a_model_holds_what_is_expected_of_it():
    numpy = need("numpy")
    import peers_files
    import plain

    with Scratch() as folder:
        model = small_model(folder)
        same((model.tensors, model.nbytes, len(model.files)), (6, 6 * 65536, 2))
        with open(os.path.join(model.folder, peers_files.EXPECTED), encoding="utf-8") as file:
            expected = {name: (shape, total) for name, shape, total in json.load(file)}
        found = {}
        for path in model.files:
            data = numpy.fromfile(path, numpy.uint8)
            for entry in plain.read_header(path):
                values = data[entry.offset:entry.offset + entry.nbytes].view(numpy.int64)
                found[entry.name] = (list(entry.shape), int(values.sum()))
        same(found, expected)
        same(len({total for _, total in found.values()}), 6, "different sums")


@case
def wrong_tensors_are_told_from_right_ones():
    torch = need("torch")
    import peers_child
    import plain

    with Scratch() as folder:
        model = small_model(folder)
        job = job_of(model)
        for load in (plain.load_mmap, plain.load_pinned):
            same(peers_child.difference(load(model.files, "cpu"), job), None)
        right = plain.load_mmap(model.files, "cpu")

        def wrong(**changed):
            return peers_child.difference({**right, **changed}, job)

        touched = right["w3"].clone()
        touched.view(torch.uint8)[5, 7] ^= 1
        holds(wrong(w3=touched), "w3 has other bytes")
        holds(wrong(w1=right["w2"]), "w1 has other bytes")
        holds(wrong(w2=right["w2"].view(512, 64)), "w2 is")
        holds(wrong(w2=right["w2"].view(torch.float16)), "w2 is")
        holds(wrong(w9=right["w2"]), "7 tensors")
        # Bytes that only change places keep their sum; those of a file's first tensor are compared.
        moved = right["w0"].view(torch.int64).flip(0).view(torch.bfloat16)
        holds(wrong(w0=moved), "w0 has other bytes")


@case
def every_scheme_has_its_row_and_the_tables_are_drawn_again_from_the_file():
    need("torch"), need("numpy")
    with Scratch() as folder:
        results = os.path.join(folder, "peers.json")
        tables = os.path.join(folder, "peers.md")
        printed = peers("--device", "cpu", "--sizes", "large,tiny", "--bytes", "2M", "--where",
                        folder, "--fresh", "1", "--repeat", "1", "--pool", "2", "--json", results,
                        "--markdown", tables, "--cold", "--token", "--token-bytes", "4M",
                        "--schemes", "onehop.load,read to pinned,rc prefetch")
        with open(results, encoding="utf-8") as file:
            found = json.load(file)
        rows = {row["scheme"]: row for row in found["results"]}
        for name in ("onehop.load", "onehop.load_file", PLAIN):
            same((rows[name]["state"], rows[name]["checks"]), ("ok", 2), name)
            same((len(rows[name]["first"]), len(rows[name]["again"])), (1, 1), f"loads by {name}")
            holds(printed, name)
        same(rows["safetensors rc prefetch"]["state"], "absent")
        holds(rows["safetensors rc prefetch"]["reason"], "--rc")
        check("first" not in rows["safetensors rc prefetch"], "an absent scheme has a time")
        same(sorted(rows["onehop.load"]["reports"]), ["again", "first"])
        for part in ("tiny", "cold", "token"):
            states = {row["scheme"]: row["state"] for row in found[part]}
            same(states.get(PLAIN), "ok", f"{PLAIN} in {part}")
        tokens = {row["token"] for row in found["token"] if row["state"] == "ok"}
        same(len(tokens), 1, "different first tokens")
        check(os.listdir(folder).count("peers.json") == 1 and not any(
            name.startswith("onehop-peers-") for name in os.listdir(folder)), "models are left")
        again = peers("--draw", results)
        check(printed.endswith(again), f"{again} is not the end of {printed}")
        with open(tables, encoding="utf-8") as file:
            holds(file.read(), "| onehop.load |")


@case
def a_picture_is_drawn_of_results():
    need("matplotlib")
    import peers_report

    row = {"scheme": "onehop.load", "kind": "ours", "state": "ok", "model": "large",
           "bytes": 10**9, "first": [0.1], "again": [0.05, 0.06]}
    lost = {**row, "scheme": "other", "state": "differs", "reason": "bytes"}
    found = {"results": [row, lost], "ceiling": 2e10, "machine": {}}
    with Scratch() as folder:
        path = os.path.join(folder, "peers.png")
        peers_report.draw(found, path)
        with open(path, "rb") as file:
            same(file.read(4), b"\x89PNG")


@case
def a_scheme_that_differs_or_fails_has_no_place():
    import peers_report

    base = {"kind": "best", "model": "large", "bytes": 10**9, "setting": "", "checks": 1}
    rows = [{**base, "scheme": "slow", "state": "ok", "first": [0.3, 0.1, 0.2]},
            {**base, "scheme": "fast", "state": "ok", "first": [0.1]},
            {**base, "scheme": "wrong", "state": "differs", "first": [0.01], "reason": "w0 is off"},
            {**base, "scheme": "broken", "state": "failed", "reason": "no such thing"}]
    model = {"model": "large", "tensors": 1, "bytes": 10**9, "files": 1, "file_system": "ext4"}
    found = {"results": rows, "models": [model], "device": "cuda:0", "ceiling": 2e10, "tiny": [],
             "cold": [], "token": [], "imports": {}, "ceilings": {},
             "machine": {"cores": 1, "kernel": "6", "python": "3"}}
    _, head, lines = peers_report.load_table(found, "large")
    same([line[0] for line in lines], ["fast", "slow"])
    same(lines[1][2:5], ["5.00", "0.250", "3.3-10.0 (3)"])
    same({len(line) for line in lines}, {len(head)})
    text = peers_report.text(found)
    holds(text, "w0 is off")
    holds(text, "no such thing")
    holds(text, "1 schemes differ")


@case
def a_process_that_takes_too_long_or_dies_is_reported():
    need("torch"), need("numpy")
    import peers_parent

    with Scratch() as folder:
        model = small_model(folder)
        job = job_of(model, mode="load", scheme=PLAIN, options={}, repeat=0, budget=0, watch=False)
        env = peers_parent.environment(None, {}, None)
        slow, dying = peers_parent.Child(job, env), peers_parent.Child(job, env)
        for child in (slow, dying):
            child.await_ready()
            same(child.failure, None)
        # Nobody tells it to go on.
        events = list(slow.events(0.2))
        same([event["event"] for event in events], ["failed"])
        holds(events[0]["reason"], "took longer")
        check(not os.path.exists(f"/proc/{slow.pid}"), "it still runs")
        os.kill(dying.pid, 9)
        events = list(dying.events(60))
        same([event["event"] for event in events], ["failed"])
        holds(events[0]["reason"], "signal 9")
        dying.close()


@case
def what_was_found_survives_the_end_of_the_program():
    need("torch"), need("numpy")
    with Scratch() as folder:
        results = os.path.join(folder, "peers.json")
        program = subprocess.Popen(
            [sys.executable, os.path.join(BENCH, "peers.py"), "--device", "cpu", "--sizes",
             "large", "--bytes", "2M", "--where", folder, "--fresh", "1000", "--pool", "1",
             "--schemes", "read to pinned", "--json", results],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in program.stdout:
            if PLAIN in line:
                program.terminate()
                break
        rest, _ = program.communicate(timeout=60)
        same(program.returncode, 0, f"exit status, after {rest}")
        holds(rest, "interrupted")
        holds(rest, "warm page cache")
        same(sorted(os.listdir(folder)), ["peers.json"])
        with open(results, encoding="utf-8") as file:
            rows = json.load(file)["results"]
        same([row["scheme"] for row in rows if row.get("first")], [PLAIN])


@case
def the_environment_of_a_child_has_nothing_that_tunes_a_scheme():
    import peers_parent
    import peers_schemes

    by_name = peers_schemes.BY_NAME
    os.environ["KVIKIO_NTHREADS"] = "99"
    try:
        scheme = by_name["safetensors rc"]
        env = peers_parent.environment(scheme, {"FASTSAFETENSORS_ODIRECT": "0"}, "/candidate")
        other = peers_parent.environment(by_name["safetensors"], {}, "/candidate")
    finally:
        del os.environ["KVIKIO_NTHREADS"]
    check("KVIKIO_NTHREADS" not in env, "a variable from outside is left")
    same(env["FASTSAFETENSORS_ODIRECT"], "0")
    same(env["PYTHONPATH"].split(os.pathsep)[0], "/candidate")
    check("/candidate" not in other["PYTHONPATH"], "the candidate stands before the release")
    same(env.get("ONEHOP_LIBRARY"), os.environ.get("ONEHOP_LIBRARY"))


@case
def words_that_fit_nothing_are_refused():
    holds(peers("--schemes", "no such loader", status=2), "no scheme is called")
    holds(peers("--sizes", "huge", status=2), "there is no size 'huge'")


@case
def what_is_evicted_is_not_cached_until_it_is_warmed():
    need("numpy")
    import peers_files

    with Scratch() as folder:
        model = small_model(folder)
        same(peers_files.warm(model.files), 1.0)
        if peers_files.file_system(folder) != "tmpfs":
            check(peers_files.evict(model.files) < 1, "all is cached still")
            same(peers_files.warm(model.files), 1.0)


if __name__ == "__main__":
    sys.exit(run())
