"""TAP for tests in Python: a function for each case, named by the behaviour.

    @case
    def a_planted_include_is_found():
        same(1 + 1, 2)

    if __name__ == "__main__":
        run()
"""
import sys
import traceback

CASES = []


class Skip(Exception):
    """raise Skip("why"): the reason is printed."""


def case(function):
    CASES.append(function)
    return function


def check(condition, words):
    if not condition:
        raise AssertionError(words)


def same(got, want, what="value"):
    check(got == want, f"{what} is {got!r}, should be {want!r}")


def holds(text, part):
    check(part in text, f"{text!r} does not hold {part!r}")


def failed(number, function, words):
    for line in words.splitlines():
        print(f"# {line}")
    print(f"not ok {number} - {function.__name__}", flush=True)
    return 1


def run_one(number, function):
    """Prints the case's line; 1 if it failed."""
    try:
        function()
    except Skip as reason:
        print(f"ok {number} - {function.__name__} # SKIP {reason}", flush=True)
        return 0
    except AssertionError as failure:
        return failed(number, function, str(failure))
    except Exception:  # whatever else it is, it is this case's, and the next one runs
        return failed(number, function, traceback.format_exc())
    print(f"ok {number} - {function.__name__}", flush=True)
    return 0


def run():
    print(f"1..{len(CASES)}", flush=True)
    bad = sum(run_one(number, function) for number, function in enumerate(CASES, 1))
    sys.exit(1 if bad else 0)
