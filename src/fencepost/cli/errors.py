"""The root command: its list of commands and its exit codes. Every error is one line on stderr and a non-zero exit,
never a traceback.

    1  failure     2  usage error     75  ownership lost     130  interrupted

Usage errors include settings, addresses and values that the library rejects before it asks a server (ConfigError),
whether they came from an option, a file or the environment; and topic configs that the server rejects.

FENCEPOST_DEBUG=1 shows the traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from fencepost.errors import ConfigError, ErrorCode, FencepostError, ServerError, Unreachable

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130


DENIALS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class OneLineErrors(click.Group):
    """The root command. Overrides `main`, because click prints usage errors on four lines, and the list of commands,
    which here is grouped by purpose."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._sections: dict[str, list[str]] = {}
        self._modules: dict[str, str] = {}

    def add_section(self, title: str, *commands: str) -> None:
        """List commands under `title`. Each is NAME, or NAME:MODULE if its module in `fencepost.cli` has another name;
        the module is imported when the command is called."""
        homes = {name: module or name for name, _, module in (command.partition(":") for command in commands)}
        self._sections[title] = list(homes)
        self._modules.update(homes)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self._modules:
            module = import_module(f"fencepost.cli.{self._modules[cmd_name]}")
            self.add_command(getattr(module, cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(len(name) for name in self._modules)
        for title, names in self._sections.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(limit)) for name, command in found if command])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except BrokenPipeError as error:
            if not _nobody_reads_stdout():  # click would exit silently
                raise FencepostError(f"connection closed: {error}") from error
            # The reader of the pipe has left (`| head`). Flushing the rest of the buffer at exit must not fail.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            ctx.exit(0)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:  # `fencepost topic` alone: the page, not a line
            error.show()
            sys.exit(MISUSED)
        except click.UsageError as error:
            _end(_misuse(error), MISUSED)
        except click.ClickException as error:
            _end(error.format_message(), error.exit_code)
        except click.Abort:
            _end("interrupted", INTERRUPTED)
        except ConfigError as error:
            _end(_text(error), MISUSED)
        except (FencepostError, OSError) as error:
            # A config that the server rejects is a usage error, like one that the library rejects.
            misused = getattr(error, "code", None) is ErrorCode.INVALID_CONFIG
            _end(_text(error), MISUSED if misused else FAILED)
        except Exception as error:  # noqa: BLE001 - the last resort: a bug, reported in one line
            _end(f"internal error, please report it: {type(error).__name__}: {error}", FAILED)
        # Without standalone mode click returns the argument of ctx.exit(); commands return None.
        if standalone_mode:
            sys.exit(result if isinstance(result, int) else 0)
        return result


def _nobody_reads_stdout() -> bool:
    """Return whether stdout is a pipe without a reader. Any other broken connection must not pass for success."""
    import select

    if not hasattr(select, "poll"):
        return False
    look = select.poll()
    look.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in look.poll(0))


def _misuse(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    if error.ctx is not None:
        see = f"see `{error.ctx.command_path} --help`"
        message += f" Or {see}" if message.endswith("?") else f"; {see}"
    return message


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if type(error) is Unreachable:  # not its subclasses: there the address is right, and TLS fails
        return f"{error} (--servers, FENCEPOST_SERVERS)"
    if isinstance(error, ServerError) and error.code in DENIALS and "only the owner" not in error.message:
        return f"{error} (`fencepost doctor --may OPERATION TYPE NAME` tells what is missing)"
    return str(error) or type(error).__name__


def _end(message: str, code: int) -> NoReturn:
    if os.environ.get("FENCEPOST_DEBUG"):
        import traceback

        traceback.print_exc()
    click.echo("fencepost: " + " ".join(message.split()), err=True)
    sys.exit(code)
