"""Words: found, taken out, and located among tokens."""

import pytest
import torch

from tessera.errors import UserError
from tessera.studies.text_to_image.prompts import _CATEGORIES, _CROSSED, _SETS, COMPOSITES, IMAGE, PAPER, concepts_of
from tessera.studies.text_to_image.words import (
    content_words,
    token_position,
    token_positions,
    without,
    without_word,
    words_of,
)
from tiny_pipeline import known_words, make_tokenizers, texts

TWICE = "a cat, another cat and a dog."


def test_stop_words_are_left_out():
    assert content_words(IMAGE) == ["beautiful", "photograph", "horse", "middle", "dog", "left", "cat", "right"]


def test_a_repeated_word_is_two_words():
    assert [word.name for word in words_of(TWICE)] == ["a", "cat", "another", "cat 2", "and", "a 2", "dog"]
    assert without_word(TWICE, "cat") == "a, another cat and a dog."
    assert without_word(TWICE, "cat 2") == "a cat, another and a dog."


def test_removal_closes_the_gap():
    assert without_word("An oil-painting of Van Gogh.", "Gogh") == "An oil-painting of Van."
    assert without_word("An oil-painting of Van Gogh.", "oil-painting") == "An of Van Gogh."
    assert without_word("cat", "cat") == ""


def test_a_word_that_is_not_there_is_refused_with_a_list_of_those_that_are():
    with pytest.raises(UserError, match="`zebra` is not in the prompt; its words are a, cat, another"):
        without_word(TWICE, "zebra")


def test_tokens_are_cut_as_clip_cuts_them(sdxl):
    print_ = "A woodblock print in the style of Hokusai."
    assert sdxl.tokens(print_)[-4:] == ["ho", "ku", "sai</w>", ".</w>"]
    assert token_positions(sdxl, print_, "Hokusai") == [8, 9, 10]
    assert token_position(sdxl, print_, "sai") == token_position(sdxl, print_, "hokusai") == 10
    assert token_position(sdxl, "", "") == 1 and token_position(sdxl, "a cat", "") == 3
    with pytest.raises(UserError, match="has no token `zebra`"):
        token_position(sdxl, "a cat", "zebra")


def test_every_shipped_word_is_one_token_but_two(sdxl):
    tokenizer = make_tokenizers(known_words(texts()))[0]
    lengths = {word: len(tokenizer(word, add_special_tokens=False).input_ids) for word in known_words(texts())}
    assert {word: length for word, length in lengths.items() if length > 1} == {"hokusai": 3, "chopsticks": 2}


def test_every_shipped_concept_has_its_token(sdxl):
    for name in _SETS:
        for concept in concepts_of(name):
            for prompt in concept.prompts:
                assert token_position(sdxl, prompt, concept.token) > 0
    for composite in COMPOSITES:
        assert all(token_position(sdxl, composite.prompt, token) > 0 for token in composite.tokens.values())


def test_the_sets_are_what_they_say():
    assert len(PAPER) == 8 and len(COMPOSITES) == 3
    assert PAPER[5].prompts == ("A woodblock print in the style of Hokusai.",)
    one, own, crossed = (concepts_of(name) for name in ("one", "own", "crossed"))
    assert [c.name for c in one] == [c.name for c in own] == [c.name for c in crossed]
    assert len(one) == 24 and len(_CATEGORIES) == 4
    assert {c.prompts[0].replace(c.name, "X") for c in one} == {"A picture of X."}
    assert len({c.prompts[0].replace(c.name, "X") for c in own}) == 4
    assert all(len(c.prompts) == len(_CROSSED) == 6 for c in crossed)
    assert len({tuple(p.replace(c.name, "X") for p in c.prompts) for c in crossed}) == 1


def test_swapping_both_paths_is_removing_the_word(sdxl):
    """The sequence of one ablation and the pooled vector of the other make up the whole."""
    both = sdxl.net.parts(without(sdxl, IMAGE, "horse", "sequence"))._replace(
        pooled=sdxl.net.parts(without(sdxl, IMAGE, "horse", "pooled")).pooled
    )
    assert torch.equal(both.row(), without(sdxl, IMAGE, "horse", "remove"))
    assert torch.equal(without(sdxl, IMAGE, "horse"), sdxl.conditioner(without_word(IMAGE, "horse")))


def test_removing_a_word_is_no_local_edit_but_masking_it_is(sdxl):
    whole = sdxl.net.parts(sdxl.conditioner(IMAGE))

    def changed(how):
        found = sdxl.net.parts(without(sdxl, IMAGE, "horse", how))
        return (found.sequence != whole.sequence).any(-1)[0].nonzero()[:, 0].tolist(), torch.equal(
            found.pooled, whole.pooled
        )

    positions = token_positions(sdxl, IMAGE, "horse")
    assert changed("remove") == (list(range(positions[0], 77)), False)  # CLIP reads from left to right
    assert changed("sequence") == (list(range(positions[0], 77)), True)
    assert changed("pooled") == ([], False)
    assert changed("mask") == (positions, True)


def test_prompts_of_ones_own_come_from_a_file(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text('[{"name": "red cat", "category": "a", "prompt": ["x cat", "y cat"]}]')
    with pytest.raises(UserError, match="needs two or more categories"):
        concepts_of(str(file))
    file.write_text('[{"name": "cat"}]')
    with pytest.raises(UserError, match='needs the texts "name", "category" and "prompt"'):
        concepts_of(str(file))
    rows = '{"name": "n%d", "category": "%s", "prompt": "a cat", "token": "cat"}'
    file.write_text("[" + ",".join(rows % (n, "ab"[n // 2]) for n in range(3)) + "]")
    assert [c.category for c in concepts_of(str(file))] == ["a", "a", "b"]
    with pytest.raises(UserError, match="There is no set of prompts `none`"):
        concepts_of("none")
