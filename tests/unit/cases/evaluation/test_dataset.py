"""Data sets are validated before any case runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from caseworker_cases.evaluation.dataset import Dataset, DatasetError, load_dataset
from caseworker_cases.evaluation.metrics import metrics_of
from tests.unit.cases.evaluation.recorded import a_result, a_trace

BARE = {"id": "a", "input": "1 + 1"}


def written(folder: Path, content: Any) -> Path:
    path = folder / "set.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def loaded(folder: Path, *cases: Any) -> Dataset:
    return load_dataset(written(folder, list(cases)))


@pytest.mark.req("002/16.1")
def test_a_case_needs_no_more_than_an_id_and_an_input(tmp_path: Path) -> None:
    """A case needs only an ID and an input; the other fields have defaults."""
    (bare, full) = loaded(
        tmp_path, BARE, {**BARE, "id": "b", "expected_tools": ["calculator"], "gold_answer": "2"}
    ).cases

    assert (bare.expected_tools, bare.gold_answer, bare.expect) == ((), None, "answer")
    assert (full.expected_tools, full.gold_answer) == (("calculator",), "2")


@pytest.mark.req("002/16.5")
def test_a_case_of_a_kind_nobody_has_heard_of_is_taken_and_measured(tmp_path: Path) -> None:
    """Families, tags and tools may have any name, and are measured alike."""
    (case,) = loaded(
        tmp_path,
        {**BARE, "family": "astronomy", "tags": ["moons"], "expected_tools": ["telescope"]},
    ).cases
    result = a_result(case, trace=a_trace("telescope"))

    metrics = metrics_of([result], {"id": "eval-1"})

    assert metrics["by_family"]["astronomy"]["succeeded"] == 1


@pytest.mark.req("002/16.1")
@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        ({**BARE, "gold_anwser": "2"}, "case 2 ('a'): gold_anwser: unknown field"),
        ({"id": "a"}, "case 2 ('a'): input: this field is required"),
        ({**BARE, "gold_answer": 2}, "case 2 ('a'): gold_answer: "),
        ({**BARE, "id": "../a"}, "case 2 ('../a'): id: "),
        ({**BARE, "difficulty": "simple"}, "case 2 ('a'): difficulty: "),
        ({**BARE, "input": "\ud800"}, "case 2 ('a'): input: "),
        ("What is 1 + 1?", "case 2: the case: "),
        ({**BARE, "id": "FIRST"}, "the id 'FIRST' is used more than once"),
    ],
)
def test_a_case_that_does_not_fit_is_named(tmp_path: Path, case: Any, complaint: str) -> None:
    """The error names the case, the field and the problem."""
    with pytest.raises(DatasetError) as refused:
        loaded(tmp_path, {**BARE, "id": "first"}, case)

    assert complaint in str(refused.value)


@pytest.mark.parametrize("content", ["[]", "{}", "[", "null", "[" * 100_000])
def test_what_is_no_list_of_cases_is_refused(tmp_path: Path, content: str) -> None:
    """A file that is empty, no JSON list or nested too deeply is rejected by name."""
    with pytest.raises(DatasetError, match=r"set\.json"):
        load_dataset(written(tmp_path, content))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A missing file is rejected by name."""
    with pytest.raises(DatasetError, match="absent"):
        load_dataset(tmp_path / "absent.json")


def test_many_mistakes_are_told_at_once_but_not_all(tmp_path: Path) -> None:
    """At most twenty problems are listed, with the number of further ones."""
    with pytest.raises(DatasetError) as refused:
        loaded(tmp_path, *({"id": f"c{number}"} for number in range(50)))

    assert len(str(refused.value).splitlines()) == 21
    assert "and 30 more" in str(refused.value)


def test_cases_are_chosen_by_id_family_difficulty_or_tag(tmp_path: Path) -> None:
    """--only, --skip and the limit select cases by ID, family, difficulty or tag."""
    dataset = loaded(
        tmp_path,
        {**BARE, "id": "m1", "family": "math", "difficulty": "easy"},
        {**BARE, "id": "m2", "family": "math", "tags": ["odd"]},
        {**BARE, "id": "c1", "family": "calendar", "difficulty": "easy"},
    )

    def ids(**chosen: Any) -> list[str]:
        return [case.id for case in dataset.selected(**chosen).cases]

    assert ids() == ["m1", "m2", "c1"]
    assert ids(only=["math"]) == ["m1", "m2"]
    assert ids(only=["m*", "easy"]) == ["m1", "m2", "c1"]
    assert ids(skip=["odd"]) == ["m1", "c1"]
    assert ids(only=["easy"], skip=["math"]) == ["c1"]
    assert ids(limit=2) == ["m1", "m2"]
    with pytest.raises(DatasetError, match="no case is selected"):
        ids(only=["stocks"])


def test_the_checksum_is_that_of_the_file(tmp_path: Path) -> None:
    """The checksum is that of the file and does not depend on the selection."""
    one = loaded(tmp_path, BARE, {**BARE, "id": "b"})
    other = loaded(tmp_path, BARE)

    assert one.sha256 != other.sha256
    assert one.selected(limit=1).sha256 == one.sha256


def test_a_sample_is_drawn_by_its_seed_and_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    """A sample is deterministic per seed, in file order, and at most all cases."""
    cases = [{"id": f"c{number}", "input": "?"} for number in range(50)]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    dataset = load_dataset(tmp_path / "cases.json")

    def drawn(**how: Any) -> list[str]:
        return [case.id for case in dataset.selected(**how).cases]

    first = drawn(sample=10, sample_seed=1)
    assert first == drawn(sample=10, sample_seed=1) != drawn(sample=10, sample_seed=2)
    assert len(first) == 10
    assert first == sorted(first, key=lambda name: int(name[1:])) != drawn(limit=10)
    assert len(drawn(sample=60)) == 50
    assert len(drawn(sample=10, limit=3)) == 3
