"""JSON as it is written: whatever fits on a line stands on one."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tessera.errors import UserError
from tessera.files import LINE, laid_out, read_lines, resolve_inside, rounded, save_plot, write_json


def test_what_fits_on_a_line_stands_on_one(tmp_path):
    row = {"k": 3, "share": 0.25, "range": [0.1, 0.4]}
    content = {"rows": [row] * 20, "name": "exp1", "long": list(range(100)), "none": None}
    write_json(tmp_path / "record.json", content)
    text = (tmp_path / "record.json").read_text()
    assert json.loads(text) == content and text.endswith("}\n")
    assert text.count('{"k":3,"share":0.25,"range":[0.1,0.4]}') == 20
    assert max(map(len, text.splitlines())) <= LINE + len('"long":')
    assert '\n "name":"exp1",\n' in text


def test_names_that_are_numbers_and_tuples_are_written_as_json_has_them():
    content = {3: ("a" * 100, "b" * 100)}
    assert json.loads(laid_out(content)) == {"3": ["a" * 100, "b" * 100]}


def test_names_are_spelt_alike_on_one_line_and_on_many():
    for name in (None, True, 2, 0.5, "a"):
        short, long = laid_out({name: 1}), laid_out({name: "b" * 2 * LINE})
        assert list(json.loads(short)) == list(json.loads(long))


def test_lines_cut_short_are_no_lines(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n{"a": ')
    assert read_lines(tmp_path / "log.jsonl") == [{"a": 1}, {"a": 2}]


def test_threads_may_write_the_same_file_at_once(tmp_path):
    path = tmp_path / "same.json"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: write_json(path, {"n": n}), range(200)))
    assert json.loads(path.read_text())["n"] in range(200) and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("wrong", [float("nan"), [1.0, float("inf")]])
def test_json_knows_no_infinity(wrong):
    with pytest.raises(ValueError, match="not JSON compliant"):
        laid_out(wrong)


def test_rounding_keeps_digits_and_everything_else():
    content = {"share": 0.12345678912, "small": (1.23456789e-12, 0.02), "n": 123456789, "ok": True, "none": None}
    kept = {"share": 0.12346, "small": [1.2346e-12, 0.02], "n": 123456789, "ok": True, "none": None}
    assert rounded(content) == kept


def test_a_plot_is_saved_with_few_colors_whole_or_not_at_all(tmp_path):
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], color="red")
    save_plot(figure, tmp_path / "plot.png")
    made = Image.open(tmp_path / "plot.png")
    assert made.mode == "P" and made.width > 100
    colors = [color for _, color in made.convert("RGB").getcolors(1 << 16)]
    assert any(red > 230 and max(green, blue) < 40 for red, green, blue in colors)
    with pytest.raises(UserError, match="Could not write"):
        save_plot(figure, tmp_path / "nowhere" / "plot.png")


def test_a_link_stays_a_link_and_what_it_points_at_is_written(tmp_path):
    write_json(tmp_path / "true.json", 1)
    (tmp_path / "link.json").symlink_to("true.json")
    write_json(tmp_path / "link.json", 2)
    assert (tmp_path / "link.json").is_symlink() and json.loads((tmp_path / "true.json").read_text()) == 2


OUTSIDE = ["../victim.txt", "k01/../../victim.txt", "{tmp}/victim.txt", "link.txt", "linked/victim.txt", ""]
OUTSIDE += [".", "..", "null\0byte", None, 3]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_out_of_its_folder_is_refused(tmp_path, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "victim.txt").touch()
    (folder / "link.txt").symlink_to(tmp_path / "victim.txt")
    (folder / "linked").symlink_to(tmp_path)
    name = name.replace("{tmp}", str(tmp_path)) if isinstance(name, str) else name
    with pytest.raises(UserError, match="not a file inside that folder"):
        resolve_inside(folder, name)


def test_names_inside_a_folder_are_its_files_even_where_the_folder_is_a_link(tmp_path):
    (tmp_path / "true").mkdir()
    (tmp_path / "link").symlink_to("true")
    (tmp_path / "true" / "a.png").touch()
    (tmp_path / "true" / "b.png").symlink_to("a.png")
    for name in ("a.png", "b.png", "k01/new.png", "k01/../a.png"):
        assert resolve_inside(tmp_path / "link", name) == tmp_path / "link" / name
