"""Exit status and messages of the commands: 0 success, 1 unexpected failure, 2 user error, 130 interrupted.

A user error is one red line on standard error that names the remedy; `--debug` adds the traceback.
"""

import functools
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from duogp.errors import DuoGPWarning

FAILURE, USER_ERROR, INTERRUPTED = 1, 2, 130
PACKAGE = str(Path(__file__).resolve().parents[1])
#: Base class of typer's errors, from the click that typer uses: its own copy or the one installed.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def add_command(app: typer.Typer, function: Callable[..., None], name: str | None = None) -> None:
    """Register a function as a command that reports its errors in one line and has a `--debug` option.

    ``name``: of the command, where it is not that of the function.
    """

    @functools.wraps(function)
    def run(*args: Any, debug: bool = False, **options: Any) -> None:
        with errors_reported(debug):
            function(*args, **options)

    signature = inspect.signature(function)
    option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    run.__annotations__ = {**function.__annotations__, "debug": Debug}
    app.command(name)(run)


@contextmanager
def errors_reported(debug: bool = False) -> Iterator[None]:
    """Errors as one line and an exit status; warnings of the library as one line each, others not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DuoGPWarning)
        warnings.showwarning = lambda message, *_, **__: note(str(message))
        try:
            yield
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            print_line("interrupted", "yellow")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of standard output has closed it
            sys.stderr.close()
            raise typer.Exit(0) from None
        except Exception as error:
            if debug:
                traceback.print_exc()
            if isinstance(error, ClickError):
                raise
            print_line(f"error: {message_of(error)}", "red")
            raise typer.Exit(USER_ERROR if is_user_error(error) else FAILURE) from None


def is_user_error(error: BaseException) -> bool:
    """Whether the user can correct it: refused arguments, missing files, missing packages."""
    if isinstance(error, NotImplementedError | UnicodeError):
        return False
    if isinstance(error, TypeError):  # raised by duogp: an argument of a wrong type; elsewhere: a defect
        frames = traceback.extract_tb(error.__traceback__)
        return bool(frames) and frames[-1].filename.startswith(PACKAGE)
    files = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
    return isinstance(error, (ValueError, ImportError, *files))


def message_of(error: BaseException) -> str:
    """The message of an error."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    if not is_user_error(error):
        text = f"unexpected {type(error).__name__}: {text} (--debug shows where)"
    return one_line(text)


def print_line(text: str, color: str | None = None) -> None:
    """A line on standard error."""
    typer.secho(text, fg=color, err=True)


def note(text: str) -> None:
    """A remark on standard error."""
    print_line(f"note: {one_line(text)}", "yellow")


def one_line(text: str) -> str:
    """A text without line breaks and repeated spaces."""
    return " ".join(text.split())


class CommandGroup(TyperGroup):
    """The top-level group: errors in the command line itself are one red line, too."""

    def main(self, args: Any = None, *rest: Any, **extra: Any) -> Any:
        try:
            code = super().main(args, *rest, **extra | {"standalone_mode": False})
        except ClickError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(str(error))
                sys.exit(0)
            context = getattr(error, "ctx", None)
            hint = f" (see {context.command_path} --help)" if context is not None else ""
            message = one_line(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
            print_line(f"error: {message}{hint}", "red")
            sys.exit(USER_ERROR)
        except (typer.Abort, KeyboardInterrupt):
            print_line("interrupted", "yellow")
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)
