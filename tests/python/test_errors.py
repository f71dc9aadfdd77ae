"""Errors: one class a status, with Python's own exception, words and errno; they can be pickled."""
import builtins
import pickle
import sys

from package import need, python, raised
from tap import case, check, holds, run, same

from onehop import _abi, errors


@case
def every_status_has_a_class_that_derives_from_the_exception_it_names():
    wanted = {status: exception for status, (_, _, exception) in _abi.STATUSES.items() if status}
    same(sorted(errors.CLASSES), sorted(wanted))
    for status, cls in errors.CLASSES.items():
        check(issubclass(cls, errors.OnehopError), cls.__name__)
        check(issubclass(cls, getattr(builtins, wanted[status])), f"{cls} is no {wanted[status]}")
        same(cls("x").name, _abi.STATUSES[status][0])


@case
def the_words_are_the_message_and_the_remedy():
    same(str(errors.NotFound("no file", "make one")), "no file; make one")
    same(str(errors.NoSuchTensor("no tensor")), "no tensor")
    error = errors.Access("no", "chmod", errno=13, driver_code=5)
    same((error.message, error.remedy, error.errno, error.driver_code), ("no", "chmod", 13, 5))


@case
def a_pickled_error_is_the_same():
    for cls in errors.CLASSES.values():
        error = pickle.loads(pickle.dumps(cls("what", "do", 2, 3)))
        check(type(error) is type(cls("x")), f"{type(error)} is not {cls}")
        same((str(error), error.errno, error.driver_code), ("what; do", 2, 3))


@case
def a_call_raises_what_the_library_says():
    from onehop import Model

    error = raised(FileNotFoundError, Model, "/no/such/model.safetensors")
    check(isinstance(error, errors.NotFound), type(error))
    same(error.errno, 2)
    holds(str(error), "/no/such/model.safetensors")


@case
def data_errors_are_safetensors_errors_once_that_is_imported():
    code = ("import pickle, sys; from onehop import errors\n"
            "before = errors.Malformed('a', 'b')\n"
            "import safetensors\n"
            "after = errors.Malformed('a', 'b')\n"
            "assert not isinstance(before, safetensors.SafetensorError)\n"
            "assert isinstance(after, safetensors.SafetensorError)\n"
            "assert isinstance(after, errors.Malformed) and isinstance(after, ValueError)\n"
            "assert isinstance(pickle.loads(pickle.dumps(before)), safetensors.SafetensorError)\n"
            "assert not isinstance(errors.NotFound('a'), safetensors.SafetensorError)\n"
            "print(type(after).__name__, after)")
    need("safetensors")
    same(python(code), "Malformed a; b")


@case
def the_safetensors_package_is_not_imported_for_it():
    same(python("import onehop, sys; onehop.errors; onehop.OnehopError('x');"
                "print('safetensors' in sys.modules)"), "False")


if __name__ == "__main__":
    sys.exit(run())
