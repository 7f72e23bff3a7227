"""Tables of the theory page: what holds and what fails come from the record, and bars stay inside their cell."""

from doc_tables.theory import checks, claim_2, ideal, refuted

CHECK = {"name": "p(x|y)", "holds": True, "expected": True, "instances": 1200, "measure": "error", "error": 0.5}


class Results:
    def __init__(self, checks=None, ideals=()):
        self.checks, self.ideals = checks, ideals

    def one(self, name):
        return None if self.checks is None else {"checks": self.checks}

    def several(self, pattern):
        return list(self.ideals)


def test_statements_go_where_they_belong_and_surprises_nowhere():
    fails = {
        **CHECK,
        "name": "claim 2",
        "holds": False,
        "expected": False,
        "witness": {"KL by sigma": {"0": 0.0, "1": 0.05}},
    }
    surprise = {**CHECK, "name": "surprise", "holds": False}
    results = Results([CHECK, fails, surprise])
    assert checks(results)[1:] == [("p(x\\|y)", "1,200", "error", "0.5")]
    assert [row[0] for row in refuted(results)[1:]] == ["claim 2"]
    assert claim_2(results) == [("t", "0", "1"), ("KL", "0", "0.05")]


def test_what_was_not_run_is_said_so():
    assert checks(Results())[1][0] == refuted(Results())[1][0] == "not run"


def test_the_closed_form_denoiser_is_listed_by_size():
    k_max = {rule: {"value": 1, "low": 0, "high": 1} for rule in ("paper", "strict")}
    evaluated = {"rows": [{"k": 1, "all_found": {"value": 0.75, "n": 4}}], "k_max": k_max}
    records = [{"size": size, "steps": 8, "most": 9, "evaluated": evaluated} for size in (64, 32)]
    rows = ideal(Results(ideals=records))
    unprompted = {"size": 16, "steps": 8, "most": 9}  # --each 0
    assert (
        ideal(Results(ideals=[unprompted, *records])) == rows and ideal(Results(ideals=[unprompted]))[1][0] == "not run"
    )
    assert [row[0] for row in rows[1:]] == ["32", "64"] and rows[1][3:] == ("3/4", "1 (0 to 1)", "1 (0 to 1)")
