"""Shell completion: a script that knows the verbs and the flags of each, printed by `tessera --print-completion`."""

from collections.abc import Sequence

from tessera.cli.main import PRINT_COMPLETION, VERBS, options_class
from tessera.cli.options import flags_of
from tessera.errors import UserError

_BASH = """\
_tessera() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" verb="${{COMP_WORDS[1]}}" known=""
  case "$verb ${{COMP_WORDS[2]}}" in
{pairs}
  esac
  if [ -z "$known" ]; then
    case "$verb" in
{singles}
    esac
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then known="{verbs}"; fi
  COMPREPLY=($(compgen -W "$known" -- "$current"))
  if [ -z "$COMPREPLY" ]; then COMPREPLY=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _tessera tessera
"""
_SHELLS = {"bash": _BASH, "zsh": "autoload -U +X bashcompinit && bashcompinit\n" + _BASH}


def completion_script(words: Sequence[str]) -> str:
    """For `eval "$(tessera --print-completion bash)"` in a shell's start-up file."""
    if len(words) != 1 or words[0] not in _SHELLS:
        raise UserError(f"Write `tessera {PRINT_COMPLETION} bash` or `tessera {PRINT_COMPLETION} zsh`.")
    flags = {name: " ".join([*flags_of(options_class(name)), "--help"]) for name in VERBS}
    families: dict[str, list[str]] = {}
    for name in VERBS:
        first, _, second = name.partition(" ")
        families.setdefault(first, []).extend([second] if second else flags[first].split())
    pairs = [f'    "{name}") known="{known}" ;;' for name, known in flags.items() if " " in name]
    singles = [f'      {name}) known="{" ".join(known)}" ;;' for name, known in families.items()]
    return _SHELLS[words[0]].format(pairs="\n".join(pairs), singles="\n".join(singles), verbs=" ".join(families))
