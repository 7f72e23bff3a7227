"""What the explorer does not take, in clear sentences."""

import pytest
from pydantic import ValidationError

from tessera.app.explorer.requests import PixelProbeRequest, first_complaint
from tessera.app.explorer.server import bind
from tessera.cli.main import main
from tessera.errors import UserError


def test_an_address_that_is_not_ours_is_not_blamed_on_the_port():
    with pytest.raises(UserError, match="another --set host") as got:
        bind("192.0.2.1", 0)  # reserved for documentation
    assert "while attempting" not in str(got.value)


def test_a_port_beyond_the_last_is_refused_before_models_are_opened(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["explore", "nowhere", "--port", "99999", "--device", "cpu"])
    said = capsys.readouterr().err
    assert leaving.value.code == 2 and said == (
        "tessera: Cannot listen at port 99999: ports are numbered from 0 to 65535.\n"
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"step": -1}, "step must be at least 0, not -1."),
        ({"image": 8}, "image must be less than 8, not 8."),
        ({"each": 50}, "each must be at most 8, not 50."),
        ({"locations": [(0.5, 0.5)] * 65}, "locations may be at most 64, not 65."),
    ],
)
def test_a_value_beyond_its_limit_is_refused_in_our_words(given, sentence):
    with pytest.raises(ValidationError) as refused:
        PixelProbeRequest(**{"models": ("exp1",), "step": 0, "at": (0.5, 0.5), **given})
    assert first_complaint(refused.value.errors()) == f"The request does not fit: {sentence}"
