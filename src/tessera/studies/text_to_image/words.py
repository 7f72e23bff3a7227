"""Words of a prompt: which ones matter, where their tokens are, and the prompt without one of them.

Taking a word out of a text is no local edit. The text encoder reads from left to right, so every later token
changes, and so does the pooled vector, which acts on all pixels alike. Hence four ways to remove a word.
"""

import re
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from tessera.errors import UserError
from tessera.studies.text_to_image.pipeline import Sdxl

Removal = Literal["remove", "sequence", "pooled", "mask"]
REMOVALS: dict[Removal, str] = {
    "remove": "the word is taken out of the text",
    "sequence": "the same, but the pooled vector stays",
    "pooled": "the same, but the sequence stays",
    "mask": "only the word's own tokens change, to those of the empty prompt",
}
REMOVAL_NAMES: dict[Removal, str] = {
    "remove": "taken out of the text",
    "sequence": "by the sequence alone",
    "pooled": "by the pooled vector alone",
    "mask": "by its own tokens alone",
}
STOP_WORDS = (
    "a", "an", "the", "and", "or", "but", "of", "in", "on", "at", "to", "by", "for", "from", "with", "as",
    "is", "are", "was", "were", "be", "been", "it", "its", "this", "that", "these", "those", "their", "his", "her",
)  # fmt: skip
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True)
class Word:
    """One occurrence of a word in a prompt."""

    text: str
    start: int  # in characters
    end: int
    name: str  # the text, with a number where it occurs again: `cat`, `cat 2`


def words_of(prompt: str) -> list[Word]:
    """All words in order; hyphens and apostrophes stay inside."""
    found: list[Word] = []
    for match in _WORD.finditer(prompt):
        text = match.group()
        earlier = sum(word.text.lower() == text.lower() for word in found)
        found.append(Word(text, *match.span(), f"{text} {earlier + 1}" if earlier else text))
    return found


def content_words(prompt: str) -> list[str]:
    """Names of the words that are not on the list of stop words."""
    found = [word.name for word in words_of(prompt) if word.text.lower() not in STOP_WORDS]
    if not found:
        raise UserError(f'"{prompt}" has no word that could be removed.')
    return found


def find_word(prompt: str, name: str) -> Word:
    """The occurrence called so, or one sentence about what there is."""
    words = words_of(prompt)
    for word in words:
        if word.name.lower() == name.lower():
            return word
    raise UserError(f"The word `{name}` is not in the prompt; its words are {', '.join(w.name for w in words)}.")


def without_word(prompt: str, word: str) -> str:
    """The text less one occurrence, the gap closed and no space left before punctuation."""
    found = find_word(prompt, word)
    text = f"{prompt[: found.start].rstrip()} {prompt[found.end :].lstrip()}".strip()
    return re.sub(r"\s+([.,;:!?])", r"\1", text)


# -- tokens ------------------------------------------------------------------------------------------------


def token_positions(sdxl: Sdxl, prompt: str, word: str) -> list[int]:
    """Where the tokens of a word stand in the padded sequence; the prompt's first token is number 1."""
    found = find_word(prompt, word)
    before, upto = (len(sdxl.tokens(prompt[:end])) for end in (found.start, found.end))
    return list(range(1 + before, 1 + upto))


def token_position(sdxl: Sdxl, prompt: str, token: str) -> int:
    """Where one token stands: the last of the word called so, else the last token of that text.

    The empty token means the end of the text, which takes most of the attention of an empty prompt.
    """
    tokens = sdxl.tokens(prompt)
    if not token:
        return len(tokens) + 1
    if token.lower() in (word.name.lower() for word in words_of(prompt)):
        return token_positions(sdxl, prompt, token)[-1]
    texts = [text.removesuffix("</w>") for text in tokens]
    if token.lower() not in texts:
        raise UserError(f'"{prompt}" has no token `{token}`; its tokens are {", ".join(texts)}.')
    return 1 + max(position for position, text in enumerate(texts) if text == token.lower())


# -- conditions --------------------------------------------------------------------------------------------


def removals_for(sdxl: Sdxl) -> list[Removal]:
    """The ways to remove a word that this model has."""
    return [removal for removal in REMOVALS if sdxl.has_pooled or removal != "pooled"]


def without(sdxl: Sdxl, prompt: str, word: str, removal: Removal = "remove") -> Tensor:
    """The condition (1, dim) of a prompt less one word."""
    if removal not in removals_for(sdxl):
        raise UserError(f"A word can be removed by {', '.join(removals_for(sdxl))}, not by `{removal}`.")
    whole = sdxl.net.parts(sdxl.conditioner(prompt))
    if removal == "mask":
        sequence = whole.sequence.clone()
        positions = token_positions(sdxl, prompt, word)
        sequence[:, positions] = sdxl.net.parts(sdxl.conditioner("")).sequence[:, positions]
        return whole._replace(sequence=sequence).row()
    shorter = sdxl.net.parts(sdxl.conditioner(without_word(prompt, word)))
    if removal == "sequence":
        return shorter._replace(pooled=whole.pooled).row()
    if removal == "pooled":
        return shorter._replace(sequence=whole.sequence).row()
    return shorter.row()
