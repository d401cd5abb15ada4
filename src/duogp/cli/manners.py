"""How a command ends: 0 fine, 1 an unexpected failure, 2 a user's mistake, 130 interrupted.

A mistake is one red line on standard error that says what to do. `--debug` adds the traceback.
"""

import functools
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import typer
from typer.core import TyperGroup

from duogp.errors import DuoGPWarning

FAILURE, MISTAKE, INTERRUPTED = 1, 2, 130
PACKAGE = str(Path(__file__).resolve().parents[1])
#: Typer's own errors; it may bring its click along or use the one installed.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]

F = TypeVar("F", bound=Callable[..., Any])


def command(app: typer.Typer, name: str | None = None) -> Callable[[F], F]:
    """Register a function as a command with good manners and a --debug option."""

    def register(function: F) -> F:
        debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

        @functools.wraps(function)
        def run(*args: Any, debug: bool = False, **options: Any) -> Any:
            with polite(debug):
                return function(*args, **options)

        signature = inspect.signature(function)
        option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=debug)
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), option]
        )
        run.__annotations__ = {**function.__annotations__, "debug": debug}
        app.command(name)(run)
        return function

    return register


@contextmanager
def polite(debug: bool = False) -> Iterator[None]:
    """Errors as one line and a status; warnings of the library as one line each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DuoGPWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            say("interrupted", "yellow")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has seen enough
            sys.stderr.close()
            raise typer.Exit(0) from None
        except Exception as error:
            if debug:
                traceback.print_exc()
            if isinstance(error, ClickError):
                raise
            complain(error)
            raise typer.Exit(MISTAKE if is_mistake(error) else FAILURE) from None


def is_mistake(error: BaseException) -> bool:
    """Whether the user can mend it: what the library refuses, files that are not there, packages too."""
    if isinstance(error, NotImplementedError | UnicodeError):
        return False
    if isinstance(error, TypeError):  # ours are about arguments, others are about our code
        frames = traceback.extract_tb(error.__traceback__)
        return bool(frames) and frames[-1].filename.startswith(PACKAGE)
    files = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
    return isinstance(error, (ValueError, ImportError, *files))


def complain(error: BaseException) -> None:
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    if not is_mistake(error):
        text = f"unexpected {type(error).__name__}: {text} (--debug shows where)"
    say(f"error: {one_line(text)}", "red")


def say(text: str, color: str | None = None) -> None:
    """A line on standard error."""
    typer.secho(text, fg=color, err=True)


def one_line(text: str) -> str:
    return " ".join(text.split())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    say(f"note: {one_line(str(message))}", "yellow")


class PoliteGroup(TyperGroup):
    """Mistakes in the command line itself are one red line, too."""

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
            say(f"error: {message}{hint}", "red")
            sys.exit(MISTAKE)
        except (typer.Abort, KeyboardInterrupt):
            say("interrupted", "yellow")
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)
