"""Formatting of help: plain text, never truncated, fitted to the terminal, with examples to copy."""

from __future__ import annotations

import re
from operator import itemgetter
from textwrap import TextWrapper
from typing import Any

from typer import BadParameter, Context
from typer.core import TyperCommand, TyperGroup, TyperOption

from densing.cli import calls, settings

WIDE = 100
"""Columns that help takes at most."""
NARROW = 30
"""Columns that help takes on a terminal that has none to speak of."""
EXAMPLE = "Example: "
TERM_WIDTH = 26
"""Columns of an option's names; longer ones have a line of their own."""


def copyable(command: str, width: int) -> list[str]:
    r"""Break a command before options and ``name=value``, so that the shell still reads what is copied as one command.

    Examples
    --------
    >>> copyable("densing density --results results/mine --reference olmo-ladder", 44)
    ['densing density --results results/mine \\', '  --reference olmo-ladder']
    >>> copyable("densing doctor --json", 40)
    ['densing doctor --json']
    """
    name, *options = re.split(r" (?=-|\w+=)", command)
    lines = [name]
    for option in options:
        # Room for what says that the command goes on.
        if len(f"{lines[-1]} {option} \\") > width:
            lines.append(f"  {option}")
        else:
            lines[-1] += f" {option}"
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _wrapped(text: str, width: int) -> list[str]:
    # Names of options and files stay whole.
    return TextWrapper(width, break_long_words=False, break_on_hyphens=False).wrap(text)


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(part.split()) for part in (text or "").split("\n\n")]


def _short(command: Any, limit: int = 0) -> str:
    """Return a command's first sentence whole, whatever room there is."""
    return _paragraphs(command.help)[0]


def _text(command: Any, ctx: Any, formatter: Any) -> None:
    before = ""
    for paragraph in _paragraphs(command.help):
        if paragraph.startswith(EXAMPLE):
            title = [] if before.startswith(EXAMPLE) else ["", EXAMPLE.strip()]
            example = copyable(paragraph.removeprefix(EXAMPLE), formatter.width - 4)
            lines = [*title, *(f"  {line}" for line in example)]
        else:
            lines = ["", *_wrapped(paragraph, formatter.width - 2)]
        formatter.write("".join(f"  {line}".rstrip() + "\n" for line in lines))
        before = paragraph


def _options(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        # Every option has a variable; the rule is said once, in what `densing --help` ends with.
        parameter.show_envvar = False
        if record := parameter.get_help_record(ctx):
            sections["Arguments" if parameter.param_type_name == "argument" else "Options"].append(record)
    for name, each in getattr(command, "commands", {}).items():
        sections.setdefault(each.rich_help_panel or "Commands", []).append((name, _short(each)))
    for title, rows in filter(itemgetter(1), sections.items()):
        terms = min(max(len(term) for term, _ in rows), TERM_WIDTH, formatter.width // 3)
        with formatter.section(title):
            for term, meaning in rows:
                names = _wrapped(term, formatter.width - 2)
                lines = _wrapped(meaning, formatter.width - terms - 4)
                if len(term) <= terms and lines:
                    names = [f"{term:<{terms}}  {lines.pop(0)}"]
                formatter.write("".join(f"  {line}\n" for line in names))
                formatter.write("".join(f"{'':{terms + 4}}{line}\n" for line in lines))


def _how_much_is_said() -> tuple[TyperOption, TyperOption]:
    """Return the options of every command that say how much it writes beside its answer."""
    return (
        TyperOption(
            param_decls=["--quiet", "-q"],
            is_flag=True,
            default=False,
            allow_from_autoenv=False,
            help="Print only the result, warnings and errors.",
        ),
        TyperOption(
            param_decls=["--verbose", "-v"],
            count=True,
            default=0,
            allow_from_autoenv=False,
            help="Also print notes, and files read and cached; -vv: every step.",
        ),
    )


class Command(TyperCommand):
    """A command whose help is written here, whose options have settings, and that says as much as it is asked to.

    ``--json`` may name a form (``--json=v0``).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params += _how_much_is_said()
        for parameter in self.params:
            if parameter.name in settings.GIVEN_ONLY:
                parameter.allow_from_autoenv = False  # type: ignore[attr-defined]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note which command is called and how it answers, then parse as ever, with the settings beneath."""
        names: list[str] = []
        at = ctx
        while at.parent is not None:
            names.insert(0, at.info_name)
            at = at.parent
        try:
            args = calls.begin(" ".join(names), args)
        except ValueError as error:
            raise BadParameter(str(error), param_hint=calls.FLAG) from error
        # A command may take arguments in another program's forms.
        args = getattr(self.callback, "reads", list)(args)
        file = settings.SettingsFile()
        # Help is there whatever a file holds; and a command that is called by itself, not by the program, has none.
        if names and not ctx.resilient_parsing and not {"--help", "-h"} & set(args):
            file = settings.find_file()
            settings.check_variables(names, self)
            ctx.auto_envvar_prefix = settings.variable(*names)
            ctx.default_map = settings.defaults_of(file, names, self)
        program = settings.program_settings(file, ctx.obj or ())
        try:
            rest = super().parse_args(ctx, args)
        except BadParameter as error:
            # A value that nobody wrote on the line: where does it stand?
            name = str(getattr(error.param, "name", ""))
            source = ctx.get_parameter_source(name)
            if source is not None and source.name == "ENVIRONMENT":
                error.message = f"{settings.variable(*names, name)}: {error.message}"
            elif source is not None and source.name == "DEFAULT_MAP":
                error.message = f"{file.place(names)}: {error.message}"
            raise
        ctx.obj = settings.apply(program, quiet=ctx.params.pop("quiet"), verbose=ctx.params.pop("verbose"))
        return rest

    get_short_help_str, format_help_text, format_options = _short, _text, _options


class Group(TyperGroup):
    """A group of commands whose help is written here."""

    get_short_help_str, format_help_text, format_options = _short, _text, _options


class Leader(Group):
    """A group whose callback is a command of its own: ``densing scaling RUN...`` beside ``densing scaling plan``.

    Its arguments are read as those of a command, unless the first is the name of one of the group's.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        own: Any = {"name": self.name, "callback": self.callback, "params": self.params, "help": self.help}
        self.lead = Command(**own, rich_markup_mode=self.rich_markup_mode)
        # Its help lists them.
        vars(self.lead)["commands"] = self.commands

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command that the arguments call."""
        if args and args[0] in self.commands:
            # Arguments of the command that leads are not the called one's.
            bare: Any = Group(name=self.name)
            above: Any = Context(bare, info_name=info_name, parent=parent)
            return self.commands[args[0]].make_context(args[0], args[1:], parent=above, **extra)
        return self.lead.make_context(info_name, args, parent=parent, **extra)
