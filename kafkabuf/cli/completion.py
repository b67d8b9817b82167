"""`kafkabuf completion`: the script with which a shell completes this command's words. click writes it."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script with which a SHELL completes the words of this command.

    \b
    bash: eval "$(kafkabuf completion bash)"        in ~/.bashrc; bash 4.4 or newer
    zsh:  eval "$(kafkabuf completion zsh)"         in ~/.zshrc, behind compinit
    fish: kafkabuf completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from kafkabuf.cli import main

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "kafkabuf", "_KAFKABUF_COMPLETE").source())
