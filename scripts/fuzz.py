#!/usr/bin/env python3
"""`make fuzz`: each fuzzer for a while.

usage: fuzz.py [--seconds N] [NAME...]

Builds the fuzzers with clang, AddressSanitizer and UndefinedBehaviorSanitizer in build/fuzz and runs
those whose name holds one of NAME, all by default, one after the other. What a fuzzer learns is kept
in build/fuzz-corpus/FUZZER and is where the next run begins; an input that breaks something lies
there as crash-*, and belongs into tests/fuzz/seeds once mended.
"""
import argparse
import json
import os
import subprocess
import sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(TREE, "build", "fuzz")


def run(*command, **kwargs):
    return subprocess.run(command, cwd=TREE, stdin=subprocess.DEVNULL, **kwargs)


def configure():
    if not os.path.exists(os.path.join(BUILD, "build.ninja")):
        run("meson", "setup", BUILD, "-Dfuzzers=true", "-Dbuildtype=debugoptimized",
            "-Db_sanitize=address,undefined", "-Db_lundef=false",
            "-Dc_args=-fsanitize=fuzzer-no-link", check=True,
            stdout=subprocess.DEVNULL, env=dict(os.environ, CC="clang", CXX="clang++"))
    run("ninja", "-C", BUILD, "--quiet", "build.ninja", check=True)


def build(programs):
    """These alone: clang's sanitizers do not go into a shared library that is linked without holes."""
    run("ninja", "-C", BUILD, "--quiet", *(os.path.relpath(p, BUILD) for p in programs), check=True)


def fuzzers():
    """Name and path of each."""
    listed = run("meson", "introspect", BUILD, "--targets", check=True, stdout=subprocess.PIPE).stdout
    return sorted((t["name"], t["filename"][0]) for t in json.loads(listed)
                  if t["type"] == "executable" and t["name"].startswith("fuzz_"))


def fuzz(name, program, seconds):
    learnt = os.path.join(TREE, "build", "fuzz-corpus", name)
    os.makedirs(learnt, exist_ok=True)
    print(f"== {name} for {seconds} s", flush=True)
    seeds = os.path.join(TREE, "tests", "fuzz", "seeds", name[len("fuzz_"):])
    result = run(program, f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048",
                 "-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={learnt}/",
                 learnt, seeds)
    return result.returncode


def main():
    ap = argparse.ArgumentParser(description="Run each fuzzer for a while.")
    ap.add_argument("--seconds", type=int, default=60, metavar="N")
    ap.add_argument("names", nargs="*", metavar="NAME")
    args = ap.parse_args()
    try:
        configure()
        chosen = [(n, p) for n, p in fuzzers() if not args.names or any(w in n for w in args.names)]
        if not chosen:
            sys.exit("there is no such fuzzer")
        build(program for _, program in chosen)
    except subprocess.CalledProcessError:
        sys.exit("the fuzzers could not be built")
    bad = [name for name, program in chosen if fuzz(name, program, args.seconds)]
    print(f"{len(chosen) - len(bad)} fuzzers found nothing" + "".join(f", {n} failed" for n in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
