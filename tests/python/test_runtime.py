"""The import, the process's runtime, its options, and fork."""
import os
import sys
import time

from package import Scratch, environment, python, raised, safetensors, seeded
from tap import case, check, holds, run, same

import onehop
from onehop import _runtime, errors


@case
def the_import_loads_no_framework_and_no_library():
    code = ("import sys, onehop\n"
            "for name in ('torch', 'numpy', 'ctypes', 'safetensors', 'onehop._abi'):\n"
            "    assert name not in sys.modules, name\n")
    python(code)


def quickest(work):
    """The least seconds that the code takes in a process of its own, bytecode cached: of the clock,
    and of the processor, which others on the machine disturb less."""
    code = ("import time; clock, used = time.perf_counter(), time.process_time()\n" + work +
            "\nprint(time.perf_counter() - clock, time.process_time() - used)")
    with Scratch() as cache:
        times = [python(code, PYTHONDONTWRITEBYTECODE=None, PYTHONPYCACHEPREFIX=cache).split()
                 for _ in range(8)]
    return min(float(clock) for clock, _ in times), min(float(used) for _, used in times)


@case
def the_import_takes_under_30_ms():
    clock, used = quickest("import onehop")
    print(f"# import onehop: {clock * 1e3:.1f} ms, {used * 1e3:.1f} ms of CPU time")
    check(used < 0.030, f"{used * 1e3:.1f} ms of CPU time")


@case
def every_public_name_can_be_had():
    for name in onehop.__all__:
        check(getattr(onehop, name) is not None, name)
    check(set(onehop.__all__) <= set(dir(onehop)), "dir() lacks a name")
    raised(AttributeError, getattr, onehop, "no_such_name")


@case
def one_runtime_serves_a_process_and_overrides_have_their_own():
    check(_runtime.get() is _runtime.get(), "a second runtime")
    check(_runtime.get(route="buffered") is not _runtime.get(), "the same runtime")
    check(_runtime.get(route="buffered") is _runtime.get(route="buffered"), "a third runtime")
    check(_runtime.get(route=None) is _runtime.get(), "None overrides")


@case
def options_are_set_shown_and_taken_back():
    same(onehop.options(threads=3)["threads"][:2], ("3", "caller"))
    same(onehop.options()["threads"].value, "3")
    same(_runtime.get().options()["threads"].value, "3")
    same(onehop.options(threads=None)["threads"].origin, "default")
    same(onehop.options(ring_bytes="32MiB")["ring_bytes"].value, "32MiB")
    onehop.options(ring_bytes=None)


@case
def an_unknown_option_changes_nothing_and_names_the_nearest():
    error = raised(errors.UnknownOption, onehop.options, thread=3)
    holds(str(error), "threads")
    raised(errors.OutOfRange, onehop.options, threads=0)
    same(onehop.options()["threads"].origin, "default")


@case
def the_environment_sets_options():
    code = "import onehop; print(*onehop.options()['threads'][:2])"
    same(python(code, ONEHOP_THREADS="2"), "2 environment")


@case
def the_ranks_of_a_node_are_those_of_the_launcher_unless_set():
    code = "import onehop; print(*onehop.options()['ranks_per_node'][:2])"
    same(python(code, LOCAL_WORLD_SIZE="4"), "4 caller")
    same(python(code, LOCAL_WORLD_SIZE="4", ONEHOP_RANKS_PER_NODE="2"), "2 environment")
    same(python(code, LOCAL_WORLD_SIZE="1"), "1 default")
    same(python(code, LOCAL_WORLD_SIZE="many"), "1 default")


@case
def a_forked_child_makes_its_own_runtime():
    source = seeded()
    with Scratch() as folder:
        data = source.randbytes(1000)
        path = safetensors(os.path.join(folder, "m.safetensors"), [("w", "U8", [1000], data)])
        same(onehop.load(path, "cpu", framework="array")["w"].tobytes(), data)
        with onehop.safe_open(path, "array") as file:
            child = os.fork()
            if child == 0:
                good = (onehop.load(path, "cpu", framework="array")["w"].tobytes() == data
                        and file.get_tensor("w").tobytes() == data
                        and file.get_slice("w")[10:20].tobytes() == data[10:20])
                os._exit(0 if good else 1)
            same(os.waitpid(child, 0)[1], 0)
            same(file.get_tensor("w").tobytes(), data)


@case
def a_library_that_is_not_there_is_said_to_be():
    import subprocess

    done = subprocess.run([sys.executable, "-c", "import onehop; onehop.version()"],
                          env=environment(ONEHOP_LIBRARY="/no/such/lib.so"), text=True,
                          stderr=subprocess.PIPE)
    holds(done.stderr, "/no/such/lib.so")
    holds(done.stderr, "ONEHOP_LIBRARY")


@case
def the_first_load_of_a_small_model_takes_under_40_ms():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [(f"w{i}", "F32", [64, 64], bytes(16384)) for i in range(64)])
        clock, used = quickest(f"import onehop; onehop.load({path!r}, 'cpu', framework='array')")
    print(f"# import and a load of 1 MiB: {clock * 1e3:.1f} ms, {used * 1e3:.1f} ms of CPU time")
    check(used < 0.040, f"{used * 1e3:.1f} ms of CPU time")


@case
def waits_end_at_once_on_a_signal():
    import signal

    with Scratch() as folder:
        from package import sparse

        path = sparse(os.path.join(folder, "m.safetensors"), 3 << 30)
        landed = []

        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            begin = time.perf_counter()
            raised(KeyboardInterrupt, onehop.load, path, "cpu", framework="array",
                   progress=lambda *bytes_: landed.append(bytes_))
            took = time.perf_counter() - begin
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        print(f"# cancelled after {took:.2f} s, {landed[-1:]} bytes")
        check(took < 1.0, f"{took:.2f} s")
        small = safetensors(os.path.join(folder, "s.safetensors"), [("w", "U8", [3], b"abc")])
        same(onehop.load(small, "cpu", framework="array")["w"].tobytes(), b"abc")


if __name__ == "__main__":
    run()
